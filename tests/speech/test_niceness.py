"""Giving way reaches past the session, where the kernel weighs sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from speech.niceness import lower_session

_GIVE_WAY = """
import os
from speech.niceness import give_way
give_way(7)
print(os.getpriority(os.PRIO_PROCESS, 0), os.getsid(0) == os.getpid())
try:
    print(open("/proc/self/autogroup").read().split()[-1])
except OSError:
    print("none")
"""


def test_a_process_gives_way_together_with_its_session() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)

    run = subprocess.run([sys.executable, "-c", _GIVE_WAY], capture_output=True, text=True, check=True)

    nice, leads, session = run.stdout.split()
    assert int(nice) == min(19, before + 7)
    assert leads == "True"
    assert session == ("7" if Path("/proc/self/autogroup").exists() else "none")


def test_a_session_that_is_gone_or_unknown_is_no_error() -> None:
    lower_session(2**22 + 1, 5)
