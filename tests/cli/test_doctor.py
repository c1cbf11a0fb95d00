"""`voxfleet doctor` where nothing runs."""

from __future__ import annotations

import socket
from pathlib import Path

from .commands import clean, fleet_settings, voxfleet


def test_with_everything_down_each_part_is_told_with_its_remedy(tmp_path: Path) -> None:
    settings = fleet_settings(tmp_path)
    broker = f"redis://user:hidden@127.0.0.1:{settings['VOXFLEET_VALKEY_PORT']}/0"
    keys = {"VOXFLEET_S3_ACCESS_KEY_ID": "id", "VOXFLEET_S3_SECRET_ACCESS_KEY": "hidden"}
    store = {"VOXFLEET_S3_ENDPOINT": f"http://127.0.0.1:{settings['VOXFLEET_S3_PORT']}"}

    ran = voxfleet(
        "doctor", environ=clean(**settings, **keys, **store, VOXFLEET_BROKER_URL=broker), cwd=tmp_path
    )
    said = ran.stdout.decode()

    assert ran.returncode == 1, ran.stderr
    assert "ok    ffmpeg" in said
    for part, remedy in (
        ("broker", "VOXFLEET_BROKER_URL"),
        ("database", "voxfleet db upgrade"),
        ("bucket", "VOXFLEET_S3_ENDPOINT"),
    ):
        assert f"FAIL  {part}" in said
        assert remedy in said
    assert "warn  models    no live worker" in said
    assert "hidden" not in said
    assert not (tmp_path / "fleet").exists()


def test_no_ffmpeg_and_a_taken_port_are_failures(tmp_path: Path) -> None:
    settings = fleet_settings(tmp_path)
    with socket.create_server(("127.0.0.1", int(settings["VOXFLEET_VALKEY_PORT"]))) as other:
        other.listen()
        ran = voxfleet("doctor", environ=clean(**settings, VOXFLEET_FFMPEG="/nowhere/ffmpeg"), cwd=tmp_path)
    said = ran.stdout.decode()

    assert ran.returncode == 1
    assert "FAIL  ffmpeg" in said
    assert "/nowhere/ffmpeg" in said
    assert f"FAIL  ports     {settings['VOXFLEET_VALKEY_PORT']} (Valkey) is taken" in said
    assert "VOXFLEET_VALKEY_PORT" in said
