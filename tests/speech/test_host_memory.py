"""The host and memory: children that leak, are killed, are poisoned, or give nothing in time."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from speech.engine import EngineFailed, EngineTimedOut, OutOfMemory, SynthesisRequest
from speech.engines.tone import tone
from speech.host import WARM_CALLS, EngineHost, Interrupted, Lifetime, NoAudioYet

from .test_host import FAULTS, ask, is_alive, plug, speak, wait_until

pytestmark = pytest.mark.slow


def test_two_thousand_calls_of_a_leaking_engine_stay_below_the_limit(tmp_path: Path) -> None:
    limit = 40_000_000
    peak = 0
    log = tmp_path / "calls"
    lifetime = Lifetime(growth_bytes=limit)
    options = {"leak_mb_per_chunk": "0.5", "log": str(log)}
    with EngineHost("tone", options, nice=0, chunk_seconds=30, lifetime=lifetime) as host:
        host.start()
        base = _resident(host.pid)
        for number in range(2000):
            text = f"Call {number}."
            sound = speak(host, text)
            assert len(sound) == len(text) * 1440
            if number % 10 == 0:
                peak = max(peak, _resident(host.pid) - base)
        recycled = host.ends["recycled"]

    # Half a megabyte a call: a thousand megabytes without the recycler.
    assert recycled >= 2000 * 0.5e6 / limit / 2
    assert peak < 2 * limit + 30_000_000
    assert len(log.read_text().splitlines()) == 2000, "each call was made once"


def test_a_child_that_does_not_leak_is_kept() -> None:
    with EngineHost("tone", {}, nice=0, chunk_seconds=30, lifetime=Lifetime(growth_bytes=20_000_000)) as host:
        speak(host, "Hello.")
        pid = host.pid
        for _ in range(300):
            speak(host, "Hello there, this is a text of some length.")

        assert host.pid == pid
        assert host.ends == {}


def test_a_child_is_replaced_after_so_many_calls_between_two_of_them() -> None:
    with EngineHost("tone", {}, nice=0, chunk_seconds=30, lifetime=Lifetime(calls=3)) as host:
        pids = []
        for number in range(7):
            text = f"Call {number}."
            assert np.array_equal(speak(host, text), tone(text, seed=0))
            pids.append(host.pid)

        assert [len(set(pids[start : start + 3])) for start in (0, 3)] == [1, 1]
        assert len(set(pids)) == 3
        assert host.ends == {"recycled": 2}
        assert not any(is_alive(pid) for pid in set(pids) - {host.pid})


def test_memory_on_a_device_counts_as_well(tmp_path: Path) -> None:
    environ = plug(
        tmp_path,
        "leaky",
        """
        from speech.engines.tone import ToneFactory
        class Leaky(ToneFactory):
            def load(self, options):
                engine = super().load(options)
                speak, held = engine.synthesize, []
                def synthesize(request):
                    held.append(1)
                    return speak(request)
                class On(type(engine)):
                    def device_bytes(self):
                        return len(held) * 10_000_000
                engine.__class__ = On
                engine.synthesize = synthesize
                return engine
        ENGINE = Leaky()
        """,
    )
    lifetime = Lifetime(growth_bytes=50_000_000)
    with EngineHost("leaky", {}, nice=0, chunk_seconds=30, lifetime=lifetime, environ=environ) as host:
        for _ in range(WARM_CALLS + 6):
            speak(host, "Hello.")
        assert host.ends == {}
        speak(host, "Hello.")

        assert host.ends == {"recycled": 1}


def test_a_child_that_the_kernel_killed_ran_out_of_memory() -> None:
    with EngineHost("tone", {"rtf": "1"}, nice=0, chunk_seconds=30) as host:
        pieces = host.synthesize(ask("Hello there, this takes a while."))
        next(pieces)
        os.kill(host.pid or 0, signal.SIGKILL)

        with pytest.raises(OutOfMemory, match="SIGKILL"):
            list(pieces)

        assert host.ends == {"killed": 1}
        assert len(speak(host, "Hi."))


POISONED = """
    from speech.engines.tone import ToneFactory
    class Poisoned(ToneFactory):
        def load(self, options):
            engine = super().load(options)
            speak, calls = engine.synthesize, []
            def synthesize(request):
                calls.append(request.text)
                if request.text == "poison":
                    raise RuntimeError("CUDA error: device-side assert triggered")
                if "poison" in calls:
                    raise RuntimeError("a poisoned context answers errors for hours")
                return speak(request)
            engine.synthesize = synthesize
            return engine
    ENGINE = Poisoned()
    """


def test_a_poisoned_child_is_ended_at_once_and_the_next_call_is_well(tmp_path: Path) -> None:
    environ = plug(tmp_path, "poisoned", POISONED)
    with EngineHost("poisoned", {}, nice=0, chunk_seconds=30, environ=environ) as host:
        speak(host, "Hello.")
        before = host.pid
        with pytest.raises(EngineFailed, match="device-side assert"):
            speak(host, "poison")
        assert host.pid is None
        assert not is_alive(before or 0)

        assert np.array_equal(speak(host, "Hello."), tone("Hello.", seed=0))
        assert host.ends == {"poisoned": 1}


HOARDER = """
    import gc, weakref
    import numpy as np
    from speech.engines.tone import ToneFactory
    class OutOfMemoryError(RuntimeError):
        pass
    class Big:
        def __init__(self):
            self.data = np.ones(6_000_000)
    class Hoarder(ToneFactory):
        def load(self, options):
            engine = super().load(options)
            speak, seen = engine.synthesize, []
            gc.disable()
            def synthesize(request):
                if request.text == "fail":
                    big = Big()
                    # As an autograd graph does it: only the collector of cycles frees it.
                    big.me = big
                    seen.append(weakref.ref(big))
                    raise OutOfMemoryError("CUDA out of memory.")
                assert seen[-1]() is None, "what the failed call held is still there"
                yield from speak(request)
            engine.synthesize = synthesize
            freed = []
            class Frees(type(engine)):
                def free(self):
                    assert seen[-1]() is None, "freed before it was gone"
                    freed.append(1)
            engine.__class__ = Frees
            return engine
    ENGINE = Hoarder()
    """


def test_what_a_failed_call_held_is_gone_before_the_next_one(tmp_path: Path) -> None:
    environ = plug(tmp_path, "hoarder", HOARDER)
    with EngineHost("hoarder", {}, nice=0, chunk_seconds=30, environ=environ) as host:
        for _ in range(3):
            with pytest.raises(OutOfMemory, match="CUDA out of memory"):
                speak(host, "fail")
            assert len(speak(host, "Hello."))
        assert host.ends == {}


def test_nothing_in_time_is_told_at_once_and_settled_later() -> None:
    with EngineHost("tone", FAULTS, nice=0, chunk_seconds=30) as host:
        host.start()
        pid = host.pid
        begun = time.monotonic()
        with pytest.raises(NoAudioYet):
            list(host.synthesize(ask("[[tone:sleep=0.8]]Hello."), first_audio_seconds=0.2))
        assert time.monotonic() - begun < 0.7

        host.settle()

        assert time.monotonic() - begun >= 0.7
        assert np.array_equal(speak(host, "Next."), tone("Next.", seed=0))
        assert host.pid == pid


def test_a_call_that_was_given_up_and_hangs_costs_its_child() -> None:
    with EngineHost("tone", FAULTS, nice=0, chunk_seconds=30) as host:
        host.start()
        pid = host.pid or 0
        with pytest.raises(NoAudioYet):
            list(host.synthesize(ask("[[tone:hang]]"), first_audio_seconds=0.2))

        assert np.array_equal(speak(host, "Next."), tone("Next.", seed=0))
        assert not is_alive(pid)


def test_what_was_heard_in_time_is_heard_to_the_end() -> None:
    with EngineHost("tone", {"rtf": "0.3"}, nice=0, chunk_seconds=30) as host:
        host.start()
        text = "A text of two seconds, more or less..."
        parts = list(host.synthesize(ask(text), first_audio_seconds=0.5))

        assert np.array_equal(np.concatenate(parts), tone(text, seed=0))


def test_a_load_goes_on_when_its_caller_has_left() -> None:
    with EngineHost("tone", {"load_seconds": "1.5"}, nice=0, chunk_seconds=30) as host:
        with pytest.raises(NoAudioYet):
            list(host.synthesize(ask("Hello."), first_audio_seconds=0.3))
        pid = host.pid
        assert pid is not None
        with pytest.raises(Interrupted):
            list(host.synthesize(ask("Hello."), stop=lambda: True))
        assert host.pid == pid

        assert len(speak(host, "Hello."))
        assert host.pid == pid


def test_a_restart_is_immediate_and_costs_no_back_off() -> None:
    with EngineHost("tone", {}, nice=0, chunk_seconds=30) as host:
        speak(host, "Hello.")
        before = host.pid
        host.restart()
        assert host.pid is None

        assert len(speak(host, "Hello."))
        assert host.pid != before
        assert host.ends == {"restarted": 1}


def test_a_call_may_be_given_less_time_than_the_host_allows() -> None:
    with EngineHost("tone", FAULTS, nice=0, chunk_seconds=60) as host:
        host.start()
        begun = time.monotonic()
        with pytest.raises(EngineTimedOut, match=r"0\.5 s"):
            list(host.synthesize(ask("[[tone:gil]]"), seconds=0.5))

        assert time.monotonic() - begun < 3
        assert len(speak(host, "Hello."))


STATE = """
    from speech.engines.tone import ToneFactory
    class Draws(ToneFactory):
        def load(self, options):
            engine = super().load(options)
            speak, last = engine.synthesize, []
            def synthesize(request):
                last[:] = [request]
                return speak(request)
            class Keeps(type(engine)):
                def voice_state(self):
                    return (last[0].voice_state or b"\\x00\\xff") + last[0].text.encode()
            engine.__class__ = Keeps
            engine.synthesize = synthesize
            return engine
    ENGINE = Draws()
    """


def test_the_voice_state_comes_with_the_call_that_asks_for_it(tmp_path: Path) -> None:
    environ = plug(tmp_path, "draws", STATE)
    states: list[bytes] = []
    with EngineHost("draws", {}, nice=0, chunk_seconds=30, environ=environ) as host:
        request = SynthesisRequest(text="One.", voice="sine", language="en", seed=0, keeps_voice=True)
        list(host.synthesize(request, keep=states.append))
        list(host.synthesize(ask("Two."), keep=states.append))
        third = SynthesisRequest(
            text="Three.", voice="sine", language="en", seed=0, keeps_voice=True, voice_state=states[0]
        )
        list(host.synthesize(third, keep=states.append))

    assert states == [b"\x00\xffOne.", b"\x00\xffOne.Three."]


def test_a_cancelled_call_gives_no_voice_state(tmp_path: Path) -> None:
    environ = plug(tmp_path, "draws", STATE)
    states: list[bytes] = []
    with EngineHost("draws", {"rtf": "0.5"}, nice=0, chunk_seconds=30, environ=environ) as host:
        request = SynthesisRequest(text="A" * 100, voice="sine", language="en", seed=0, keeps_voice=True)
        pieces = host.synthesize(request, keep=states.append)
        next(pieces)
        pieces.close()
        speak(host, "Next.")

    assert states == []


def _resident(pid: int | None) -> int:
    if pid is None or not wait_until(lambda: Path(f"/proc/{pid}/statm").exists(), 1):
        return 0
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
