"""While the breaker is open: see now and then whether the engine can speak again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from actors.making import Speaker
from speech.breaker import Breaker
from speech.engine import EngineError, EngineUnavailable, OutOfMemory, SynthesisRequest
from speech.host import Interrupted

log = logging.getLogger("voxfleet.actors")

#: How often the breaker is looked at.
LOOK_SECONDS: Final = 0.5
#: Numbers are read in every language.
TEXT: Final = "1, 2, 3."
SECONDS: Final = 60.0


class Trials:
    """Has the engine speak a few words of its own when a trial is due, so that no job pays for it.

    Args:
        changed: called when the breaker has opened or closed.
        ring: called when it has closed: jobs wait.
    """

    def __init__(
        self,
        breaker: Breaker,
        engine: Speaker,
        *,
        changed: Callable[[], None],
        ring: Callable[[], None],
    ) -> None:
        self._breaker = breaker
        self._engine = engine
        self._changed = changed
        self._ring = ring
        self._was_closed = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trials", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            if self._was_closed and not self._breaker.is_closed:
                log.warning("the breaker has opened")
                self._was_closed = False
                self._changed()
            if self._breaker.may_try():
                self._was_closed = self._speaks()
                self._breaker.tried(well=self._was_closed)
                if self._was_closed:
                    log.warning("the breaker has closed")
                    self._changed()
                    self._ring()

    def _speaks(self) -> bool:
        """Whether there is memory for a few words. Any other complaint is not about memory."""
        try:
            # What fragments its memory goes with it.
            self._engine.restart()
            info = self._engine.info
            language = _spoken(info.languages)
            request = SynthesisRequest(text=TEXT, voice=info.default_voice, language=language, seed=0)
            for _ in self._engine.synthesize(request, stop=self._over.is_set, seconds=SECONDS):
                pass
        except (OutOfMemory, EngineUnavailable) as error:
            # It may not even be loaded: somebody else has the memory.
            log.info("the engine is still out of memory: %s", error)
            return False
        except (EngineError, Interrupted) as error:
            log.info("the engine was tried: %s", error)
        return True


def _spoken(languages: tuple[str, ...]) -> str:
    return "en" if "*" in languages or "en" in languages else languages[0]
