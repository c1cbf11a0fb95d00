"""A sign of life for probes: a file that is young while a process is well."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger("voxfleet.actors")


@contextmanager
def liveness(path: Path | None) -> Iterator[Callable[[], None]]:
    """Give what says "I am well" whenever it is called: it touches `path`, which goes with the block."""
    if path is None:
        yield lambda: None
        return
    failed = False

    def beat() -> None:
        nonlocal failed
        try:
            path.touch()
        except OSError as error:
            # The probe says the rest.
            if not failed:
                log.warning("cannot touch the liveness file: %s", error)
            failed = True
        else:
            failed = False

    try:
        yield beat
    finally:
        with suppress(OSError):
            path.unlink()
