"""A TCP proxy on loopback that stands in front of a server and harms what passes."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.servers import free_ports

#: Small enough for a slow line to be slow, and not to come in one burst.
PIECE: Final = 16_384
#: With it a close sends RST instead of FIN: what a crash, or a firewall that lost its table, looks like.
ABRUPTLY: Final = struct.pack("ii", 1, 0)

Answer = TypeVar("Answer")


@dataclass(eq=False)
class _Line:
    """One connection, with its two ends."""

    #: Of the client's end.
    port: int
    ends: list[asyncio.StreamWriter]
    flows: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """Forwards connections to one port of loopback, from a thread of its own. Its methods are thread-safe.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int) -> None:
        self.port = free_ports(1)[0]
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_mute = False
        self._hangs = False
        self._held: int | None = None
        self._bytes_per_second: float | None = None
        self._delay = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.refuse(on=True)
        self.cut()
        self._do(self._settle())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def cut(self) -> int:
        """Reset every connection; return how many there were. New ones are served."""
        return self._do(self._cut())

    def refuse(self, *, on: bool) -> None:
        """Refuse new connections, or serve them again."""
        self._do(self._deafen() if on else self._listen())

    def hang(self, *, on: bool) -> None:
        """Let nothing pass, though connections are accepted and held; or let it go on."""
        self._hangs = on
        self._do(self._look())

    def hold(self, pid: int | None) -> int:
        """Keep back all that one process says and is told, and deliver it when another call says None.

        Return how many of its connections are held; those that it opens meanwhile are as well.
        """
        self._held = pid
        return self._do(self._look())

    def mute(self, *, on: bool) -> None:
        """Swallow what the server answers: it has done its work, and its client does not know."""
        self._is_mute = on

    def slow(self, bytes_per_second: float | None, *, delay: float = 0.0) -> None:
        """Let so much pass in each direction of each connection, every piece `delay` seconds late; None
        sets no limit.
        """
        self._bytes_per_second, self._delay = bytes_per_second, delay

    def heal(self) -> None:
        """Be a plain proxy again."""
        self.slow(None)
        self.mute(on=False)
        self.hang(on=False)
        self.hold(None)
        self.refuse(on=False)

    def _do(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _deafen(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _cut(self) -> int:
        lines = list(self._lines)
        for end in (end for line in lines for end in line.ends):
            sock = end.get_extra_info("socket")
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPTLY)
            end.transport.abort()
        return len(lines)

    async def _look(self) -> int:
        """Stop or free every connection; return how many are stopped."""
        for line in self._lines:
            self._stop_or_free(line)
        return sum(not line.flows.is_set() for line in self._lines)

    def _stop_or_free(self, line: _Line) -> None:
        if self._hangs or (self._held is not None and _owns(self._held, line.port, self.port)):
            line.flows.clear()
        else:
            line.flows.set()

    async def _settle(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        line = _Line(writer.get_extra_info("peername")[1], [writer])
        self._stop_or_free(line)
        self._lines.add(line)
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            line.ends.append(back)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pump(line, reader, back, is_answer=False))
                    both.create_task(self._pump(line, there, writer, is_answer=True))
            finally:
                back.transport.abort()
        except* OSError:
            pass
        except* asyncio.CancelledError:
            # The proxy ends; the stream's own callback would report it.
            pass
        finally:
            self._lines.discard(line)
            self._tasks.discard(task)
            # What was written before the server hung up still arrives.
            with suppress(OSError):
                writer.close()

    async def _pump(
        self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        while piece := await reader.read(PIECE):
            await line.flows.wait()
            if self._bytes_per_second is not None:
                await asyncio.sleep(self._delay + len(piece) / self._bytes_per_second)
            if is_answer and self._is_mute:
                continue
            writer.write(piece)
            await writer.drain()
        await line.flows.wait()
        if is_answer:
            # The server has hung up, so the client is to be told, whatever it has still to say.
            raise ConnectionResetError
        if writer.can_write_eof():
            writer.write_eof()


def _owns(pid: int, port: int, remote: int) -> bool:
    """Whether a process has the connection from `port` to `remote`, both on 127.0.0.1."""
    sockets = set()
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                sockets.add(str(descriptor.readlink()))
    for entry in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        words = entry.split()
        here, there = (int(address.rpartition(":")[2], 16) for address in words[1:3])
        if (here, there) == (port, remote) and f"socket:[{words[9]}]" in sockets:
            return True
    return False
