"""Who else could speak: other workers of the same queue, and other models."""

from __future__ import annotations

from typing import Protocol

from jobs.job import NO_FALLBACK, Claim, Substitute
from jobs.substitutes import substitute
from jobs.workers import WorkerRegistry


class Standing(Protocol):
    """What a worker asks when its own engine is of no use. Raises `DatabaseUnavailable`."""

    def has_peer(self) -> bool:
        """Whether another worker serves the same queue, and its engine is well."""
        ...

    def has_fallback(self) -> bool:
        """Whether the fleet's fallback model is served."""
        ...

    def substitute(self, claim: Claim) -> Substitute | None:
        """Return the model that can speak a job in place of this one, and how; None where there is none."""
        ...


class Alone:
    """There is nobody else."""

    def has_peer(self) -> bool:
        """No."""
        return False

    def has_fallback(self) -> bool:
        """No."""
        return False

    def substitute(self, _claim: Claim) -> Substitute | None:
        """Nobody."""
        return None


class Fleet:
    """As the workers tell of themselves."""

    def __init__(
        self, registry: WorkerRegistry, *, worker_id: str, model: str, queue: str, fallback: str | None
    ) -> None:
        """Nothing is asked yet.

        Args:
            worker_id: this worker.
            model: what it serves.
            fallback: the fleet's fallback model, if it has one.
        """
        self._registry = registry
        self._worker_id = worker_id
        self._model = model
        self._queue = queue
        self._fallback = fallback

    def has_peer(self) -> bool:
        """See `Standing`."""
        return self._registry.healthy(self._queue, but=self._worker_id) > 0

    def has_fallback(self) -> bool:
        """See `Standing`."""
        if self._fallback in (None, NO_FALLBACK, self._model):
            return False
        return any(served.model == self._fallback and served.workers for served in self._registry.models())

    def substitute(self, claim: Claim) -> Substitute | None:
        """See `Standing`. A job that another model speaks already is not passed on."""
        wanted = claim.fallback or self._fallback
        if claim.substitute is not None or wanted in (None, NO_FALLBACK, self._model):
            return None
        served = next((model for model in self._registry.models() if model.model == wanted), None)
        if served is None:
            return None
        return substitute(served, voice=claim.voice, language=claim.language, manner=claim.manner)
