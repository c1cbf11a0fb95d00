"""Temp files: each worker process has a folder of its own, and what a dead one left is cleared by the next.

A worker holds a lock on its folder for as long as it lives; the kernel lets go of it however the process
ends. So nobody needs to guess from a time or a process id, which several containers may share.
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_PREFIX: Final = "worker-"
_LOCK: Final = ".lock"
#: Anything else that was not written to for this long belongs to nobody.
TEMP_SECONDS: Final = 3600.0


@contextmanager
def scratch(temp_dir: Path) -> Iterator[Path]:
    """Give a folder that is this process's alone, and is gone afterwards."""
    temp_dir.mkdir(parents=True, exist_ok=True)
    folder = temp_dir / f"{_PREFIX}{secrets.token_hex(6)}"
    lock = folder.with_suffix(_LOCK)
    draft = temp_dir / f".{lock.name}"
    # Locked before it has the name that `clear` looks for, and before there is a folder.
    with draft.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        draft.rename(lock)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def clear(temp_dir: Path, *, older_than: float = TEMP_SECONDS) -> int:
    """Delete what dead workers left in `temp_dir`, and all else that was not written to for `older_than`
    seconds; return how many entries went.
    """
    limit = time.time() - older_than
    gone = 0
    for entry in temp_dir.iterdir() if temp_dir.is_dir() else ():
        if entry.name.startswith(_PREFIX):
            gone += _clear_dead(entry.with_suffix(_LOCK))
        elif _last_write(entry) < limit:
            _delete(entry)
            gone += 1
    return gone


def _clear_dead(lock: Path) -> bool:
    """Delete a worker's folder and lock, unless it lives."""
    try:
        with lock.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _delete(lock.with_suffix(""))
            lock.unlink(missing_ok=True)
    except FileNotFoundError:
        # Another clears it at this moment; a folder without a lock is what is left of that.
        if not lock.with_suffix("").exists():
            return False
        _delete(lock.with_suffix(""))
    except BlockingIOError:
        return False
    return True


def _delete(entry: Path) -> None:
    if entry.is_dir():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        with suppress(OSError):
            entry.unlink(missing_ok=True)


def _last_write(entry: Path) -> float:
    """Return when anything in `entry` was last written, in seconds since the epoch."""
    try:
        return max(path.stat().st_mtime for path in [entry, *entry.rglob("*")])
    except OSError:
        # It is being deleted by somebody else.
        return time.time()
