"""How gunicorn is run: nobody is left behind, and the current folder shadows nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from cli.api import gunicorn_command
from cli.embedded import fetch
from config.settings import Settings

from .commands import clean, free_ports
from .test_tether import alive


def test_a_killed_master_leaves_no_worker_and_the_current_folder_shadows_nothing(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    (here / "stub.py").write_text("raise SystemExit('the current folder was searched')")
    (elsewhere / "stub.py").write_text(
        "import os\n"
        "def app(environ, start_response):\n"
        "    start_response('200 OK', [])\n"
        "    return [str(os.getpid()).encode()]\n"
    )
    port = free_ports(1)[0]
    command = gunicorn_command(Settings(api_bind=f"127.0.0.1:{port}"))
    log = tmp_path / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [*command[:-1], "stub:app"],
            cwd=here,
            env=clean(PYTHONPATH=str(elsewhere), HOME=str(tmp_path)),
            stdout=out,
            stderr=out,
        ) as master,
    ):
        end = time.monotonic() + 20
        while (answer := fetch(port, "/"))[0] != 200 and time.monotonic() < end:
            assert master.poll() is None, log.read_text()
            time.sleep(0.05)
        worker = int(answer[1])
        assert worker != master.pid

        os.kill(master.pid, signal.SIGKILL)
        master.wait()

    end = time.monotonic() + 5
    while alive(worker) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(worker)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "here", "log"]
