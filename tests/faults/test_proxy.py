"""The proxy does the harm that it says, and no other."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy


@pytest.fixture
def echo() -> Iterator[int]:
    """Give the port of a server that says everything twice."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while not over.is_set():
                connection, _ = server.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection:
                try:
                    while piece := connection.recv(65536):
                        connection.sendall(piece * 2)
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        port = server.getsockname()[1]
        yield port
        over.set()
        socket.create_connection(("127.0.0.1", port)).close()
        thread.join()


@pytest.fixture
def line(echo: int) -> Iterator[Proxy]:
    """Give a proxy before it."""
    with Proxy(echo) as proxy:
        yield proxy


def call(line: Proxy, *, seconds: float = 5) -> socket.socket:
    return socket.create_connection(("127.0.0.1", line.port), timeout=seconds)


def ask(connection: socket.socket, words: bytes = b"word") -> bytes:
    connection.sendall(words)
    heard = b""
    while len(heard) < 2 * len(words):
        piece = connection.recv(65536)
        if not piece:
            break
        heard += piece
    return heard


def test_it_passes_everything_on(line: Proxy) -> None:
    with call(line) as connection:
        assert ask(connection, b"x" * 100_000) == b"x" * 200_000


def test_a_cut_resets_every_connection_and_new_ones_are_served(line: Proxy) -> None:
    with call(line) as connection:
        ask(connection)
        assert line.cut() == 1
        with pytest.raises(ConnectionResetError):
            ask(connection)
    with call(line) as connection:
        assert ask(connection) == b"wordword"


def test_it_refuses_until_it_is_healed(line: Proxy) -> None:
    line.refuse(on=True)
    with pytest.raises(ConnectionRefusedError):
        call(line)

    line.heal()

    with call(line) as connection:
        assert ask(connection) == b"wordword"


def test_nothing_passes_while_it_hangs_and_nothing_is_lost(line: Proxy) -> None:
    with call(line, seconds=0.3) as connection:
        line.hang(on=True)
        with pytest.raises(TimeoutError):
            ask(connection)

        line.hang(on=False)

        connection.settimeout(5)
        assert connection.recv(100) == b"wordword"


def test_a_mute_server_has_heard_and_its_answer_is_gone(line: Proxy) -> None:
    with call(line, seconds=0.3) as connection:
        line.mute(on=True)
        with pytest.raises(TimeoutError):
            ask(connection)
        line.mute(on=False)
        assert ask(connection, b"next") == b"nextnext"


def test_what_one_process_says_is_kept_back_and_delivered(line: Proxy) -> None:
    with call(line, seconds=0.3) as connection:
        ask(connection)
        assert line.hold(os.getpid()) == 1
        with pytest.raises(TimeoutError):
            ask(connection)
        with call(line, seconds=0.3) as another, pytest.raises(TimeoutError):
            ask(another)

        line.hold(None)

        connection.settimeout(5)
        assert connection.recv(100) == b"wordword"


def test_another_process_is_not_held(line: Proxy) -> None:
    with call(line) as connection:
        assert line.hold(os.getppid()) == 0
        assert ask(connection) == b"wordword"


def test_a_slow_line_takes_its_time(line: Proxy) -> None:
    with call(line) as connection:
        line.slow(100_000)
        begun = time.monotonic()
        ask(connection, b"x" * 20_000)
        # 20 kB there; the answer's first pieces come back meanwhile.
        assert time.monotonic() - begun >= 0.4
