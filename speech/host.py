"""One engine in a child process, as a worker drives it: started, watched, killed in time, started again."""

from __future__ import annotations

import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from speech import wire
from speech.engine import (
    EngineDied,
    EngineError,
    EngineInfo,
    EngineTimedOut,
    EngineUnavailable,
    Samples,
    SynthesisRequest,
)
from speech.wire import Frame, FrameReader, Kind, WireClosed, WireCorrupt

#: How often a wait looks at `stop` and `close`.
LOOK_SECONDS: Final = 0.05
#: How long a call that nobody wants may go on, and a child that was asked to leave may stay, at least.
GRACE_SECONDS: Final = 1.0
#: How long such a call may go on at most: a leaving worker has ten seconds left when it breaks work off.
PATIENCE_SECONDS: Final = 8.0
BACKOFF_SECONDS: Final = 0.5
BACKOFF_LIMIT_SECONDS: Final = 30.0
#: Longest line of the child's output that is logged whole, in bytes.
LINE_BYTES: Final = 4096

#: One single-thread engine per core beats one engine with all cores; a set variable wins.
THREADS: Final[dict[str, str]] = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

log = logging.getLogger("voxfleet.engine")


class Interrupted(Exception):
    """`stop` said so, or the host was closed: the call gave no whole clip, and nothing is wrong with it."""


class EngineHost:
    """Owns the child process of one engine.

    Calls are served one at a time, whatever thread they come from; `close` may be called from any thread at
    any time. A child that died is replaced by the next call, after 0.5 s, doubling to 30 s until one works.

    Args:
        engine: name of an installed engine.
        options: its options, as text; they reach the child by pipe, not by its command line.
        nice: added to the niceness of this process.
        chunk_seconds: how long one call may make the caller wait, in all, before the child is killed.
        load_seconds: how long loading may take.
        environ: environment of the child, which gets it without `VOXFLEET_*`: those hold credentials.
    """

    def __init__(
        self,
        engine: str,
        options: Mapping[str, str],
        *,
        nice: int,
        chunk_seconds: float,
        load_seconds: float = 300.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._engine = engine
        self._options = dict(options)
        self._nice = nice
        self._chunk_seconds = chunk_seconds
        self._load_seconds = load_seconds
        kept = {name: value for name, value in environ.items() if not name.startswith("VOXFLEET_")}
        self._environ = {**THREADS, **kept}
        self._turn = threading.Lock()
        self._owner: int | None = None
        self._child: _Child | None = None
        self._info: EngineInfo | None = None
        self._failures = 0
        self._not_before = 0.0
        self._load_took = 0.0
        self._looked_at = 0.0
        self._closed = threading.Event()
        self._spawner: _Spawner | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def info(self) -> EngineInfo:
        """What the engine said when it was loaded last.

        Raises:
            EngineUnavailable: it never was.
        """
        if self._info is None:
            raise EngineUnavailable(f"engine {self._engine} has not been loaded yet")
        return self._info

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None while there is none."""
        child = self._child
        return None if child is None else child.process.pid

    def start(self, *, stop: Callable[[], bool] | None = None) -> EngineInfo:
        """Load the engine and wait until it is ready. Does nothing when it is.

        Raises:
            EngineUnavailable: unknown, not installed, damaged, died while loading, or too slow to load.
            Interrupted: `stop` said so, or the host was closed.
        """
        look = stop or _never
        self._take_turn(look)
        try:
            self._ready(look)
            return self.info
        finally:
            self._give_turn()

    def synthesize(
        self, request: SynthesisRequest, *, stop: Callable[[], bool] | None = None
    ) -> Iterator[Samples]:
        """Yield the audio of one call as it comes.

        To leave early, close the iterator or let `stop` return True; either way the next call starts clean.
        The engine is asked to stop at its next piece of audio, and killed where it has not got there in
        `patience` seconds.

        Raises:
            EngineError: what the engine raised; `EngineTimedOut` after `chunk_seconds`; `EngineDied`.
            Interrupted: `stop` said so, or the host was closed.
        """
        look = stop or _never
        self._take_turn(look)
        try:
            child = self._ready(look)
            budget = _Budget(self._chunk_seconds)
            ended = False
            try:
                yield from self._answers(child, request, budget, look)
                ended = True
            except EngineError:
                ended = True
                raise
            finally:
                if not ended:
                    self._settle(child, budget)
            self._failures = 0
        finally:
            self._give_turn()

    def close(self) -> None:
        """End the child and wait for it. A call in progress raises `Interrupted`. May be repeated."""
        self._closed.set()
        # An idle child ends by itself when its input does; one that is in a call is not asked.
        if self._turn.acquire(blocking=False):
            patience = GRACE_SECONDS
        else:
            if (child := self._child) is not None:
                child.kill()
            # The caller sees it within one look; one that holds a half-read iterator and does nothing puts
            # the rest away when it closes that.
            if not self._turn.acquire(timeout=GRACE_SECONDS):
                return
            patience = 0.0
        try:
            self._put_away(patience)
        finally:
            self._turn.release()

    def _take_turn(self, stop: Callable[[], bool]) -> None:
        if self._owner == threading.get_ident():
            raise RuntimeError("an iterator of this host is still open in this thread; close it first")
        while not self._turn.acquire(timeout=LOOK_SECONDS):
            self._look(stop)
        self._owner = threading.get_ident()

    def _give_turn(self) -> None:
        if self._closed.is_set():
            self._put_away(0.0)
        self._owner = None
        self._turn.release()

    def _put_away(self, patience: float) -> None:
        """End everything that the host started; the turn is held."""
        self._retire(self._child, patience=patience)
        if self._spawner is not None:
            self._spawner.close()
            self._spawner = None

    def _look(self, stop: Callable[[], bool]) -> None:
        if self._closed.is_set():
            raise Interrupted("the engine host is closed")
        if stop():
            raise Interrupted("stopped")

    def _ready(self, stop: Callable[[], bool]) -> _Child:
        """Return a living child, started if there is none."""
        if self._child is not None and not self._child.idle():
            self._died(self._child)
        self._look(stop)
        if self._child is not None:
            return self._child
        while time.monotonic() < self._not_before:
            self._closed.wait(LOOK_SECONDS)
            self._look(stop)
        try:
            return self._load(stop)
        except EngineError:
            self._postpone()
            raise

    def _load(self, stop: Callable[[], bool]) -> _Child:
        if self._spawner is None:
            self._spawner = _Spawner()
        begun = time.monotonic()
        child = self._spawner.spawn(self._engine, nice=self._nice, environ=self._environ)
        self._child = child
        loaded = False
        try:
            child.send(Frame(Kind.OPTIONS, json.dumps(self._options).encode()), timeout=self._load_seconds)
            frame = self._wait(child, _Budget(self._load_seconds), stop)
            if frame is None:
                raise EngineUnavailable(
                    f"engine {self._engine} was not ready within {self._load_seconds:g} s"
                )
            if frame.kind is Kind.ERROR:
                raise wire.error(frame)
            self._info = EngineInfo.from_json(frame.payload)
            self._load_took = time.monotonic() - begun
            loaded = True
        except (WireClosed, WireCorrupt, TimeoutError) as error:
            self._look(_never)
            raise EngineUnavailable(f"engine {self._engine} died while loading: {child.end()}") from error
        finally:
            if not loaded:
                self._retire(child)
        return child

    def _answers(
        self, child: _Child, request: SynthesisRequest, budget: _Budget, stop: Callable[[], bool]
    ) -> Iterator[Samples]:
        try:
            child.ask(request, timeout=budget.left)
            while (frame := self._wait(child, budget, stop)) is not None:
                if frame.kind is Kind.DONE:
                    return
                if frame.kind is Kind.ERROR:
                    raise wire.error(frame)
                yield wire.samples(frame)
        except (WireClosed, WireCorrupt) as error:
            self._look(_never)
            raise self._died(child) from error
        except TimeoutError:
            pass
        self._retire(child)
        self._postpone()
        raise EngineTimedOut(
            f"engine {self._engine} took longer than {self._chunk_seconds:g} s and was killed"
        )

    def _wait(self, child: _Child, budget: _Budget, stop: Callable[[], bool]) -> Frame | None:
        """Return the next frame, or None once the budget is used up. The time of `stop` is the caller's."""
        while budget.left > 0:
            # Also while frames come thick and fast. Never between a frame and its return: one that says that
            # the call is over would be waited for in vain.
            if time.monotonic() - self._looked_at >= LOOK_SECONDS:
                self._look(stop)
                self._looked_at = time.monotonic()
            before = time.monotonic()
            frame = child.reader.read(min(LOOK_SECONDS, budget.left))
            budget.left -= time.monotonic() - before
            if frame is not None:
                return frame
        return None

    def _settle(self, child: _Child, budget: _Budget) -> None:
        """Make sure that nothing of an abandoned call reaches the next one."""
        if self._child is not child:
            return
        end = time.monotonic() + patience(load_seconds=self._load_took, left=budget.left)
        try:
            child.cancel(timeout=GRACE_SECONDS)
            while not self._closed.is_set() and (left := end - time.monotonic()) > 0:
                frame = child.reader.read(min(LOOK_SECONDS, left))
                if frame is not None and frame.kind in (Kind.DONE, Kind.ERROR):
                    return
        except (WireClosed, WireCorrupt, TimeoutError):
            log.debug("engine %s ended in an abandoned call", self._engine)
        self._retire(child)

    def _died(self, child: _Child) -> EngineDied:
        how = child.end()
        log.warning("engine %s died: %s", self._engine, how)
        self._retire(child)
        self._postpone()
        return EngineDied(f"engine {self._engine} died: {how}")

    def _postpone(self) -> None:
        wait = min(BACKOFF_LIMIT_SECONDS, BACKOFF_SECONDS * 2 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = time.monotonic() + wait

    def _retire(self, child: _Child | None, *, patience: float = 0.0) -> None:
        if child is None:
            return
        child.retire(patience)
        if self._child is child:
            self._child = None


def patience(*, load_seconds: float, left: float) -> float:
    """Return how many seconds to wait for a cancelled call to end before its child is killed.

    A kill costs the next call a load, so that waiting pays for as long as the last load took. `left` is what
    the call had before its own limit; it would have been killed then in any case.
    """
    return max(0.0, min(max(load_seconds, GRACE_SECONDS), PATIENCE_SECONDS, left))


@dataclass(slots=True)
class _Budget:
    """Seconds that may still be spent waiting for one answer."""

    left: float


class _Child:
    """A process and its pipes."""

    def __init__(self, engine: str, *, nice: int, environ: Mapping[str, str]) -> None:
        request_out, self._requests = os.pipe()
        answers, answer_in = os.pipe()
        self._answers = answers
        command = [
            sys.executable,
            "-P",
            "-m",
            "speech.child",
            engine,
            "--fds",
            str(request_out),
            str(answer_in),
        ]
        try:
            self.process = subprocess.Popen(
                [*command, "--parent", str(os.getpid()), "--nice", str(nice)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(request_out, answer_in),
                env=dict(environ),
            )
        except OSError:
            os.close(self._requests)
            os.close(answers)
            raise
        finally:
            os.close(request_out)
            os.close(answer_in)
        os.set_blocking(self._requests, False)
        self.reader = FrameReader(answers)
        #: How many there were so far, which is the number of the last one.
        self._requests_sent = 0
        self._retired = False
        self._listener = threading.Thread(
            target=_listen, args=(self.process, engine), name=f"{engine}-output", daemon=True
        )
        self._listener.start()

    def send(self, frame: Frame, *, timeout: float) -> None:
        wire.write(self._requests, frame, timeout=timeout)

    def ask(self, request: SynthesisRequest, *, timeout: float) -> None:
        self._requests_sent += 1
        self.send(Frame(Kind.REQUEST, request.to_json().encode()), timeout=timeout)

    def cancel(self, *, timeout: float) -> None:
        """Ask it to end the last request, which may be over."""
        self.send(wire.cancel(self._requests_sent), timeout=timeout)

    def idle(self) -> bool:
        """Whether it lives and, as it should between calls, sends nothing (an end of file is something)."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return self.process.poll() is None and not poll.poll(0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> str:
        """Say how it ended; it is killed if it has not."""
        try:
            code = self.process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its pipe"
        if code >= 0:
            return f"exit code {code}"
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"

    def retire(self, patience: float) -> None:
        """End its input, then, after `patience` seconds, itself; close everything."""
        if self._retired:
            return
        self._retired = True
        os.close(self._requests)
        try:
            self.process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            self.kill()
        os.close(self._answers)
        self._listener.join(timeout=GRACE_SECONDS)


class _Spawner:
    """The one thread that starts children: the kernel kills a child when the thread that started it ends.

    https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Future[_Child], Callable[[], _Child]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="engine-spawner", daemon=True)
        self._thread.start()

    def spawn(self, engine: str, *, nice: int, environ: Mapping[str, str]) -> _Child:
        """Start a child.

        Raises:
            EngineUnavailable: the system cannot start a process.
        """
        made: Future[_Child] = Future()
        self._orders.put((made, lambda: _Child(engine, nice=nice, environ=environ)))
        return made.result()

    def close(self) -> None:
        """End the thread. Every child must have ended."""
        self._orders.put(None)
        self._thread.join(timeout=GRACE_SECONDS)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            made, make = order
            try:
                made.set_result(make())
            except OSError as error:
                made.set_exception(EngineUnavailable(f"no process can be started: {error}"))


def _listen(process: subprocess.Popen[bytes], engine: str) -> None:
    """Log what the child prints, line by line, until it ends."""
    if process.stdout is None:
        return
    with process.stdout as output:
        while line := output.readline(LINE_BYTES):
            log.info("%s[%d]: %s", engine, process.pid, line.decode(errors="replace").rstrip())


def _never() -> bool:
    return False
