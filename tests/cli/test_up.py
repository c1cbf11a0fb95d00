"""What `voxfleet up` refuses, before it starts anything. The running fleet: tests/journeys."""

from __future__ import annotations

import fcntl
import json
import socket
import stat
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli import embedded, ports
from config.settings import Settings

from .commands import clean, fleet_settings, free_ports, voxfleet


def test_a_taken_port_is_named_with_its_setting(tmp_path: Path) -> None:
    settings = fleet_settings(tmp_path)
    grpc = int(settings["VOXFLEET_WEED_FILER_PORT"]) + ports.GRPC_OFFSET
    with socket.create_server(("127.0.0.1", grpc)):
        ran = voxfleet("up", environ=clean(**settings), cwd=tmp_path)

    assert ran.returncode == 1
    assert f"port {grpc} (SeaweedFS filer (gRPC))" in ran.stderr.decode()
    assert "VOXFLEET_WEED_FILER_PORT" in ran.stderr.decode()


@pytest.mark.parametrize("absent", ["what was configured", "all"])
def test_without_ffmpeg_both_remedies_are_named(tmp_path: Path, absent: str) -> None:
    environ = clean(**fleet_settings(tmp_path))
    if absent == "all":
        # Nothing on PATH, and a package that shadows the one that brings an ffmpeg along.
        (tmp_path / "imageio_ffmpeg.py").write_text("raise ModuleNotFoundError", encoding="ascii")
        environ |= {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    else:
        environ["VOXFLEET_FFMPEG"] = "/nowhere/ffmpeg"

    ran = voxfleet("up", environ=environ, cwd=tmp_path)

    assert ran.returncode == 1
    assert len(ran.stderr.splitlines()) == 1
    assert "apt-get install ffmpeg" in ran.stderr.decode()
    assert "pip install imageio-ffmpeg" in ran.stderr.decode()


def test_a_second_fleet_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    settings = fleet_settings(tmp_path)
    data_dir = Path(settings["VOXFLEET_DATA_DIR"])
    data_dir.mkdir()
    with (data_dir / "up.lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        ran = voxfleet("up", environ=clean(**settings), cwd=tmp_path)

    assert ran.returncode == 1
    assert "process 4711" in ran.stderr.decode()
    assert "VOXFLEET_DATA_DIR" in ran.stderr.decode()


def test_one_port_for_two_parts_is_refused(tmp_path: Path) -> None:
    settings = fleet_settings(tmp_path)
    settings["VOXFLEET_S3_PORT"] = settings["VOXFLEET_VALKEY_PORT"]

    ran = voxfleet("up", environ=clean(**settings), cwd=tmp_path)

    assert ran.returncode == 1
    assert "VOXFLEET_S3_PORT" in ran.stderr.decode()
    assert "VOXFLEET_VALKEY_PORT" in ran.stderr.decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [("VOXFLEET_LINK_SECONDS", "0"), ("VOXFLEET_API_BIND", "8000"), ("VOXFLEET_BRIKER_URL", "redis://x")],
)
def test_a_bad_setting_is_one_line_and_status_two(tmp_path: Path, name: str, value: str) -> None:
    ran = voxfleet("up", environ=clean(VOXFLEET_DATA_DIR=str(tmp_path), **{name: value}), cwd=tmp_path)

    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert name in ran.stderr.decode()


def test_an_api_open_to_others_needs_a_key(tmp_path: Path) -> None:
    environ = clean(VOXFLEET_DATA_DIR=str(tmp_path), VOXFLEET_API_BIND="0.0.0.0:8000")
    assert voxfleet("db", "upgrade", environ=environ, cwd=tmp_path).returncode == 0

    ran = voxfleet("api", environ=environ, cwd=tmp_path)

    assert ran.returncode == 1
    assert "voxfleet keys create" in ran.stderr.decode()


def test_keys_of_the_embedded_store_are_made_once_and_kept_private(tmp_path: Path) -> None:
    first = embedded.credentials(tmp_path, {})

    assert embedded.credentials(tmp_path, {}) == first
    assert stat.S_IMODE((tmp_path / embedded.CREDENTIALS).stat().st_mode) == 0o600
    assert json.loads((tmp_path / embedded.CREDENTIALS).read_text())["access_key_id"] == first[0]


def test_servers_that_are_named_in_the_environment_are_not_started() -> None:
    assert embedded.Parts.of({}) == embedded.Parts(valkey=True, seaweed=True)
    assert embedded.Parts.of({"VOXFLEET_BROKER_URL": "redis://elsewhere"}) == embedded.Parts(
        valkey=False, seaweed=True
    )
    assert not embedded.Parts.of({"VOXFLEET_S3_ENDPOINT": "https://elsewhere"}).seaweed


def test_seaweed_is_bound_to_loopback_and_tells_nobody(tmp_path: Path) -> None:
    command = embedded.seaweed_command(Settings(data_dir=tmp_path))

    assert {"-ip.bind=127.0.0.1", "-ip=127.0.0.1", "-master.telemetry=false"} <= set(command)


@pytest.mark.parametrize(
    ("topology", "serves"),
    [
        ({"Max": 0, "DataCenters": None}, False),
        ({"Max": 0}, False),
        ({"Max": 400, "DataCenters": [{"Id": "DefaultDataCenter"}]}, True),
    ],
)
def test_seaweed_serves_once_its_volume_server_has_found_the_master(
    tmp_path: Path, topology: dict[str, object], serves: bool
) -> None:
    class Weed(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"/healthz": b"", "/dir/status": json.dumps({"Topology": topology}).encode()}[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Weed) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        port = server.server_port
        found = embedded.seaweed_answers(Settings(data_dir=tmp_path, s3_port=port, weed_master_port=port))
        server.shutdown()
        thread.join()

    assert found is serves


def test_seaweed_that_is_down_does_not_serve(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    assert not embedded.seaweed_answers(Settings(data_dir=tmp_path, s3_port=port, weed_master_port=port))


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("127.0.0.1", True),
        ("127.0.0.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, inside: bool) -> None:
    assert ports.is_loopback(host) is inside


def test_private_files_are_whole_and_private(tmp_path: Path) -> None:
    embedded.write_private(tmp_path / "key", "secret")

    assert (tmp_path / "key").read_text(encoding="utf-8") == "secret"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]
