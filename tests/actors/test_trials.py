"""While the breaker is open, the engine is tried with words of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from actors.trials import Trials
from speech.breaker import FAILURES, Breaker
from speech.engine import EngineFailed, EngineUnavailable, OutOfMemory, Samples, SynthesisRequest

from .doubles import FakeEngine, sound_of


class Sick(FakeEngine):
    """Answers by script, then speaks."""

    def __init__(self, *script: Exception) -> None:
        super().__init__()
        self.script = list(script)
        self.restarts = 0

    def synthesize(self, request: SynthesisRequest, **others: object) -> Iterator[Samples]:  # type: ignore[override]
        self.spoken.append(request)
        if self.script:
            raise self.script.pop(0)
        yield sound_of(request.text)

    def restart(self) -> None:
        self.restarts += 1


def opened() -> Breaker:
    breaker = Breaker(open_seconds=0.1)
    for _ in range(FAILURES):
        breaker.failed()
    return breaker


@pytest.mark.parametrize("script", [(), (EngineFailed("something else"),)])
def test_a_trial_that_is_not_about_memory_closes_the_breaker_and_rings(script: tuple[Exception, ...]) -> None:
    breaker, engine = opened(), Sick(*script)
    changes: list[bool] = []
    rung = threading.Event()
    with Trials(breaker, engine, changed=lambda: changes.append(breaker.is_closed), ring=rung.set):
        assert rung.wait(5)

    assert breaker.is_closed
    assert changes[-1] is True
    assert engine.restarts == len(engine.spoken) == 1
    assert "one" not in engine.spoken[0].text


@pytest.mark.parametrize(
    "error", [OutOfMemory("CUDA out of memory"), EngineUnavailable("no memory to load it")]
)
def test_it_stays_open_until_there_is_memory(error: Exception) -> None:
    breaker, engine = opened(), Sick(error, error)
    rung = threading.Event()
    with Trials(breaker, engine, changed=lambda: None, ring=rung.set):
        assert rung.wait(10)

    assert len(engine.spoken) == 3
    assert breaker.is_closed


def test_a_closed_breaker_leaves_the_engine_to_the_jobs() -> None:
    engine = Sick()
    with Trials(Breaker(), engine, changed=pytest.fail, ring=pytest.fail):
        threading.Event().wait(1.2)

    assert engine.spoken == []
