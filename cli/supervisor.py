"""Keep a set of processes running, and stop them in order.

The kernel ends a tethered process together with the *thread* that started it, so everything here runs
on the main thread, restarts included.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

from speech.niceness import lower_session

#: A log larger than this is set aside, over the one set aside before: two of them is what a process may fill.
LOG_LIMIT: Final = 10 * 1024 * 1024
#: Between two looks at the sizes of the logs.
LOG_LOOK_SECONDS: Final = 10.0
FIRST_DELAY: Final = 0.5
LONGEST_DELAY: Final = 30.0
#: A process that has run this long starts again with the first delay.
STEADY_SECONDS: Final = 30.0
#: After so many quick ends in a row the end of the log is shown.
QUICK_ENDS: Final = 5
_TETHER: Final = str(Path(__file__).with_name("tether.py"))


def next_delay(previous: float, *, alive: float) -> float:
    """Return how long to wait before a process that was up for `alive` seconds is started again."""
    if alive >= STEADY_SECONDS or previous == 0:
        return FIRST_DELAY
    return min(previous * 2, LONGEST_DELAY)


def tethered(command: Sequence[str], *, nice: int = 0) -> list[str]:
    """Return `command`, run such that it ends with this thread; `nice` is added to its niceness."""
    options = ["--nice", str(nice)] if nice else []
    return [sys.executable, "-S", "-E", _TETHER, str(os.getpid()), *options, "--", *command]


def rotate(log: Path) -> None:
    """Copy a log that has grown too large to NAME.1, and empty it under its writer, who appends.

    What is written between the two is lost. A disk too full for the copy costs the old lines, not the fleet.
    """
    aside = log.with_name(log.name + ".1")
    with contextlib.suppress(OSError):
        if log.stat().st_size <= LOG_LIMIT:
            return
        try:
            shutil.copy(log, aside)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
        os.truncate(log, 0)


def tail(log: Path, lines: int) -> list[str]:
    """Return the last lines of a log that say something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - (1 << 14)))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


@dataclass(slots=True, kw_only=True)
class Child:
    """A process to keep running."""

    name: str
    command: Sequence[str]
    log: Path
    environ: Mapping[str, str]
    #: Seconds it may take to end after SIGTERM.
    patience: float = 10.0
    #: Added to the niceness of the process; that of its session.
    nice: int = 0
    #: Called before each start.
    before: Callable[[], None] = lambda: None
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    delay: float = 0.0
    again_at: float = 0.0
    quick_ends: int = 0

    def start(self) -> None:
        """Start it, in a session of its own: a Ctrl-C in the terminal must reach `up` alone."""
        self.before()
        with os.fdopen(os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            self.process = subprocess.Popen(
                tethered(self.command, nice=self.nice),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environ),
                start_new_session=True,
            )
        if self.nice:
            lower_session(self.process.pid, self.nice)
        self.started = time.monotonic()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal; SIGKILL goes to all it started."""
        if self.process is None or not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)


class Signals:
    """SIGINT, SIGTERM and SIGHUP counted; together with SIGCHLD they end a `wait` at once."""

    def __init__(self) -> None:
        self.stops = 0
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before: dict[int, object] = {}

    def __enter__(self) -> Signals:
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # started by nohup
            self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(-1)
        os.close(self._read)
        os.close(self._write)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.stops += 1

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, or sooner when a signal came."""
        select.select([self._read], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass


@dataclass(slots=True, kw_only=True)
class Supervisor:
    """Restarts children that end, and stops all of them, group after group."""

    signals: Signals
    say: Callable[[str], None]
    #: In the order in which they are stopped; the members of a group are stopped together.
    groups: list[list[Child]] = field(default_factory=list)
    #: When the sizes of the logs are looked at again.
    look_at: float = 0.0

    @property
    def children(self) -> list[Child]:
        return [child for group in self.groups for child in group]

    def tend(self) -> None:
        """Start again what has ended and has waited long enough; keep the logs small. Call often."""
        now = time.monotonic()
        for child in self.children:
            if child.process is None:
                if now >= child.again_at:
                    child.start()
            elif (status := child.process.poll()) is not None:
                self._ended(child, status, now)
        if now >= self.look_at:
            self.look_at = now + LOG_LOOK_SECONDS
            for child in self.children:
                rotate(child.log)

    def _ended(self, child: Child, status: int, now: float) -> None:
        assert child.process is not None  # noqa: S101
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)  # what it may have left behind
        alive = now - child.started
        child.process = None
        child.delay = next_delay(child.delay, alive=alive)
        child.again_at = now + child.delay
        child.quick_ends = child.quick_ends + 1 if alive < STEADY_SECONDS else 1
        last = " ".join(tail(child.log, 1))[-200:]
        self.say(
            f"{child.name} {_how(status)}, starts again in {child.delay:g} s; its last words: {last or '-'}"
        )
        if child.quick_ends == QUICK_ENDS:
            self.say(f"{child.name} ended {QUICK_ENDS} times in a row; the end of {child.log}:")
            for line in tail(child.log, 15):
                self.say(f"  | {line}")

    def stop(self) -> None:
        """Stop every group in order; a second request to stop kills all at once."""
        asked = self.signals.stops
        for group in self.groups:
            for child in group:
                child.signal(signal.SIGTERM)
            end = time.monotonic() + max((child.patience for child in group), default=0.0)
            while any(child.running for child in group) and time.monotonic() < end:
                self.signals.wait(0.2)
                if self.signals.stops > asked:
                    return self.kill()
            for child in group:
                if child.running:
                    self.say(f"{child.name} did not end within {child.patience:g} s and is killed")
                    child.signal(signal.SIGKILL)
        return self.kill()

    def kill(self) -> None:
        """End every child that is left, now."""
        for child in self.children:
            child.signal(signal.SIGKILL)
        for child in self.children:
            if child.process is not None:
                child.process.wait()


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    return f"was ended by {signal.Signals(-status).name}"
