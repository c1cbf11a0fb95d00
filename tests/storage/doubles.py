"""Servers that misbehave, and bodies that are awkward to read."""

from __future__ import annotations

import io
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import BinaryIO, Final, cast
from urllib.parse import parse_qs, urlsplit

#: What a store from before checksums answers 400 to; by default boto3 sends some of them.
UNKNOWN_HEADERS: Final = re.compile(
    r"x-amz-(checksum-.*|sdk-checksum-algorithm|trailer|decoded-content-length)"
)


def stream(size: int, *, piece: int = 1 << 16, fails_at: int | None = None) -> BinaryIO:
    """Return a body without length or `seek`, read in pieces of at most `piece` as from a pipe.

    From byte `fails_at` on, reading it raises `BrokenPipeError`.
    """
    return cast(BinaryIO, _Stream(size, piece=piece, fails_at=fails_at))


class _Stream(io.RawIOBase):
    def __init__(self, size: int, *, piece: int, fails_at: int | None) -> None:
        self._left = size
        self._given = 0
        self._piece = piece
        self._fails_at = fails_at

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            return b"".join(iter(lambda: self.read(self._piece), b""))
        if self._fails_at is not None and self._given >= self._fails_at:
            raise BrokenPipeError("the encoder died")
        count = min(size, self._piece, self._left)
        piece = pattern(self._given, count)
        self._given += count
        self._left -= count
        return piece


def pattern(start: int, count: int) -> bytes:
    """Return `count` bytes of a sequence that no multiple of a part's size repeats (251 is prime)."""
    period = bytes(range(251))
    first = start % 251
    return (period * (count // 251 + 2))[first : first + count]


@contextmanager
def cutting_proxy(port: int, *, after: int) -> Iterator[int]:
    """Give the port of a TCP proxy to `port` that cuts each connection after `after` bytes of answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    threads: list[threading.Thread] = []

    def pump(source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        try:
            while data := source.recv(1 << 14):
                if limit is not None:
                    data = data[: limit - passed]
                passed += len(data)
                sink.sendall(data)
                if passed == limit:
                    break
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def serve(client: socket.socket) -> None:
        with closing(client), closing(socket.create_connection(("127.0.0.1", port))) as server:
            asking = threading.Thread(target=pump, args=(client, server, None))
            asking.start()
            pump(server, client, after)
            asking.join()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=serve, args=(client,))
            threads.append(thread)
            thread.start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for thread in threads:
            thread.join()


@contextmanager
def silent_server() -> Iterator[int]:
    """Give the port of a server that accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


class OldS3(ThreadingHTTPServer):
    """An S3 store that refuses what it does not know, and can be told to refuse all.

    Attributes:
        objects: what was stored, by path.
        refuses: (status, code) to answer every request with.
        asked: how many requests came.
    """

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _OldS3Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[int, bytes] = {}
        self.refuses: tuple[int, str] | None = None
        self.asked = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def old_s3() -> Iterator[OldS3]:
    """Run an `OldS3`."""
    with OldS3() as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join()


class _OldS3Handler(BaseHTTPRequestHandler):
    server: OldS3
    #: The client waits a second for `100 Continue`, which 1.0 never says.
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        path, query = self._target()
        if "partNumber" in query:
            self.server.parts[int(query["partNumber"][0])] = body
        else:
            self.server.objects[path] = body
        self._answer(200)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._refused():
            return
        path, query = self._target()
        if "uploads" in query:
            self._answer(
                200, "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
            )
            return
        self.server.objects[path] = b"".join(body for _, body in sorted(self.server.parts.items()))
        self._answer(200, "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")

    def do_GET(self) -> None:
        if not self._refused():
            self._answer(404, "<Error><Code>NoSuchKey</Code></Error>")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def _target(self) -> tuple[str, dict[str, list[str]]]:
        url = urlsplit(self.path)
        return url.path, parse_qs(url.query, keep_blank_values=True)

    def _refused(self) -> bool:
        self.server.asked += 1
        if self.server.refuses is not None:
            status, code = self.server.refuses
            self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>")
            return True
        streamed = "aws-chunked" in self.headers.get("Content-Encoding", "") or self.headers.get(
            "x-amz-content-sha256", ""
        ).startswith("STREAMING")
        if streamed or any(UNKNOWN_HEADERS.fullmatch(name.lower()) for name in self.headers):
            self._answer(400, "<Error><Code>InvalidArgument</Code><Message>unknown header</Message></Error>")
            return True
        return False

    def _answer(self, status: int, body: str = "") -> None:
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
