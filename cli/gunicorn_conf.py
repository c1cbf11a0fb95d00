"""How gunicorn serves the API; the address comes from the command line."""

from __future__ import annotations

import os
from typing import Any, Final

from gunicorn import util

from cli.tether import tie

#: Streams and slow clients wait in greenlets; threads would run out.
worker_class: Final = "gevent"
workers: Final = 1
timeout: Final = 60
graceful_timeout: Final = 10
keepalive: Final = 5
accesslog: Final = None
#: It would leave a socket in the home folder.
control_socket_disable: Final = True
proc_name: Final = "voxfleet-api"


def post_fork(_server: Any, worker: Any) -> None:
    """Tie a new worker to its master, so that `kill -9` of the master leaves nobody on the port."""
    if not tie(worker.ppid):
        os._exit(1)
    util.write_error = write_problem


def write_problem(sock: Any, status: int, reason: str, _message: str) -> None:
    """Answer bytes that never became a request, which gunicorn by itself does in HTML."""
    from api.problems import MEDIA_TYPE, unreadable  # noqa: PLC0415 - after gevent has patched

    body = unreadable(status)
    head = (
        f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\n"
        f"Content-Type: {MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    util.write_nonblock(sock, head.encode("latin-1") + body)
