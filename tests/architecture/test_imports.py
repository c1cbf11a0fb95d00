"""Who may import whom, and what the API process never loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Model runtimes and what comes with them.
HEAVY = (
    "numpy",
    "torch",
    "onnxruntime",
    "voxcpm",
    "hibari",
    "soxr",
    "speech.host",
    "speech.engine",
    "ffmpeg",
)


def test_the_import_contracts_are_kept() -> None:
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as lint; lint()",
            "--no-cache",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr


def _environ(data_dir: Path) -> dict[str, str]:
    """Return what `api.wsgi` cannot do without."""
    return os.environ | {
        "VOXFLEET_DATA_DIR": str(data_dir),
        "VOXFLEET_S3_ACCESS_KEY_ID": "id",
        "VOXFLEET_S3_SECRET_ACCESS_KEY": "secret",
    }


@pytest.mark.parametrize("module", ["api.app", "api.wsgi"])
def test_the_api_loads_no_engine_and_no_number_cruncher(module: str, tmp_path: Path) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    environ = _environ(tmp_path)

    run = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, check=True
    )

    loaded = json.loads(run.stdout)
    assert not [name for name in loaded if name.startswith(HEAVY)]
    assert [name for name in loaded if name.startswith("actors.")] == ["actors.bell"]


def test_nothing_is_patched_before_gevent_patches(tmp_path: Path) -> None:
    program = (
        "import sys; from gevent import monkey; patch = monkey.patch_all\n"
        "early = lambda: [m for m in ('psycopg', 'redis', 'sqlalchemy', 'flask') if m in sys.modules]\n"
        "def patched(): print(early()); patch()\n"
        "monkey.patch_all = patched; import api.wsgi"
    )
    environ = _environ(tmp_path)

    run = subprocess.run(
        [sys.executable, "-P", "-c", program], env=environ, capture_output=True, text=True, check=True
    )

    assert run.stdout == "[]\n"
