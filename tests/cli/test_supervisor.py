"""Children are restarted, and stopped in order."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.supervisor import (
    FIRST_DELAY,
    LOG_LIMIT,
    LONGEST_DELAY,
    Child,
    Signals,
    Supervisor,
    next_delay,
    rotate,
    tail,
)

#: A program that will not end when asked.
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""


@pytest.fixture
def signals() -> Iterator[Signals]:
    with Signals() as signals:
        yield signals


def child(folder: Path, name: str, code: str, *, patience: float = 10) -> Child:
    return Child(
        name=name,
        command=[sys.executable, "-c", code],
        log=folder / f"{name}.log",
        environ=os.environ,
        patience=patience,
    )


def tend_until(fleet: Supervisor, done: Callable[[], bool], *, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it never happened"
        fleet.tend()
        fleet.signals.wait(0.05)


def test_the_delay_doubles_up_to_a_limit_and_is_forgotten_after_a_steady_run() -> None:
    delays = [0.0]
    for _ in range(10):
        delays.append(next_delay(delays[-1], alive=1))

    assert delays[1:8] == [0.5, 1, 2, 4, 8, 16, 30]
    assert delays[-1] == LONGEST_DELAY
    assert next_delay(LONGEST_DELAY, alive=31) == FIRST_DELAY


def test_a_child_that_dies_is_restarted_and_its_last_words_are_told(tmp_path: Path, signals: Signals) -> None:
    said: list[str] = []
    runs = tmp_path / "runs"
    code = f"""
import pathlib, sys, time
runs = pathlib.Path({str(runs)!r})
before = len(runs.read_text()) if runs.exists() else 0
runs.write_text("x" * (before + 1))
print("run", before, flush=True)
sys.exit(3) if before == 0 else time.sleep(60)
"""
    fleet = Supervisor(signals=signals, say=said.append, groups=[[child(tmp_path, "one", code)]])

    tend_until(fleet, lambda: tail(tmp_path / "one.log", 1) == ["run 1"])
    fleet.stop()

    assert said == ["one ended with status 3, starts again in 0.5 s; its last words: run 0"]


def test_a_child_that_never_stays_up_has_the_end_of_its_log_shown_once(
    tmp_path: Path, signals: Signals
) -> None:
    said: list[str] = []
    broken = child(tmp_path, "broken", "raise SystemExit('the reason')")
    fleet = Supervisor(signals=signals, say=said.append, groups=[[broken]])

    def hurry() -> bool:
        broken.again_at = 0.0  # the test does not wait for the backoff
        return broken.quick_ends >= 6

    tend_until(fleet, hurry)
    fleet.stop()

    assert sum("5 times in a row" in line for line in said) == 1
    assert "  | the reason" in said


def test_groups_are_stopped_one_after_the_other(tmp_path: Path, signals: Signals) -> None:
    code = f"""
import pathlib, signal, sys, time
def end(*_):
    with pathlib.Path({str(tmp_path / "order")!r}).open("a") as file:
        file.write(sys.argv[1] + " ")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(60)
"""
    children = [child(tmp_path, name, code) for name in ("first", "second", "third")]
    for one in children:
        one.command = [*one.command, one.name]
    fleet = Supervisor(signals=signals, say=print, groups=[[one] for one in children])
    tend_until(fleet, lambda: all(tail(one.log, 1) == ["up"] for one in children))

    fleet.stop()

    assert (tmp_path / "order").read_text(encoding="ascii").split() == ["first", "second", "third"]


def test_a_child_that_ignores_the_request_is_killed(tmp_path: Path, signals: Signals) -> None:
    said: list[str] = []
    deaf = child(tmp_path, "deaf", DEAF, patience=0.3)
    fleet = Supervisor(signals=signals, say=said.append, groups=[[deaf]])
    tend_until(fleet, lambda: tail(deaf.log, 1) == ["up"])

    fleet.stop()

    assert not deaf.running
    assert said == ["deaf did not end within 0.3 s and is killed"]


def test_a_second_request_kills_at_once(tmp_path: Path, signals: Signals) -> None:
    deaf = child(tmp_path, "deaf", DEAF, patience=30)
    fleet = Supervisor(signals=signals, say=print, groups=[[deaf]])
    tend_until(fleet, lambda: tail(deaf.log, 1) == ["up"])
    began = time.monotonic()

    signal.setitimer(signal.ITIMER_REAL, 0.3)  # the second Ctrl-C, while it waits
    previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        fleet.stop()
    finally:
        signal.signal(signal.SIGALRM, previous)

    assert time.monotonic() - began < 5
    assert not deaf.running


def test_a_large_log_is_set_aside_and_a_small_one_is_left(tmp_path: Path) -> None:
    log = tmp_path / "api.log"
    rotate(log)
    log.write_bytes(b"x" * LOG_LIMIT)
    rotate(log)
    assert log.stat().st_size == LOG_LIMIT
    log.write_bytes(b"x" * (LOG_LIMIT + 1))

    rotate(log)

    assert log.stat().st_size == 0
    assert (tmp_path / "api.log.1").stat().st_size == LOG_LIMIT + 1


def test_the_log_of_a_running_child_is_set_aside_under_it(tmp_path: Path, signals: Signals) -> None:
    code = f"""
import os, pathlib, time
os.write(1, b"x" * {LOG_LIMIT} + b"\\nbefore\\n")
while not pathlib.Path({str(tmp_path / "go")!r}).exists():
    time.sleep(0.01)
os.write(1, b"after\\n")
time.sleep(60)
"""
    writer = child(tmp_path, "writer", code)
    fleet = Supervisor(signals=signals, say=print, groups=[[writer]])

    def set_aside() -> bool:
        fleet.look_at = 0.0  # the test does not wait for the next look
        return tail(tmp_path / "writer.log.1", 1) == ["before"]

    tend_until(fleet, set_aside)
    (tmp_path / "go").touch()
    tend_until(fleet, lambda: writer.log.read_bytes() == b"after\n")
    assert writer.running
    fleet.stop()


def test_a_log_that_cannot_be_copied_is_emptied_all_the_same(tmp_path: Path, signals: Signals) -> None:
    writer = child(tmp_path, "writer", "import time; time.sleep(60)")
    writer.log.write_bytes(b"x" * (LOG_LIMIT + 1))
    writer.log.with_name("writer.log.1").symlink_to("/dev/full")  # a disk with no room left
    fleet = Supervisor(signals=signals, say=print, groups=[[writer]])

    tend_until(fleet, lambda: writer.log.stat().st_size == 0)

    assert writer.running
    assert not writer.log.with_name("writer.log.1").is_symlink()
    fleet.stop()


def test_a_child_that_gives_way_is_nicer_by_so_much(tmp_path: Path, signals: Signals) -> None:
    polite = child(tmp_path, "polite", "import os, time; print(os.nice(0), flush=True); time.sleep(60)")
    polite.nice = 3
    fleet = Supervisor(signals=signals, say=print, groups=[[polite]])

    tend_until(fleet, lambda: tail(polite.log, 1) == [str(os.nice(0) + 3)])
    fleet.stop()
