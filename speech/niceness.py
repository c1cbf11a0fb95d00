"""Giving way to other processes.

Linux weighs a nice value only within an autogroup, that is within a session (man 7 sched, "The autogroup
feature"). A fleet runs each of its processes in a session of its own, so niceness alone would change
nothing between an engine and the API: the session has a nice value too, in /proc/PID/autogroup.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def give_way(nice: int) -> None:
    """Lower the priority of this process, in a session of its own, for good."""
    if nice <= 0:
        return
    os.nice(nice)
    # It leads its process group already where a supervisor has seen to it.
    with suppress(PermissionError):
        os.setsid()
    if os.getsid(0) == os.getpid():
        lower_session(os.getpid(), nice)


def lower_session(pid: int, nice: int) -> None:
    """Set the nice value of the session of `pid`, where the kernel knows such a thing."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")
