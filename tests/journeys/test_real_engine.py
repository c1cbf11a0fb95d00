"""A whole fleet on the real voxcpm package: a tiny folder of random weights, and a voice from a folder."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.speech import tiny_voxcpm2
from tests.speech.test_voices import write

from .fleet import Fleet, fleet
from .listener import examine

pytestmark = pytest.mark.slow

TEXT = (
    "The harbour was quiet before dawn, and nobody spoke. Far out on the water a lamp went up and down. "
    "An old man counted the boats as they came home, one by one, and wrote their names into a book."
)


@pytest.fixture(scope="module")
def voxcpm2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("voxcpm2")
    (folder / "voices").mkdir()
    write(folder / "voices" / "anna.wav", seconds=2)
    (folder / "voices" / "anna.txt").write_text("Good morning.", encoding="utf-8")
    write(folder / "voices" / "_draft.wav", seconds=2)
    with fleet(
        folder / "data",
        VOXFLEET_DEFAULT_MODEL="voxcpm2",
        VOXFLEET_LEASE_SECONDS="4",
        VOXFLEET_VOICES_DIR=str(folder / "voices"),
        VOXFLEET_ENGINE_VOXCPM2_MODEL=str(tiny_voxcpm2.build(folder / "model")),
        VOXFLEET_ENGINE_VOXCPM2_DEVICE="cpu",
        VOXFLEET_ENGINE_VOXCPM2_MAX_CHARS="60",
    ) as running:
        yield running


def test_its_voices_and_options_are_told(voxcpm2: Fleet) -> None:
    voices = voxcpm2.call("GET", "/v1/voices").json()["data"]
    (model,) = voxcpm2.call("GET", "/v1/models").json()["data"]

    assert [(voice["id"], voice["kind"]) for voice in voices] == [
        ("default", "design"),
        ("anna", "reference"),
    ]
    assert model["features"]["cloning"] is True
    assert set(model["options"]["properties"]) == {"cfg", "steps"}


def test_a_reference_voice_speaks_with_options(voxcpm2: Fleet, tmp_path: Path) -> None:
    job = voxcpm2.submit(TEXT, voice="anna", seed=1, engine_options={"steps": 2, "top_p": 0.9})

    done = voxcpm2.wait(job["id"], seconds=90)

    assert done["status"] == "completed", done
    assert [warning["code"] for warning in done["warnings"]] == ["engine_option_ignored"]
    path = tmp_path / "anna.mp3"
    path.write_bytes(voxcpm2.http.request("GET", done["result"]["audio"]["url"]).data)
    heard = examine(path)
    assert heard.complaints == ""
    assert abs(heard.seconds * 1000 - done["result"]["audio"]["duration_ms"]) <= 5
    assert heard.seconds > 3


def test_a_voice_that_was_drawn_survives_the_death_of_its_worker(voxcpm2: Fleet) -> None:
    job = voxcpm2.submit(TEXT, seed=1)
    end = time.monotonic() + 60
    while voxcpm2.job(job["id"])["chunks"]["done"] < 1 and time.monotonic() < end:
        time.sleep(0.02)
    for pid in voxcpm2.pids("worker synth"):
        os.kill(pid, signal.SIGKILL)

    done = voxcpm2.wait(job["id"], seconds=120)

    assert (done["status"], done["degraded"]) == ("completed", False), done
    clips = voxcpm2.rows(
        "SELECT voice_state_key, engine_revision FROM clips WHERE job = ? ORDER BY text_start", job["id"]
    )
    assert len(clips) >= 4
    assert len(set(clips)) == 1
    assert clips[0][0] is not None
