"""`voxfleet speak` against a server that answers as the API does."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from .commands import clean, free_ports, voxfleet

AUDIO = bytes(range(256)) * 400


@dataclass
class Fleet:
    """A stub of the API and of the store behind it."""

    url: str = ""
    #: What a job becomes after its polls.
    end: dict[str, Any] = field(default_factory=lambda: {"status": "completed"})
    #: Status and body of the answer to the post, if it is to be refused.
    refusal: tuple[int, dict[str, Any]] | None = None
    #: Hang up where the answer to the post is due.
    hangs_up: bool = False
    polls: int = 2
    #: Bytes of the audio that the store sends before it hangs up.
    sent: int = len(AUDIO)
    posted: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    store_keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    stub = Fleet()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            stub.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            stub.keys.append(self.headers["Authorization"])
            if stub.hangs_up:
                self.close_connection = True
            elif stub.refusal:
                self.answer(*stub.refusal)
            else:
                self.answer(202, job("queued"))

        def do_GET(self) -> None:
            if self.path == "/store/audio.mp3?signature=s":
                stub.store_keys.append(self.headers["Authorization"])
                self.send_response(200)
                self.send_header("Content-Length", str(len(AUDIO)))
                self.end_headers()
                self.wfile.write(AUDIO[: stub.sent])
            elif self.path == "/v1/speech/jobs/job_1/audio":
                self.send_response(302)
                self.send_header("Location", f"{stub.url}/store/audio.mp3?signature=s")
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif self.path == "/v1/speech/jobs/job_1":
                stub.polls -= 1
                self.answer(200, job("in_progress") if stub.polls > 0 else job("completed") | stub.end)
            else:
                self.answer(404, {"title": "Not found"})

        def answer(self, status: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield stub
        server.shutdown()
        thread.join()


def job(status: str) -> dict[str, Any]:
    return {
        "id": "job_1",
        "status": status,
        "stage": None,
        "progress": 0,
        "chunks": {"total": None, "done": 0},
    }


def speak(
    fleet: Fleet, folder: Path, *arguments: str, given: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    environ = clean(VOXFLEET_URL=fleet.url, VOXFLEET_API_KEY="secret")
    return voxfleet("speak", *arguments, environ=environ, cwd=folder, given=given)


def test_it_saves_the_audio_and_the_store_never_sees_the_key(fleet: Fleet, tmp_path: Path) -> None:
    ran = speak(fleet, tmp_path, "Hello", "-o", "hello.mp3", "--voice", "heart", "--language", "en-US")

    assert (ran.returncode, ran.stdout) == (0, b"")
    assert (tmp_path / "hello.mp3").read_bytes() == AUDIO
    assert fleet.posted == [{"input": "Hello", "voice": "heart", "language": "en-US"}]
    assert fleet.keys == ["Bearer secret"]
    assert fleet.store_keys == [None]


def test_text_comes_from_a_pipe_and_audio_goes_into_one(fleet: Fleet, tmp_path: Path) -> None:
    ran = speak(fleet, tmp_path, given="Grüße\n".encode())

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, AUDIO, b"")
    assert fleet.posted == [{"input": "Grüße"}]
    assert list(tmp_path.iterdir()) == []


def test_text_comes_from_a_file(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(b"\xef\xbb\xbfFrom a file.\n")

    assert speak(fleet, tmp_path, "--file", "text.txt", "-o", "-").stdout == AUDIO
    assert fleet.posted == [{"input": "From a file."}]


def test_a_reader_that_leaves_early_is_no_error(fleet: Fleet, tmp_path: Path) -> None:
    command = f"{sys.executable} -P -m cli.main speak hi -o - | head -c 10; echo ${{PIPESTATUS[0]}}"

    ran = subprocess.run(
        ["bash", "-c", command],
        env=clean(VOXFLEET_URL=fleet.url, VOXFLEET_API_KEY="secret"),
        cwd=tmp_path,
        capture_output=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )

    assert ran.stdout[:10] == AUDIO[:10]
    assert ran.stdout[10:] in (b"0\n", b"141\n")
    assert ran.stderr == b""


def test_a_failed_job_is_told_with_its_reason(fleet: Fleet, tmp_path: Path) -> None:
    fleet.end = {"status": "failed", "error": {"code": "disk_full", "message": "the disk is full"}}

    ran = speak(fleet, tmp_path, "Hello", "-o", "hello.mp3")

    assert ran.returncode == 1
    assert ran.stderr == b"voxfleet: job_1 failed: the disk is full (disk_full)\n"
    assert list(tmp_path.iterdir()) == []


def test_each_complaint_of_the_server_is_told_with_its_field(fleet: Fleet, tmp_path: Path) -> None:
    errors = [{"pointer": "/voice", "code": "unknown_voice", "detail": "no such voice; allowed: heart"}]
    fleet.refusal = (422, {"title": "Invalid request", "errors": errors})

    ran = speak(fleet, tmp_path, "Hello", "--voice", "nobody")

    assert ran.returncode == 2
    assert ran.stderr == b"voxfleet: voice: no such voice; allowed: heart\n"


def test_a_server_error_is_status_one(fleet: Fleet, tmp_path: Path) -> None:
    fleet.refusal = (503, {"title": "Unavailable", "detail": "the database is busy"})

    ran = speak(fleet, tmp_path, "Hello")

    assert ran.returncode == 1
    assert ran.stderr == b"voxfleet: the database is busy\n"


def test_audio_that_breaks_off_leaves_no_file(fleet: Fleet, tmp_path: Path) -> None:
    fleet.sent = 1000

    ran = speak(fleet, tmp_path, "Hello", "-o", "hello.mp3")

    assert ran.returncode == 1
    assert b"broke off" in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "given", "said"),
    [
        (["  "], b"", b"input: there is no text"),
        ([], b"", b"input: there is no text"),
        ([], b"\xff", b"standard input is not UTF-8 (byte 0)"),
        (["--file", "absent.txt"], b"", b"absent.txt: No such file or directory"),
        (["text", "--file", "absent.txt"], b"", b"give the text or --file, not both"),
    ],
)
def test_what_cannot_be_spoken_is_refused_here(
    fleet: Fleet, tmp_path: Path, arguments: list[str], given: bytes, said: bytes
) -> None:
    ran = speak(fleet, tmp_path, *arguments, given=given)

    assert ran.returncode == 2
    assert ran.stderr == b"voxfleet: " + said + b"\n"
    assert fleet.posted == []


def test_a_fleet_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    ran = speak(Fleet(url=f"http://127.0.0.1:{free_ports(1)[0]}"), tmp_path, "Hello")

    assert ran.returncode == 1
    assert b"is the fleet up?" in ran.stderr


def test_a_lost_answer_leaves_open_whether_the_job_was_accepted(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hangs_up = True

    ran = speak(fleet, tmp_path, "Hello")

    assert ran.returncode == 1
    assert b"was lost (Connection aborted): the job may have been accepted" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert len(fleet.posted) == 1


def test_without_a_key_the_two_ways_to_give_one_are_named(tmp_path: Path) -> None:
    ran = voxfleet("speak", "Hello", environ=clean(VOXFLEET_DATA_DIR=str(tmp_path)), cwd=tmp_path)

    assert ran.returncode == 2
    assert b"--key or VOXFLEET_API_KEY" in ran.stderr
