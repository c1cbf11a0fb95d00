"""Run a command that does not outlive its parent.

    python tether.py PARENT_PID [--nice N] -- COMMAND [ARGUMENT ...]

`voxfleet up` starts every process through it: the kernel kills the command the moment the thread that
started it ends, even by SIGKILL. Run by file path, with `-S -E`, so that it costs milliseconds; it must
import next to nothing. The signal is asked for first and the parent compared after, so that a parent
that died in between is noticed too. Where the kernel has no such signal the command just runs.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: linux/prctl.h
PR_SET_PDEATHSIG = 1


def tie(parent: int) -> bool:
    """Have the kernel kill this process when its parent ends; return whether `parent` still is the parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and become the command."""
    options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    if not tie(int(options[0])):
        raise SystemExit(1)
    if options[1:2] == ["--nice"]:
        os.nice(int(options[2]))
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        raise SystemExit(f"cannot run {command[0]}: {error.strerror}") from error


if __name__ == "__main__":
    main(sys.argv[1:])
