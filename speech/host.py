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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from speech import wire
from speech.engine import (
    EngineDied,
    EngineError,
    EngineInfo,
    EngineTimedOut,
    EngineUnavailable,
    OutOfMemory,
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
#: Calls after which what a child holds is taken as what it needs: caches and arenas have filled by then.
WARM_CALLS: Final = 8

#: One single-thread engine per core beats one engine with all cores; a set variable wins.
THREADS: Final[dict[str, str]] = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

log = logging.getLogger("voxfleet.engine")


class Interrupted(Exception):
    """`stop` said so, or the host was closed: the call gave no whole clip, and nothing is wrong with it."""


class NoAudioYet(Exception):
    """Nothing was heard in the time that the caller gave the first piece; `settle` ends what is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a child is replaced by a fresh one, between two calls; None where it never is.

    Attributes:
        calls: after so many.
        growth_bytes: when its memory, resident or on its device, has grown by so much since `WARM_CALLS`.
    """

    calls: int | None = None
    growth_bytes: int | None = None


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
        lifetime: when a child has served long enough; without one it never has.
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
        lifetime: Lifetime | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._engine = engine
        self._options = dict(options)
        self._nice = nice
        self._chunk_seconds = chunk_seconds
        self._load_seconds = load_seconds
        self._lifetime = lifetime or Lifetime()
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
        #: The call that its caller has left, while it may go on; and until when it may.
        self._abandoned: tuple[_Child, float] | None = None
        self._ends: Counter[str] = Counter()

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

    @property
    def ends(self) -> Mapping[str, int]:
        """How many children ended, by cause: `died`, `killed` (by the kernel, most often for memory),
        `timed_out`, `poisoned`, `recycled`, `restarted`.
        """
        return dict(self._ends)

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
        self,
        request: SynthesisRequest,
        *,
        stop: Callable[[], bool] | None = None,
        seconds: float | None = None,
        first_audio_seconds: float | None = None,
        keep: Callable[[bytes], None] | None = None,
    ) -> Iterator[Samples]:
        """Yield the audio of one call as it comes.

        To leave early, close the iterator or let `stop` return True; either way the next call starts clean.
        The engine is asked to stop at its next piece of audio, and killed where it has not got there in
        `patience` seconds.

        Args:
            stop: asked some twenty times a second.
            seconds: how long the call may make the caller wait, where that is less than `chunk_seconds`.
            first_audio_seconds: how long the first piece may be waited for, a load included. After that
                `NoAudioYet` rises at once; what is under way is ended by `settle`, or by the next call.
            keep: gets the voice state, where the request asks for it and the engine has one.

        Raises:
            EngineError: what the engine raised; `EngineTimedOut`; `EngineDied`; `OutOfMemory` also where the
                kernel killed the child.
            Interrupted: `stop` said so, or the host was closed.
            NoAudioYet
        """
        waited = _Waited(time.monotonic(), first_audio_seconds)
        look = waited.watch(stop or _never)
        self._take_turn(look)
        try:
            child = self._ready(look)
            allowed = self._chunk_seconds if seconds is None else min(seconds, self._chunk_seconds)
            budget = _Budget(allowed)
            ended = False
            try:
                for samples in self._answers(child, request, budget, look, keep):
                    waited.over = True
                    yield samples
                ended = True
            except EngineError:
                ended = True
                raise
            except NoAudioYet:
                ended = True
                self._abandon(child, budget)
                raise
            finally:
                if not ended:
                    self._abandon(child, budget)
                    self._settle()
            self._failures = 0
        finally:
            self._give_turn()

    def settle(self) -> None:
        """Wait until a call that was given up has ended, or end its child. Nothing to do otherwise."""
        self._take_turn(_never)
        try:
            self._settle()
        finally:
            self._give_turn()

    def restart(self) -> None:
        """End the child; the next call loads a fresh one at once. What it held on its device is free then."""
        self._take_turn(_never)
        try:
            self._abandoned = None
            if self._child is not None:
                self._ends["restarted"] += 1
                self._retire(self._child)
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
        """Return a living child that is loaded, started if there is none."""
        self._settle()
        child = self._child
        if child is not None and child.is_loaded:
            if child.idle() and not self._has_served(child):
                self._look(stop)
                return child
            if self._child is not None:
                self._died(child)
        self._look(stop)
        if self._child is None:
            while time.monotonic() < self._not_before:
                self._closed.wait(LOOK_SECONDS)
                self._look(stop)
        try:
            return self._load(stop)
        except EngineError:
            self._postpone()
            raise

    def _load(self, stop: Callable[[], bool]) -> _Child:
        """Return a loaded child. One that is loading when the caller leaves goes on: a load may take longer
        than any caller waits.
        """
        if self._spawner is None:
            self._spawner = _Spawner()
        child = self._child
        if child is None:
            child = self._spawner.spawn(self._engine, nice=self._nice, environ=self._environ)
            self._child = child
            child.budget = _Budget(self._load_seconds)
        waits = False
        try:
            if not child.is_asked:
                child.is_asked = True
                child.send(
                    Frame(Kind.OPTIONS, json.dumps(self._options).encode()), timeout=self._load_seconds
                )
            frame = self._wait(child, child.budget, stop)
            if frame is None:
                raise EngineUnavailable(
                    f"engine {self._engine} was not ready within {self._load_seconds:g} s"
                )
            if frame.kind is Kind.ERROR:
                raise wire.error(frame)
            self._info = EngineInfo.from_json(frame.payload)
            self._load_took = time.monotonic() - child.begun_at
            child.is_loaded = True
        except (WireClosed, WireCorrupt, TimeoutError) as error:
            self._look(_never)
            raise EngineUnavailable(f"engine {self._engine} died while loading: {child.end().how}") from error
        except (Interrupted, NoAudioYet):
            waits = not self._closed.is_set()
            raise
        finally:
            if not child.is_loaded and not waits:
                self._retire(child)
        return child

    def _has_served(self, child: _Child) -> bool:
        """Replace a child that has served long enough; say whether it was."""
        limits = self._lifetime
        if limits.calls is not None and child.calls >= limits.calls:
            reason = f"{child.calls} calls"
        elif limits.growth_bytes is not None and child.growth() > limits.growth_bytes:
            reason = f"its memory grew by {child.growth() // 1_000_000} MB in {child.calls} calls"
        else:
            return False
        log.info("engine %s is replaced after %s", self._engine, reason)
        self._ends["recycled"] += 1
        self._retire(child, patience=GRACE_SECONDS)
        return True

    def _answers(
        self,
        child: _Child,
        request: SynthesisRequest,
        budget: _Budget,
        stop: Callable[[], bool],
        keep: Callable[[bytes], None] | None,
    ) -> Iterator[Samples]:
        allowed = budget.left
        try:
            child.ask(request, timeout=budget.left)
            while (frame := self._wait(child, budget, stop)) is not None:
                if frame.kind is Kind.DONE:
                    child.served(device_bytes=wire.device_bytes(frame))
                    return
                if frame.kind is Kind.ERROR:
                    child.served(device_bytes=None)
                    if wire.is_fatal(frame):
                        self._ends["poisoned"] += 1
                        self._retire(child, patience=GRACE_SECONDS)
                        self._postpone()
                    raise wire.error(frame)
                if frame.kind is Kind.STATE:
                    if keep is not None:
                        keep(frame.payload)
                    continue
                yield wire.samples(frame)
        except (WireClosed, WireCorrupt) as error:
            self._look(_never)
            raise self._died(child) from error
        except TimeoutError:
            pass
        self._ends["timed_out"] += 1
        self._retire(child)
        self._postpone()
        raise EngineTimedOut(f"engine {self._engine} took longer than {allowed:.3g} s and was killed")

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

    def _abandon(self, child: _Child, budget: _Budget) -> None:
        """Ask the child to end a call that nobody waits for."""
        if self._child is not child:
            return
        self._abandoned = child, time.monotonic() + patience(load_seconds=self._load_took, left=budget.left)
        try:
            child.cancel(timeout=GRACE_SECONDS)
        except (WireClosed, TimeoutError):
            log.debug("engine %s takes no cancellation", self._engine)

    def _settle(self) -> None:
        """Make sure that nothing of an abandoned call reaches the next one."""
        if self._abandoned is None:
            return
        (child, end), self._abandoned = self._abandoned, None
        if self._child is not child:
            return
        try:
            while not self._closed.is_set() and (left := end - time.monotonic()) > 0:
                frame = child.reader.read(min(LOOK_SECONDS, left))
                if frame is not None and frame.kind in (Kind.DONE, Kind.ERROR):
                    if frame.kind is Kind.ERROR and wire.is_fatal(frame):
                        break
                    return
        except (WireClosed, WireCorrupt):
            log.debug("engine %s ended in an abandoned call", self._engine)
        self._retire(child)

    def _died(self, child: _Child) -> EngineDied | OutOfMemory:
        end = child.end()
        log.warning("engine %s died: %s", self._engine, end.how)
        self._ends["killed" if end.by_kernel else "died"] += 1
        self._retire(child)
        self._postpone()
        if end.by_kernel:
            # Nobody else sends SIGKILL to it but the kernel that runs out of memory, or an operator.
            return OutOfMemory(f"engine {self._engine} was killed ({end.how}), as for want of memory")
        return EngineDied(f"engine {self._engine} died: {end.how}")

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


@dataclass(slots=True)
class _Waited:
    """How long the first piece of a call has been waited for."""

    since: float
    limit: float | None
    #: It is there.
    over: bool = False

    def watch(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        """Return `stop`, which raises `NoAudioYet` as well."""

        def look() -> bool:
            if not self.over and self.limit is not None and time.monotonic() - self.since > self.limit:
                raise NoAudioYet(f"no audio within {self.limit:.3g} s")
            return stop()

        return look


@dataclass(frozen=True, slots=True)
class _End:
    """How a child ended.

    Attributes:
        by_kernel: by a SIGKILL that was not ours.
    """

    how: str
    by_kernel: bool = False


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
        self.begun_at = time.monotonic()
        self.budget = _Budget(0.0)
        #: Whether it was told what to load, and whether it has.
        self.is_asked = self.is_loaded = False
        #: Calls that it answered, and what it holds in memory, then and now, resident and on its device.
        self.calls = 0
        self._warm = self._now = (0, 0)
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

    def served(self, *, device_bytes: int | None) -> None:
        """Count a call; `device_bytes` is None where it did not say what it holds on its device."""
        self.calls += 1
        self._now = _resident_bytes(self.process.pid), self._now[1] if device_bytes is None else device_bytes
        if self.calls <= WARM_CALLS:
            self._warm = self._now

    def growth(self) -> int:
        """Return by how many bytes it has grown since it was warm, where it has grown most."""
        return max(now - then for now, then in zip(self._now, self._warm, strict=True))

    def idle(self) -> bool:
        """Whether it lives and, as it should between calls, sends nothing (an end of file is something)."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return self.process.poll() is None and not poll.poll(0)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> _End:
        """Say how it ended; it is killed if it has not."""
        try:
            code = self.process.wait(timeout=GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return _End("it closed its pipe")
        if code >= 0:
            return _End(f"exit code {code}")
        try:
            return _End(f"killed by {signal.Signals(-code).name}", by_kernel=-code == signal.SIGKILL)
        except ValueError:
            return _End(f"killed by signal {-code}")

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


def _resident_bytes(pid: int) -> int:
    """Return how much memory a process holds; 0 where it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _never() -> bool:
    return False
