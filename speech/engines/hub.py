"""Weights that are a folder, or that the Hugging Face hub has."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from speech.engine import EngineUnavailable

#: An owner and a name.
HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
#: Written as a path: "~" is a home, a leading dot or slash a folder, a backslash one of Windows.
PATH: Final = re.compile(r"[./~\\]|.*\\|[A-Za-z]:|.*/.*/|.*/$")


def weights(
    model: str,
    *,
    engine: str,
    revision: str | None,
    offline: bool,
    patterns: Iterable[str] | None = None,
) -> tuple[Path, str]:
    """Return the folder of the weights, downloaded where it must be, and what to call them.

    Args:
        model: a folder, or a hub id.
        engine: named in errors.
        revision: commit, tag or branch on the hub; its newest without.
        offline: take only what was downloaded before.
        patterns: of the files that are needed; None for all.

    Raises:
        EngineUnavailable: there is no such folder, or the hub does not give it.
    """
    # A home that nobody has stays as it is written.
    folder = Path(os.path.expanduser(model))  # noqa: PTH111
    if folder.is_dir():
        return folder, folder.resolve().name
    if folder.exists():
        raise EngineUnavailable(f"{engine}: {model} is a file; the folder around it is needed")
    # "models/some" could be either; where there is a folder `models`, it is meant.
    if PATH.match(model) or not HUB_ID.fullmatch(model) or folder.parent.is_dir():
        raise EngineUnavailable(f"{engine}: there is no folder {model}")
    # Read when the module is imported.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    hub: Any = import_module("huggingface_hub")
    errors: Any = import_module("huggingface_hub.errors")
    try:
        found = hub.snapshot_download(
            model,
            revision=revision,
            local_files_only=offline,
            allow_patterns=None if patterns is None else list(patterns),
        )
    except (OSError, ValueError, errors.HTTPError) as error:
        raise EngineUnavailable(
            f"{engine}: {model} cannot be had from the hub ({type(error).__name__}); "
            f"`hf download {model} --local-dir DIR` where it can be reached, then model=DIR"
        ) from error
    # The last part of a snapshot's path is its commit.
    return Path(found), f"{model}@{Path(found).name}"
