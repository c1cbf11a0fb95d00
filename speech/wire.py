"""Frames between a worker and its engine child, over two pipes.

A frame is one byte of kind, four bytes of payload length (big endian), and the payload: JSON, except
`PCM`, which is float32 little endian, and `STATE`, which is the engine's own. The worker sends `OPTIONS`
once, then one `REQUEST` at a time; the child answers `OPTIONS` with `READY` or `ERROR`, and a request with
any number of `PCM`, then `STATE` where it was asked for and there is one, then `DONE` or `ERROR`. `CANCEL`
names a request by its number, the first being 1: the child ends that one at the next border between two
pieces, with `DONE`, and takes no notice of one that is over.
"""

from __future__ import annotations

import json
import os
import select
import struct
import time
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from speech.engine import ERRORS, EngineError, EngineFailed, Samples

#: A larger frame is a broken stream. 16 MiB holds 87 s at 48 kHz, and any text.
MAX_PAYLOAD: Final = 16 * 1024 * 1024
#: Longer audio is sent in pieces of this many samples (1 MiB).
PIECE_SAMPLES: Final = 262_144
HEADER: Final = struct.Struct(">cI")


class Kind(Enum):
    """What a frame is."""

    OPTIONS = b"O"
    REQUEST = b"Q"
    CANCEL = b"C"
    READY = b"R"
    PCM = b"P"
    STATE = b"S"
    DONE = b"D"
    ERROR = b"E"


class WireClosed(ConnectionError):
    """The other side is gone: end of file, in or between frames, or a broken pipe."""


class WireCorrupt(ConnectionError):
    """The stream holds something that is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: Kind
    payload: bytes = b""


class FrameReader:
    """Reads frames from a pipe. Not thread-safe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray()
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)

    def read(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, or None when it is not complete within `timeout` seconds (None: wait).

        Raises:
            WireClosed: end of file.
            WireCorrupt: an unknown kind, or a payload above `MAX_PAYLOAD`.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (frame := self._take()) is None:
            wait_ms = None if end is None else max(0.0, end - time.monotonic()) * 1000
            if not self._poll.poll(wait_ms):
                return None
            data = os.read(self._fd, 1 << 20)
            if not data:
                raise WireClosed("end of file in a frame" if self._buffer else "end of file")
            self._buffer += data
        return frame

    def _take(self) -> Frame | None:
        if len(self._buffer) < HEADER.size:
            return None
        mark, length = HEADER.unpack_from(self._buffer)
        try:
            kind = Kind(mark)
        except ValueError:
            raise WireCorrupt(f"a frame of unknown kind {mark!r}") from None
        if length > MAX_PAYLOAD:
            raise WireCorrupt(f"a frame of {length} bytes; at most {MAX_PAYLOAD}")
        end = HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        return Frame(kind, payload)


def write(fd: int, frame: Frame, *, timeout: float | None = None) -> None:
    """Write one frame whole.

    Args:
        timeout: seconds until the other side must have taken it; needs a non-blocking `fd`.

    Raises:
        WireClosed: the other side is gone.
        WireCorrupt: the payload is above `MAX_PAYLOAD`; nothing was written.
        TimeoutError: the other side does not read.
    """
    if len(frame.payload) > MAX_PAYLOAD:
        raise WireCorrupt(f"a frame of {len(frame.payload)} bytes; at most {MAX_PAYLOAD}")
    rest = memoryview(HEADER.pack(frame.kind.value, len(frame.payload)) + frame.payload)
    end = None if timeout is None else time.monotonic() + timeout
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    while rest:
        if end is not None and not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise TimeoutError("the other side of the pipe does not read")
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            continue
        except BrokenPipeError as error:
            raise WireClosed("broken pipe") from error


def pcm(samples: Samples) -> list[Frame]:
    """Return audio as frames."""
    flat = np.ascontiguousarray(samples, dtype="<f4").reshape(-1)
    pieces = range(0, flat.size, PIECE_SAMPLES)
    return [Frame(Kind.PCM, flat[start : start + PIECE_SAMPLES].tobytes()) for start in pieces]


def samples(frame: Frame) -> Samples:
    """Return the audio of a `PCM` frame.

    Raises:
        WireCorrupt: another kind of frame, or not a whole number of samples.
    """
    if frame.kind is not Kind.PCM:
        raise WireCorrupt(f"{frame.kind.name} in the place of audio")
    if len(frame.payload) % 4:
        raise WireCorrupt(f"{len(frame.payload)} bytes are no float32 samples")
    return np.frombuffer(frame.payload, dtype="<f4").astype(np.float32)


def cancel(number: int) -> Frame:
    """Return the frame that cancels the `number`-th request of a child."""
    return Frame(Kind.CANCEL, str(number).encode())


def cancels(frame: Frame, number: int) -> bool:
    """Whether a frame cancels the `number`-th request."""
    return frame.kind is Kind.CANCEL and frame.payload == str(number).encode()


def done(*, device_bytes: int) -> Frame:
    """Return the end of a call that went well.

    Args:
        device_bytes: memory that the child holds on its device.
    """
    return Frame(Kind.DONE, json.dumps({"device_bytes": device_bytes}).encode())


def device_bytes(frame: Frame) -> int:
    """Return what a `DONE` frame says of the device's memory.

    Raises:
        WireCorrupt: the payload says nothing.
    """
    try:
        return int(json.loads(frame.payload)["device_bytes"])
    except (ValueError, KeyError, TypeError) as cause:
        raise WireCorrupt("an end that says nothing") from cause


def failure(error: EngineError, *, fatal: bool = False) -> Frame:
    """Return an engine's error as a frame.

    Args:
        fatal: the child ends after this.
    """
    return Frame(Kind.ERROR, json.dumps({"code": error.code, "message": str(error), "fatal": fatal}).encode())


def error(frame: Frame) -> EngineError:
    """Return the error of an `ERROR` frame; a code that is not known here becomes `EngineFailed`.

    Raises:
        WireCorrupt: the payload is no error.
    """
    code, message, _ = _failure(frame)
    return ERRORS.get(code, EngineFailed)(message)


def is_fatal(frame: Frame) -> bool:
    """Whether the child ends after this `ERROR` frame.

    Raises:
        WireCorrupt: the payload is no error.
    """
    return _failure(frame)[2]


def _failure(frame: Frame) -> tuple[str, str, bool]:
    try:
        body = json.loads(frame.payload)
        return str(body["code"]), str(body["message"]), bool(body["fatal"])
    except (ValueError, KeyError, TypeError) as cause:
        raise WireCorrupt("an error frame that says nothing") from cause
