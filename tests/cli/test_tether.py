"""A tethered process ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.supervisor import tethered

TETHER = Path(__file__).parents[2] / "cli" / "tether.py"


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_parent_takes_its_tethered_child_along() -> None:
    parent_code = (
        "import subprocess, sys, time; from cli.supervisor import tethered; "
        "child = subprocess.Popen(tethered(['sleep', '60']), start_new_session=True); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while alive(child) and "sleep" not in Path(f"/proc/{child}/comm").read_text(encoding="ascii"):
            time.sleep(0.01)
        assert alive(child)

        parent.send_signal(signal.SIGKILL)
        parent.wait()

        end = time.monotonic() + 5
        while alive(child) and time.monotonic() < end:
            time.sleep(0.01)
        assert not alive(child)


def test_a_command_whose_parent_is_gone_already_never_starts(tmp_path: Path) -> None:
    witness = tmp_path / "ran"
    command = [sys.executable, "-S", "-E", str(TETHER), str(os.getppid()), "--", "touch", str(witness)]

    assert subprocess.run(command, check=False).returncode == 1
    assert not witness.exists()


def test_a_tethered_command_keeps_its_arguments_status_and_niceness() -> None:
    script = "import os, sys; print(sys.argv[1:], os.nice(0)); sys.exit(7)"
    command = tethered([sys.executable, "-c", script, "--", "a b"], nice=3)

    ran = subprocess.run(command, check=False, capture_output=True, text=True)

    assert ran.stdout == f"['--', 'a b'] {os.nice(0) + 3}\n"
    assert ran.returncode == 7


def test_a_missing_program_is_named() -> None:
    ran = subprocess.run(tethered(["no-such-program"]), check=False, capture_output=True, text=True)

    assert ran.returncode == 1
    assert "no-such-program" in ran.stderr
