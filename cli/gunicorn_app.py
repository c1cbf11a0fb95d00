"""Gunicorn, without the current folder on the import path.

Gunicorn puts it in front, where any `config/` or `api/` that lies there would shadow the fleet's own.
"""

from __future__ import annotations

from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication


class Gunicorn(WSGIApplication):  # type: ignore[misc]
    """Serves an application that is installed, from wherever it is started."""

    def chdir(self) -> None:
        """Stay, and leave `sys.path` alone."""


def main() -> Any:
    """Serve until told to stop."""
    return Gunicorn("%(prog)s [OPTIONS] [APP_MODULE]", prog="voxfleet-api").run()


if __name__ == "__main__":
    main()
