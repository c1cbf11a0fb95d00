"""The process of one engine: `python -m speech.child ENGINE --fds IN OUT --parent PID --nice N`.

Its main thread loads the engine and generates, one request at a time, until its input ends (`speech.wire`).
It dies with its worker, and leaves the worker's signals to the worker.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from speech import wire
from speech.checks import check_request
from speech.diagnosis import diagnose
from speech.engine import (
    Engine,
    EngineError,
    EngineFailed,
    EngineUnavailable,
    FreesMemory,
    KeepsVoice,
    OutOfMemory,
    SynthesisRequest,
    TellsMemory,
)
from speech.niceness import give_way
from speech.registry import UnknownEngine, find
from speech.wire import Frame, FrameReader, Kind, WireClosed, WireCorrupt

#: prctl(2)
PR_SET_PDEATHSIG: Final = 1

log = logging.getLogger("voxfleet.engine")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve one engine until the worker closes the pipe."""
    parser = argparse.ArgumentParser(prog="speech.child")
    parser.add_argument("engine")
    parser.add_argument("--fds", nargs=2, type=int, required=True, metavar=("IN", "OUT"))
    parser.add_argument("--parent", type=int, required=True, help="process id of the worker")
    parser.add_argument("--nice", type=int, default=0)
    given = parser.parse_args(arguments)
    _settle_in(parent=given.parent, nice=given.nice)
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    requests, answers = given.fds
    reader = FrameReader(requests)
    try:
        engine = _load(given.engine, reader, answers)
        return 1 if engine is None else _serve(engine, reader, answers)
    except WireClosed:
        return 0


def _settle_in(*, parent: int, nice: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # The worker died before the line above.
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    give_way(nice)
    # A core of several GB of weights helps nobody.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    os.dup2(2, 1)


def _load(name: str, reader: FrameReader, answers: int) -> Engine | None:
    frame = reader.read()
    if frame is None or frame.kind is not Kind.OPTIONS:
        return None
    try:
        engine = find(name).load(json.loads(frame.payload))
    except EngineError as error:
        wire.write(answers, wire.failure(error))
        return None
    except UnknownEngine as error:
        wire.write(answers, wire.failure(EngineUnavailable(str(error))))
        return None
    except Exception as error:  # the top of this process
        log.exception("engine %s cannot be loaded", name)
        said = f"{type(error).__name__}: {error}"
        if diagnose(error).memory:
            said = f"out of memory while loading: {said}"
        wire.write(answers, wire.failure(EngineUnavailable(said)))
        return None
    wire.write(answers, Frame(Kind.READY, engine.info.to_json().encode()))
    return engine


def _serve(engine: Engine, reader: FrameReader, answers: int) -> int:
    number = 0
    try:
        while True:
            frame = reader.read()
            if frame is not None and frame.kind is Kind.CANCEL:
                # It crossed the end of its request.
                continue
            if frame is None or frame.kind is not Kind.REQUEST:
                return 1
            number += 1
            request = SynthesisRequest.from_json(frame.payload)
            problem, fatal = _answer(
                engine, request, answers, is_cancelled=partial(_is_cancelled, reader, number)
            )
            if problem is None:
                held = engine.device_bytes() if isinstance(engine, TellsMemory) else 0
                wire.write(answers, wire.done(device_bytes=held))
                continue
            wire.write(answers, wire.failure(problem, fatal=fatal))
            if fatal:
                return 1
            # Out here the traceback, which holds the engine's frames and their tensors, is gone. After the
            # answer: where even this fails the process ends, and the answer is known.
            gc.collect()
            if isinstance(engine, FreesMemory):
                engine.free()
    finally:
        engine.close()


def _is_cancelled(reader: FrameReader, number: int) -> bool:
    """Whether the request in hand is not wanted any more; never waits.

    Raises:
        WireClosed: nobody is there to want it.
        WireCorrupt: something else than a cancellation came.
    """
    while (frame := reader.read(timeout=0)) is not None:
        if frame.kind is not Kind.CANCEL:
            raise WireCorrupt(f"{frame.kind.name} in the middle of a request")
        if wire.cancels(frame, number):
            return True
    return False


def _answer(
    engine: Engine, request: SynthesisRequest, answers: int, *, is_cancelled: Callable[[], bool]
) -> tuple[EngineError | None, bool]:
    """Send the audio of one request; return what went wrong, and whether the process must end for it."""
    whole = False
    try:
        check_request(request, engine.info)
        pieces = engine.synthesize(request)
        try:
            for samples in pieces:
                for frame in wire.pcm(samples):
                    wire.write(answers, frame)
                if is_cancelled():
                    break
            else:
                whole = True
        finally:
            # What a generator holds is given back now, on this thread, and not when it is collected.
            if isinstance(pieces, Generator):
                pieces.close()
        if whole and request.keeps_voice and isinstance(engine, KeepsVoice):
            state = engine.voice_state()
            if state is not None:
                wire.write(answers, Frame(Kind.STATE, state))
    except (WireClosed, WireCorrupt):
        raise
    except EngineError as error:
        return type(error)(*error.args), False
    except Exception as error:  # the top of this process
        log.exception("the engine failed")
        found = diagnose(error)
        said = f"{type(error).__name__}: {error}"
        return (OutOfMemory if found.memory else EngineFailed)(said), found.fatal
    return None, False


if __name__ == "__main__":
    sys.exit(main())
