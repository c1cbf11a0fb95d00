"""Temp folders: one for each worker, cleared when it is dead and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from actors.scratch import clear, scratch

HOLD = """
import sys
from pathlib import Path
from actors.scratch import scratch
with scratch(Path(sys.argv[1])) as folder:
    (folder / "speech.mp3").write_bytes(b"half")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_the_folder_is_ours_alone_and_gone_afterwards(tmp_path: Path) -> None:
    with scratch(tmp_path) as mine, scratch(tmp_path) as other:
        assert mine != other
        (mine / "speech.mp3").write_bytes(b"x")
        assert clear(tmp_path, older_than=0) == 0
        assert (mine / "speech.mp3").exists()

    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_worker_left_goes_at_once_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    folders = []
    for worker in workers:
        assert worker.stdout is not None
        folders.append(Path(worker.stdout.readline().strip()))
    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].wait()

    assert clear(tmp_path) >= 1
    assert not folders[0].exists()
    assert (folders[1] / "speech.mp3").exists()
    for worker in workers:
        worker.communicate()
    assert list(tmp_path.iterdir()) == []


def test_old_files_of_nobody_go_and_new_ones_stay(tmp_path: Path) -> None:
    old, new, fresh_inside = tmp_path / "old", tmp_path / "new.mp3", tmp_path / "busy"
    for folder in (old, fresh_inside):
        folder.mkdir()
        (folder / "speech.mp3").write_bytes(b"x")
    new.write_bytes(b"x")
    past = time.time() - 7200
    for path in (old / "speech.mp3", old, fresh_inside):
        os.utime(path, (past, past))

    assert clear(tmp_path, older_than=3600) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy", "new.mp3"]
    assert clear(tmp_path / "missing", older_than=3600) == 0
