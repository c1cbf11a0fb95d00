"""A speech server on a loopback port that answers as a test says: whole, cut, late, or without end."""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np

RATE = 24_000
UNKNOWN = 0xFFFF_FFFF
SUBTYPE_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def tone(seconds: float = 0.5, *, rate: int = RATE, peak: float = 0.5) -> np.ndarray:
    """Return a tone of 440 Hz, float32."""
    wave = np.sin(2 * np.pi * 440 / rate * np.arange(round(seconds * rate)))
    return np.asarray(peak * wave, dtype=np.float32)


def pcm16(samples: np.ndarray) -> bytes:
    return np.round(samples * 32767).astype("<i2").tobytes()


def chunk(mark: bytes, body: bytes) -> bytes:
    """Return a chunk of a RIFF file, with its byte of padding."""
    return mark + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def form(
    *, tag: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, extensible: bool = False
) -> bytes:
    """Return a `fmt ` chunk."""
    frame = channels * bits // 8
    body = struct.pack("<HHIIHH", 0xFFFE if extensible else tag, channels, rate, rate * frame, frame, bits)
    if extensible:
        body += struct.pack("<HHIH", 22, bits, 0, tag) + SUBTYPE_TAIL
    return chunk(b"fmt ", body)


def wav(data: bytes, *, length: int | None = None, before: bytes = b"", after: bytes = b"", **kind) -> bytes:
    """Return a WAV file.

    Args:
        data: the samples, as `kind` has them.
        length: what the header says of it; None for the truth.
        before: chunks between the format and the samples.
    """
    size = len(data) if length is None else length
    head = form(**kind) + before + b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", UNKNOWN) + b"WAVE" + head + data + after


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    #: A test that forgets to close its engine is slow, and ends.
    timeout = 10
    server: Listener

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int, **headers: str) -> None:
        """Send status and headers; `content_type` is `Content-Type`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def drop(self) -> None:
        """Close the connection after this answer, whatever was promised."""
        self.close_connection = True

    def _answer(self) -> None:
        size = int(self.headers.get("Content-Length", "0"))
        body = json.loads(self.rfile.read(size)) if size else {}
        self.server.fake.serve(self, Asked(self.command, self.path, dict(self.headers), body))


class Listener(ThreadingHTTPServer):
    """Joins its threads when it is closed."""

    daemon_threads = False

    def __init__(self, fake: SpeechServer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fake = fake

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that leaves resets the connection, between two requests too.
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


#: What the server does with one request.
Answer = Callable[[Handler], None]


@dataclass
class SpeechServer:
    """A server on 127.0.0.1.

    Attributes:
        usual: answers every speech request that has no answer of its own in `next`.
        voices: answers `GET /v1/audio/voices`.
        next: answers to the next speech requests.
        asked: every request so far.
        left: set when a client went away before the end of an endless answer.
    """

    usual: Answer
    voices: Answer
    next: list[Answer] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)
    #: Ends whoever waits or sends without end.
    closing: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._listener = Listener(self)
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_port}/v1"

    @property
    def spoken(self) -> list[dict[str, Any]]:
        """The bodies of all speech requests."""
        return [asked.body for asked in self.asked if asked.method == "POST"]

    def serve(self, handler: Handler, asked: Asked) -> None:
        self.asked.append(asked)
        ready = [self.voices] if asked.method == "GET" else self.next or [self.usual]
        # Of `next` the answer is taken away.
        answer = ready.pop(0)
        try:
            answer(handler)
        except (BrokenPipeError, ConnectionResetError):
            handler.drop()
            self.left.set()

    # Answers that end when the server does.

    def late(self, seconds: float, answer: Answer) -> Answer:
        """Answer after so many seconds."""

        def serve(handler: Handler) -> None:
            self.closing.wait(seconds)
            answer(handler)

        return serve

    def endless(self, head: bytes, part: bytes, *, pause: float = 0.0, kind: str = "audio/wav") -> Answer:
        """Send `head`, then `part` for ever."""

        def serve(handler: Handler) -> None:
            handler.begin(200, Content_Type=kind, Transfer_Encoding="chunked")
            send_chunk(handler, head)
            while not self.closing.wait(pause):
                send_chunk(handler, part)
            handler.drop()

        return serve

    def stuck(self, head: bytes) -> Answer:
        """Send `head`, then nothing."""

        def serve(handler: Handler) -> None:
            handler.begin(200, Content_Type="audio/wav", Transfer_Encoding="chunked")
            send_chunk(handler, head)
            self.closing.wait(10)
            handler.drop()

        return serve


def send_chunk(handler: Handler, part: bytes) -> None:
    if part:
        handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")


def reply(status: int, body: bytes | object, **headers: str) -> Answer:
    """Answer whole; anything but bytes is sent as JSON."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"

    def serve(handler: Handler) -> None:
        handler.begin(status, **{"Content_Type": kind, "Content_Length": str(len(sent)), **headers})
        handler.wfile.write(sent)

    return serve


def audio(body: bytes, kind: str = "audio/wav") -> Answer:
    """Answer with a whole body."""
    return reply(200, body, Content_Type=kind)


def streamed(parts: Iterable[bytes], *, pause: float = 0.0, end: bytes = b"0\r\n\r\n") -> Answer:
    """Answer in HTTP chunks.

    Args:
        end: what follows them; the end of a chunked body, when it is whole.
    """

    def serve(handler: Handler) -> None:
        handler.begin(200, Content_Type="audio/wav", Transfer_Encoding="chunked")
        for part in parts:
            send_chunk(handler, part)
            time.sleep(pause)
        handler.wfile.write(end)
        if end != b"0\r\n\r\n":
            handler.drop()

    return serve


def cut(body: bytes, *, promised: int, kind: str = "audio/wav") -> Answer:
    """Promise so many bytes, send fewer, and close the connection."""

    def serve(handler: Handler) -> None:
        handler.begin(200, Content_Type=kind, Content_Length=str(promised))
        handler.wfile.write(body)
        handler.drop()

    return serve


def unmarked(body: bytes, kind: str = "audio/wav") -> Answer:
    """Answer with a body that ends where the connection does, as HTTP/1.0 has it."""

    def serve(handler: Handler) -> None:
        handler.begin(200, Content_Type=kind)
        handler.wfile.write(body)
        handler.drop()

    return serve


def hang_up(handler: Handler) -> None:
    """Close the connection without a word."""
    handler.drop()
