"""Freeze the `jobs` package of a commit: `python -m tests.jobs.releases 9ebafaf 0001`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile, ZipInfo

FOLDER = Path(__file__).parent


def freeze(commit: str, revision: str) -> Path:
    """Write `jobs-REVISION.zip`: the modules of the package, without its migrations."""
    listed = _git("ls-tree", "--name-only", commit, "jobs/").decode().split()
    target = FOLDER / f"jobs-{revision}.zip"
    with ZipFile(target, "w") as archive:
        for name in sorted(name for name in listed if name.endswith(".py")):
            archive.writestr(ZipInfo(name), _git("show", f"{commit}:{name}"))
    return target


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=FOLDER.parents[2], capture_output=True, check=True).stdout


if __name__ == "__main__":
    print(freeze(*sys.argv[1:]))  # noqa: T201
