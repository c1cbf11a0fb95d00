"""The host with real child processes."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from speech.checks import check_clip
from speech.engine import (
    BadOutput,
    EngineDied,
    EngineFailed,
    EngineTimedOut,
    EngineUnavailable,
    OutOfMemory,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
)
from speech.engines.tone import tone
from speech.host import GRACE_SECONDS, LOOK_SECONDS, PATIENCE_SECONDS, EngineHost, Interrupted, patience

pytestmark = pytest.mark.slow

FAULTS = {"faults": "1"}


def ask(text: str, *, seed: int = 0, voice: str = "sine") -> SynthesisRequest:
    return SynthesisRequest(text=text, voice=voice, language="en", seed=seed)


def speak(host: EngineHost, text: str, **options) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *host.synthesize(ask(text, **options))])


def state(pid: int) -> str:
    """Return the state of a process as proc(5) has it: R, S, Z; X where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "X"


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return state(pid) not in "XZ"


def wait_until(condition, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def plug(folder: Path, name: str, source: str, **variables: str) -> dict[str, str]:
    """Install an engine into a folder; return the environment of a child that has it."""
    (folder / f"{name}_engine.py").write_text(textwrap.dedent(source))
    package = folder / f"{name}_engine-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-engine\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[voxfleet.engines]\n{name} = {name}_engine:ENGINE\n")
    return {**os.environ, "PYTHONPATH": str(folder), **variables}


@pytest.fixture
def host():
    with EngineHost("tone", FAULTS, nice=0, chunk_seconds=10) as host:
        yield host


@pytest.fixture
def impatient():
    with EngineHost("tone", FAULTS, nice=0, chunk_seconds=1) as host:
        host.start()
        yield host


def test_the_child_says_what_it_is_and_speaks(host):
    info = host.start()

    assert info.name == "tone"
    assert host.info == info
    clip = speak(host, "Hello.")
    assert clip.size == 6 * 1440
    assert np.array_equal(clip, speak(host, "Hello."))
    clip[0] = 1  # the samples are the caller's own


def test_a_call_starts_the_child_when_nobody_did(host):
    assert host.pid is None
    assert speak(host, "Hello.").size == 6 * 1440


def test_audio_arrives_before_the_call_is_over():
    with EngineHost("tone", {"rtf": "0.5"}, nice=0, chunk_seconds=10) as host:
        host.start()
        started = time.monotonic()
        pieces = host.synthesize(ask("a" * 40))
        next(pieces)
        assert time.monotonic() - started < 0.6
        assert sum(piece.size for piece in pieces) == 40 * 1440 - 5760


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("ab[[tone:fail]]", EngineFailed, "RuntimeError"),
        ("ab[[tone:oom]]", OutOfMemory, "MemoryError"),
        ("   ", UnsupportedText, "empty"),
        ("a" * 301, TextTooLong, "301"),
    ],
)
def test_an_error_of_the_engine_arrives_and_the_child_lives_on(host, text, error, words):
    host.start()
    pid = host.pid
    with pytest.raises(error, match=words):
        speak(host, text)
    assert speak(host, "Hello.").size == 6 * 1440
    assert host.pid == pid


def test_an_unknown_voice_arrives_as_such(host):
    with pytest.raises(UnknownVoice):
        speak(host, "Hello.", voice="heart")


@pytest.mark.parametrize("fault", ["nan", "empty"])
def test_bad_audio_arrives_and_is_refused_by_the_clip_check(host, fault):
    text = f"ab[[tone:{fault}]]cd"
    clip = speak(host, text)
    with pytest.raises(BadOutput):
        check_clip(clip, text, host.info)


def test_a_slow_call_within_the_limit_is_whole(host):
    text = "ab[[tone:sleep=0.2]]cd"
    clip = speak(host, text)
    check_clip(clip, text, host.info)
    assert clip.size == 4 * 1440


@pytest.mark.parametrize("fault", ["hang", "gil"])
def test_a_call_that_never_ends_is_killed_and_the_next_one_works(impatient, fault):
    pid, started = impatient.pid, time.monotonic()
    heard = []
    with pytest.raises(EngineTimedOut, match="1 s"):
        heard.extend(impatient.synthesize(ask(f"ab[[tone:{fault}]]cd")))
    assert time.monotonic() - started < 2.5
    assert not is_alive(pid)
    assert speak(impatient, "Hello.").size == 6 * 1440


@pytest.mark.parametrize(("fault", "how"), [("segv", "SIGSEGV"), ("exit", "exit code 3")])
def test_a_death_in_a_call_is_told_with_its_cause_and_the_next_call_works(host, fault, how):
    pieces = host.synthesize(ask(f"ab[[tone:{fault}]]cd"))
    assert next(pieces).size == 2 * 1440
    with pytest.raises(EngineDied, match=how):
        next(pieces)
    assert speak(host, "Hello.").size == 6 * 1440


def test_a_child_killed_in_a_call_is_told_and_replaced(host):
    pieces = host.synthesize(ask("ab[[tone:sleep=30]]cd"))
    next(pieces)
    os.kill(host.pid, signal.SIGKILL)
    with pytest.raises(OutOfMemory, match="SIGKILL"):
        next(pieces)
    assert speak(host, "Hello.").size == 6 * 1440


def test_a_child_killed_between_calls_is_replaced_without_an_error(host):
    host.start()
    pid = host.pid
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not is_alive(pid))
    assert speak(host, "Hello.").size == 6 * 1440
    assert host.pid != pid


def test_deaths_in_a_row_are_answered_ever_slower_until_a_call_succeeds(host):
    def seconds(text: str) -> float:
        started = time.monotonic()
        with contextlib.suppress(EngineDied):
            speak(host, text)
        return time.monotonic() - started

    host.start()
    seconds("[[tone:exit]]")
    assert seconds("[[tone:exit]]") >= 0.5
    assert seconds("Hello.") >= 1.0
    seconds("[[tone:exit]]")
    assert 0.5 <= seconds("Hello.") < 1.9, "back at the first wait (and a start)"


def test_nothing_of_a_call_that_was_left_reaches_the_next_one(host):
    host.start()
    expected, pid = speak(host, "Next."), host.pid
    pieces = host.synthesize(ask("a" * 200))
    next(pieces)
    pieces.close()

    assert np.array_equal(speak(host, "Next."), expected)
    assert host.pid == pid, "a call that ends by itself costs no load"


def test_a_call_that_was_left_and_does_not_end_costs_the_child(host):
    pieces = host.synthesize(ask("ab[[tone:hang]]"))
    next(pieces)
    pid = host.pid
    # Nothing else makes the child wait in the middle of a call that is being heard.
    assert wait_until(lambda: state(pid) == "S")
    pieces.close()

    assert not is_alive(pid)
    assert speak(host, "Next.").size == 5 * 1440


def test_stop_is_seen_in_the_middle_of_a_call(host):
    host.start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        list(host.synthesize(ask("ab[[tone:hang]]"), stop=lambda: time.monotonic() - started > 0.2))
    assert time.monotonic() - started < 10, "the limit of the call"
    assert speak(host, "Next.").size == 5 * 1440


def test_an_open_iterator_is_named_rather_than_waited_for_without_end(host):
    pieces = host.synthesize(ask("a" * 100))
    next(pieces)
    with pytest.raises(RuntimeError, match="still open"):
        speak(host, "Next.")
    pieces.close()
    assert speak(host, "Next.").size == 5 * 1440


def test_calls_from_several_threads_are_served_one_after_another(host):
    heard = {}

    def call(number: int) -> None:
        heard[number] = speak(host, "a" * (number + 1)).size

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {number: (number + 1) * 1440 for number in range(8)}


def test_close_from_another_thread_ends_a_call_and_leaves_no_process(host):
    host.start()
    pid = host.pid
    threading.Timer(0.3, host.close).start()
    started = time.monotonic()
    with pytest.raises(Interrupted):
        speak(host, "[[tone:hang]]")
    assert time.monotonic() - started < 2
    assert not Path(f"/proc/{pid}").exists(), "not even a zombie"
    with pytest.raises(Interrupted):
        speak(host, "Hello.")


def test_close_while_the_engine_is_loading_leaves_no_process():
    host = EngineHost("tone", {"load_seconds": "60"}, nice=0, chunk_seconds=10)
    pids = []

    def close() -> None:
        pids.append(host.pid)
        host.close()

    threading.Timer(0.5, close).start()
    with pytest.raises(Interrupted):
        host.start()
    assert not Path(f"/proc/{pids[0]}").exists()


def test_close_beside_a_half_read_iterator_kills_the_child_and_the_iterator_says_so(host):
    pieces = host.synthesize(ask("a[[tone:sleep=30]]b"))
    next(pieces)
    pid = host.pid
    host.close()
    assert not is_alive(pid)
    with pytest.raises(Interrupted):
        next(pieces)


def test_an_idle_child_leaves_at_once_when_the_host_is_closed(host):
    host.start()
    pid, before = host.pid, len(list(Path("/proc/self/fd").iterdir()))
    started = time.monotonic()
    host.close()
    host.close()
    assert time.monotonic() - started < 1
    assert not Path(f"/proc/{pid}").exists()
    assert len(list(Path("/proc/self/fd").iterdir())) < before


def test_the_child_ignores_the_signals_of_its_worker_and_is_nice():
    with EngineHost("tone", {}, nice=7, chunk_seconds=10) as host:
        host.start()
        pid = host.pid
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, 0) + 7
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert speak(host, "Hello.").size == 6 * 1440
        assert host.pid == pid


def test_no_credential_reaches_the_child():
    environ = {**os.environ, "VOXFLEET_S3_SECRET_ACCESS_KEY": "hunter2", "OMP_NUM_THREADS": "3"}
    with EngineHost("tone", {"device": "hunter3"}, nice=0, chunk_seconds=10, environ=environ) as host:
        assert host.start().device == "hunter3"
        child = Path(f"/proc/{host.pid}")
        variables = (child / "environ").read_bytes().split(b"\0")
        assert b"hunter" not in (child / "environ").read_bytes() + (child / "cmdline").read_bytes()
        assert b"OMP_NUM_THREADS=3" in variables
        assert b"MKL_NUM_THREADS=1" in variables


def test_an_engine_that_cannot_be_loaded_says_why():
    for engine, options, words in (
        ("tune", {}, "chatterbox-turbo, hibari, kokoro, openai-http, supertonic-3, tone, voxcpm2"),
        ("tone", {"rft": "1"}, "no option rft"),
        ("tone", {"load_seconds": "30"}, "not ready within 0.5 s"),
    ):
        limit = 0.5 if "load_seconds" in options else 30
        with (
            EngineHost(engine, options, nice=0, chunk_seconds=1, load_seconds=limit) as host,
            pytest.raises(EngineUnavailable, match=words),
        ):
            host.start()


def test_what_an_engine_prints_is_logged_and_spoils_nothing(tmp_path, caplog):
    environ = plug(
        tmp_path,
        "noisy",
        """
        import os
        from speech.engines.tone import ToneFactory
        class Noisy(ToneFactory):
            def load(self, options):
                print("noise at loading", flush=True)
                engine = super().load(options)
                speak = engine.synthesize
                def synthesize(request):
                    os.write(1, b"R\\x00\\x00\\x00\\x02{}" * 20000 + b"\\n")
                    print("noise in a call", flush=True)
                    yield from speak(request)
                engine.synthesize = synthesize
                return engine
        ENGINE = Noisy()
        """,
    )
    caplog.set_level("INFO", logger="voxfleet.engine")

    with EngineHost("noisy", {}, nice=0, chunk_seconds=10, environ=environ) as host:
        assert speak(host, "Hello.").size == 6 * 1440
        assert wait_until(lambda: "noise in a call" in caplog.text)
    assert "noise at loading" in caplog.text


def test_a_killed_worker_leaves_no_child(tmp_path):
    script = textwrap.dedent(
        """
        import threading, time
        from speech.engine import SynthesisRequest
        from speech.host import EngineHost
        host = EngineHost("tone", {"faults": "1"}, nice=0, chunk_seconds=60)
        # Started from a thread that ends: the child must outlive that thread, but not the process.
        thread = threading.Thread(target=host.start); thread.start(); thread.join(); time.sleep(0.3)
        request = SynthesisRequest(text="a[[tone:gil]]", voice="sine", language="en", seed=0)
        for piece in host.synthesize(request):
            print(host.pid, flush=True)
        """
    )
    worker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with worker:
        pid = int(worker.stdout.readline())
        assert is_alive(pid)
        worker.kill()
    assert wait_until(lambda: not is_alive(pid), 2.0)


def test_a_child_whose_worker_is_gone_before_it_looked_leaves():
    read, write = os.pipe()
    try:
        child = subprocess.run(
            [sys.executable, "-m", "speech.child", "tone", "--fds", str(read), str(write), "--parent", "1"],
            pass_fds=(read, write),
            timeout=10,
            check=False,
        )
    finally:
        os.close(read)
        os.close(write)
    assert child.returncode == 0


def test_the_real_voice_speaks_through_its_child():
    with EngineHost("hibari", {}, nice=0, chunk_seconds=30) as host:
        first = speak(host, "Hello there.", voice="heart", seed=5)
        check_clip(first, "Hello there.", host.info)
        assert np.array_equal(first, speak(host, "Hello there.", voice="heart", seed=5))
        with pytest.raises(UnsupportedText, match="안"):
            speak(host, "안녕", voice="heart")


def test_the_calls_of_a_replaced_child_are_in_the_log_once_each(tmp_path):
    log = tmp_path / "calls"
    with EngineHost("tone", {**FAULTS, "log": str(log)}, nice=0, chunk_seconds=10) as host:
        with contextlib.suppress(EngineDied):
            speak(host, "[[tone:exit]]")
        speak(host, "Hello.")
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    assert [call["text"] for call in calls] == ["[[tone:exit]]", "Hello."]
    assert calls[0]["pid"] != calls[1]["pid"]


# --- a call that nobody wants any more --------------------------------------------------------------------

#: 18 s of audio.
LONG = "a" * 300


@pytest.fixture
def slow():
    """Give a host whose engine takes half of real time: `LONG` is 9 s of work in 75 pieces."""
    with EngineHost("tone", FAULTS | {"rtf": "0.5"}, nice=0, chunk_seconds=60) as host:
        host.start()
        yield host


def test_a_kill_is_put_off_for_as_long_as_a_load_takes_within_bounds():
    assert patience(load_seconds=0.1, left=60) == GRACE_SECONDS
    assert patience(load_seconds=3.0, left=60) == 3
    assert patience(load_seconds=90.0, left=60) == PATIENCE_SECONDS
    assert patience(load_seconds=90.0, left=2.0) == 2, "the call would have been killed then"
    assert patience(load_seconds=90.0, left=-0.1) == 0


def test_a_call_is_cancelled_between_two_pieces_and_the_child_lives_on(slow):
    pid = slow.pid
    pieces = slow.synthesize(ask(LONG))
    next(pieces)
    begun = time.monotonic()
    pieces.close()

    # To finish would have taken another nine seconds.
    assert time.monotonic() - begun < 4
    assert np.array_equal(speak(slow, "next"), tone("next", seed=0))
    assert slow.pid == pid


def test_a_call_is_stopped_between_two_pieces_and_the_child_lives_on(slow):
    pid, begun = slow.pid, time.monotonic()
    with pytest.raises(Interrupted):
        list(slow.synthesize(ask(LONG), stop=lambda: time.monotonic() - begun > 0.5))

    assert time.monotonic() - begun < 5
    assert np.array_equal(speak(slow, "next"), tone("next", seed=0))
    assert slow.pid == pid


def test_stop_is_looked_at_while_audio_comes_thick_and_fast_but_not_for_every_piece():
    # A piece every 12 ms: no wait for one is ever long.
    with EngineHost("tone", {"rtf": "0.05"}, nice=0, chunk_seconds=60) as host:
        host.start()
        heard, looks = [], []

        def listen() -> None:
            def stop() -> bool:
                looks.append(time.monotonic())
                return len(heard) >= 5

            for piece in host.synthesize(ask(LONG), stop=stop):
                heard.append(piece)

        pid = host.pid
        with pytest.raises(Interrupted):
            listen()
        assert 5 <= len(heard) < 75
        # A call looks once before it begins, and at once when it has.
        assert all(later - earlier >= LOOK_SECONDS for earlier, later in pairwise(looks[1:]))
        assert host.pid == pid


def test_a_slow_stop_does_not_use_up_the_time_of_the_call(impatient):
    def stop() -> bool:
        time.sleep(0.3)
        return False

    pieces = list(impatient.synthesize(ask("[[tone:sleep=1.2]]ab"), stop=stop))
    assert sum(piece.size for piece in pieces) == 2 * 1440


def test_a_call_that_does_not_end_is_waited_for_as_long_as_a_load_takes():
    with EngineHost("tone", FAULTS | {"load_seconds": "2.5"}, nice=0, chunk_seconds=60) as host:
        host.start()

        def stopped_after(text: str) -> float:
            begun = time.monotonic()
            with pytest.raises(Interrupted):
                list(host.synthesize(ask(text), stop=lambda: time.monotonic() - begun > 0.2))
            return time.monotonic() - begun

        pid = host.pid
        stopped_after("[[tone:sleep=1.8]]ab")
        assert host.pid == pid, "it ended later than the least patience, and sooner than a load"

        assert stopped_after("[[tone:hang]]ab") >= 2.5
        assert not is_alive(pid)
        assert np.array_equal(speak(host, "next"), tone("next", seed=0))


def test_a_call_that_does_not_end_is_killed_at_its_own_limit_at_the_latest():
    with EngineHost("tone", FAULTS | {"load_seconds": "4"}, nice=0, chunk_seconds=1) as host:
        host.start()
        pid, begun = host.pid, time.monotonic()
        with pytest.raises(Interrupted):
            list(host.synthesize(ask("[[tone:hang]]"), stop=lambda: time.monotonic() - begun > 0.5))

        assert time.monotonic() - begun < 4, "less than a load"
        assert not is_alive(pid)


def test_close_from_another_thread_ends_the_wait_for_a_cancelled_call():
    with EngineHost("tone", FAULTS | {"load_seconds": "6"}, nice=0, chunk_seconds=60) as host:
        host.start()
        pid, begun = host.pid, time.monotonic()
        closing = threading.Timer(0.5, host.close)
        closing.start()
        with pytest.raises(Interrupted):
            list(host.synthesize(ask("[[tone:hang]]"), stop=lambda: True))
        closing.join()

        assert time.monotonic() - begun < 5, "less than a load"
        assert not Path(f"/proc/{pid}").exists()


def test_what_an_engine_holds_is_given_back_on_its_main_thread_when_a_call_is_cancelled(tmp_path):
    notes = tmp_path / "notes"
    environ = plug(
        tmp_path,
        "spy",
        """
        import os, threading
        from pathlib import Path
        from speech.engines.tone import ToneFactory
        class Spy(ToneFactory):
            def load(self, options):
                engine = super().load(options)
                speak = engine.synthesize
                def synthesize(request):
                    made = 0
                    try:
                        for piece in speak(request):
                            made += piece.size
                            yield piece
                    finally:
                        is_main = threading.current_thread() is threading.main_thread()
                        with Path(os.environ["NOTES"]).open("a") as notes:
                            print(request.text[:4], is_main, made < len(request.text) * 1440, file=notes)
                engine.synthesize = synthesize
                return engine
        ENGINE = Spy()
        """,
        NOTES=str(notes),
    )
    with EngineHost("spy", {"rtf": "0.5"}, nice=0, chunk_seconds=60, environ=environ) as host:
        host.start()
        pid = host.pid
        pieces = host.synthesize(ask(LONG))
        next(pieces)
        pieces.close()

        assert notes.read_text() == "aaaa True True\n", "before the call is over, on the main thread, early"
        assert np.array_equal(speak(host, "next"), tone("next", seed=0))
        assert notes.read_text() == "aaaa True True\nnext True False\n"
        assert host.pid == pid


class Caller:
    """Makes calls with texts of their own and leaves them in every way; what is heard must be right."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0
        self.wholes = 0

    def call(self, host: EngineHost) -> None:
        """Make one call.

        Raises:
            Interrupted: the host was closed.
        """
        rng = self._rng
        self._number += 1
        spoken = f"{self._number} " + "x" * rng.randrange(1, 270)
        fails = rng.random() < 0.2
        text = spoken + ("[[tone:fail]]" if fails else "")
        leave_after = rng.choice([1, 2, 5, 20, 1000])
        end = time.monotonic() + rng.choice([0.0, 0.01, 0.06, 0.2, 1000.0])
        heard, is_whole, is_stopped = [np.zeros(0, np.float32)], False, False

        def stop() -> bool:
            nonlocal is_stopped
            is_stopped = time.monotonic() > end
            return is_stopped

        try:
            with contextlib.closing(host.synthesize(ask(text, seed=self._number), stop=stop)) as pieces:
                for piece in pieces:
                    heard.append(piece)
                    if len(heard) > leave_after:
                        break
                else:
                    is_whole = True
        except EngineFailed:
            assert fails
        except Interrupted:
            if not is_stopped:
                raise
        finally:
            clip, expected = np.concatenate(heard), tone(spoken, seed=self._number)
            assert np.array_equal(clip, expected[: clip.size]), text
        if is_whole:
            assert not fails
            assert clip.size == expected.size, text
            self.wholes += 1


# Without a pause the child always waits for room in the pipe.
@pytest.mark.parametrize("rtf", ["0", "0.01"])
def test_however_a_call_is_left_nothing_of_it_is_heard_in_the_next_one(rtf):
    caller = Caller(random.Random(7))
    # The patience with a child that the machine lets wait.
    options = FAULTS | {"rtf": rtf, "load_seconds": "2"}
    with EngineHost("tone", options, nice=0, chunk_seconds=30) as host:
        host.start()
        pid = host.pid
        for _ in range(100):
            caller.call(host)
        assert host.pid == pid, "no call cost the child its life"
    assert caller.wholes > 10


def test_a_host_may_be_closed_at_any_time_and_another_one_starts_clean():
    rng = random.Random(11)
    caller = Caller(rng)
    for _ in range(4):
        host = EngineHost("tone", FAULTS | {"rtf": "0.01"}, nice=0, chunk_seconds=30)
        host.start()
        pid = host.pid
        closing = threading.Timer(rng.uniform(0, 0.4), host.close)
        closing.start()
        with contextlib.suppress(Interrupted):
            while True:
                caller.call(host)
        closing.join()
        assert not Path(f"/proc/{pid}").exists()
