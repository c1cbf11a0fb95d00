"""How every process of the fleet writes its log."""

from __future__ import annotations

import logging
import time


def start_logging(level: str) -> None:
    """Write this process's log to standard error, from `level` up, one line an event, in UTC."""
    lines = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    lines.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(lines)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    # Libraries speak up from WARNING on; their chatter helps nobody.
    logging.getLogger("voxfleet").setLevel(level)
