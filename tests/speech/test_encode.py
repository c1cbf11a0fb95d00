import errno
import hashlib
import os
import resource
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from mutagen.mp3 import MP3, BitrateMode

from speech.audio import Audio
from speech.encode import (
    ERRORS,
    DiskFull,
    EmptyAudio,
    Encoded,
    EncoderFailed,
    EncoderMissing,
    Mp3Encoder,
)
from speech.ffmpeg import FfmpegMissing, capabilities, find, problems
from tests.speech.fakes_ffmpeg import fake_ffmpeg

REAL = find(None)


def tone(seconds: float, rate: int = 24_000, amplitude: float = 0.5) -> Audio:
    at = np.arange(round(seconds * rate))
    return Audio((amplitude * np.sin(2 * np.pi * 440 * at / rate)).astype(np.float32), rate)


def encode(pieces: list[Audio], folder: Path, ffmpeg: str = REAL, patience_s: float = 60) -> Encoded:
    return Mp3Encoder(ffmpeg, patience_s=patience_s).encode(pieces, folder / "out.mp3")


def decoded(path: Path) -> np.ndarray:
    command = [REAL, "-v", "error", "-nostdin", "-i", str(path), "-f", "s16le", "pipe:1"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stderr == b""
    return np.frombuffer(done.stdout, "<i2")


def info_samples(file: bytes) -> int:
    """The gapless length that the Info frame promises: http://gabriel.mp3-tech.org/mp3infotag.html."""
    tag = file.index(b"Info")
    flags = int.from_bytes(file[tag + 4 : tag + 8])
    assert flags == 0b1111
    frames = int.from_bytes(file[tag + 8 : tag + 12])
    # flags, frames, bytes, table of contents, quality; then LAME's own tag, with delay and padding in its
    # bytes 21 to 23.
    lame = tag + 8 + 4 + 4 + 100 + 4
    both = int.from_bytes(file[lame + 21 : lame + 24])
    return frames * 1152 - (both >> 12) - (both & 0xFFF)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "a folder: 100% #1"
    path.mkdir()
    return path


@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 48_000])
def test_every_engine_rate_becomes_the_same_sound(rate: int, folder: Path) -> None:  # C066
    got = encode([tone(2, rate)], folder)
    sound = decoded(got.path)
    peak = np.argmax(np.abs(np.fft.rfft(sound))) * 44_100 / len(sound)
    assert peak == pytest.approx(440, rel=0.01)
    assert len(sound) / 44_100 == pytest.approx(2, abs=0.005)
    assert (got.samples, got.duration_ms, got.sample_rate) == (88_200, 2000, 44_100)


@pytest.mark.parametrize("seconds", [0.03, 1.2345, 6, 65])
def test_the_durations_agree(seconds: float, folder: Path) -> None:  # C061
    pieces = [tone(seconds * share) for share in (1 / 6, 2 / 6, 3 / 6)]
    pcm = sum(len(piece.samples) for piece in pieces)
    got = encode(pieces, folder)
    file = got.path.read_bytes()
    assert got.samples == round(pcm * 44_100 / 24_000)
    assert got.duration_ms == round(pcm / 24)
    assert abs(info_samples(file) - got.samples) <= 1
    assert abs(len(decoded(got.path)) - got.samples) <= 220
    tagged = MP3(got.path).info
    assert 0 <= tagged.length - pcm / 24_000 <= 0.060
    assert (tagged.sample_rate, tagged.channels) == (44_100, 1)
    assert tagged.bitrate == pytest.approx(128_000, rel=0.001)
    assert tagged.bitrate_mode == BitrateMode.CBR
    assert (file.count(b"ID3"), file.count(b"Info"), file.count(b"Xing")) == (1, 1, 0)
    assert file[:4] == b"ID3\x03"
    assert (got.bytes, got.sha256) == (len(file), hashlib.sha256(file).hexdigest())
    assert (got.content_type, got.bitrate, got.channels) == ("audio/mpeg", 128_000, 1)
    assert list(folder.iterdir()) == [got.path]


@pytest.mark.parametrize("samples", [0, 1, 10, 23])
def test_less_than_a_millisecond_is_no_audio(samples: int, folder: Path) -> None:  # C067
    with pytest.raises(EmptyAudio):
        encode([tone(0), tone(samples / 24_000)], folder)
    assert not list(folder.iterdir())


def test_no_pieces_are_no_audio(folder: Path) -> None:
    with pytest.raises(EmptyAudio):
        encode([], folder)


def test_samples_beyond_full_scale_are_clipped_and_counted(folder: Path) -> None:  # C064
    got = encode([tone(1, amplitude=1.05)], folder)
    assert got.clipped > 1000
    steps = np.abs(np.diff(decoded(got.path).astype(int)))
    assert steps.max() < 32768 * 0.2


def test_a_piece_at_another_rate_or_without_finite_samples_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="16000 Hz among pieces at 24000 Hz"):
        encode([tone(1), tone(1, 16_000)], folder)
    with pytest.raises(ValueError, match="not finite"):
        encode([tone(1), Audio(np.array([np.nan], np.float32), 24_000)], folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("error", [KeyError("gone"), OSError(errno.ENOSPC, "of the pieces, not of the file")])
def test_what_the_pieces_raise_goes_through_and_leaves_nothing(error: Exception, folder: Path) -> None:
    threads = threading.active_count()

    def pieces() -> Iterator[Audio]:
        yield tone(100)
        raise error

    with pytest.raises(type(error)) as caught:
        Mp3Encoder(REAL).encode(pieces(), folder / "out.mp3")
    assert caught.value is error
    assert not list(folder.iterdir())
    assert threading.active_count() == threads


def test_ffmpeg_runs_as_nicely_as_asked(folder: Path) -> None:
    seen: list[int] = []

    def pieces() -> Iterator[Audio]:
        yield tone(5)
        time.sleep(0.3)
        seen.extend(os.getpriority(os.PRIO_PROCESS, child) for child in children())
        yield tone(5)

    def children() -> list[int]:
        tasks = Path("/proc/self/task").iterdir()
        lists = [(task / "children").read_text().split() for task in tasks]
        return [int(child) for found in lists for child in found]

    Mp3Encoder(REAL, nice=10).encode(pieces(), folder / "out.mp3")
    assert max(seen) == os.getpriority(os.PRIO_PROCESS, 0) + 10


def test_a_noisy_ffmpeg_does_not_block(folder: Path, tmp_path: Path) -> None:
    assert encode([tone(20)], folder, fake_ffmpeg("noisy", tmp_path, REAL)).duration_ms == 20_000


@pytest.mark.parametrize(
    ("name", "error", "says"),
    [
        ("stubborn", EncoderFailed, "took no samples for 1 s"),
        ("stubborn_family", EncoderFailed, "took no samples for 1 s"),
        ("endless", EncoderFailed, "did not end within 1 s"),
        ("half", EncoderFailed, "the file"),
        ("early", EncoderFailed, "stopped reading"),
        ("failing", EncoderFailed, "ended with 1: it will not do"),
        ("no_soxr", EncoderFailed, "resampling engine is unavailable"),
        ("full", DiskFull, "No space left on device"),
        ("limited", DiskFull, "limit on the size of a file"),
        ("limited_quietly", DiskFull, "File too large"),
    ],
)
def test_a_failing_ffmpeg_ends_in_an_error_soon_and_leaves_nothing(
    name: str, error: type[Exception], says: str, folder: Path, tmp_path: Path
) -> None:
    threads = threading.active_count()
    began = time.monotonic()
    with pytest.raises(error, match=says):
        encode([tone(5)] * 8, folder, fake_ffmpeg(name, tmp_path, REAL), patience_s=1)
    assert time.monotonic() - began < 10
    assert not list(folder.iterdir())
    assert threading.active_count() == threads


def test_a_missing_ffmpeg_is_named(folder: Path) -> None:
    with pytest.raises(EncoderMissing, match="/nowhere/ffmpeg"):
        encode([tone(1)], folder, "/nowhere/ffmpeg")


def test_a_failure_leaves_the_file_of_before_alone(folder: Path, tmp_path: Path) -> None:
    before = encode([tone(1)], folder)
    with pytest.raises(EncoderFailed):
        encode([tone(1)], folder, fake_ffmpeg("failing", tmp_path, REAL))
    assert hashlib.sha256(before.path.read_bytes()).hexdigest() == before.sha256


def test_ten_minutes_need_no_more_memory_than_a_minute(folder: Path) -> None:
    minute = tone(60)
    encode([minute], folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    got = Mp3Encoder(REAL).encode((minute for _ in range(10)), folder / "out.mp3")
    assert got.duration_ms == 600_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB; ten minutes are 57,600


def test_the_errors_are_a_closed_set_with_stable_names() -> None:
    assert {code: error.transient for code, error in ERRORS.items()} == {
        "encoder_failed": True,
        "disk_full": True,
        "encoder_missing": True,
        "empty_audio": False,
    }


def test_the_found_ffmpeg_can_do_the_work() -> None:
    able = capabilities(REAL)
    assert able.version
    assert able.soxr
    assert able.mp3
    assert problems(REAL) == []


def test_the_configured_ffmpeg_comes_first_and_must_exist(tmp_path: Path) -> None:
    fake = fake_ffmpeg("noisy", tmp_path, REAL)
    assert find(fake) == fake
    with pytest.raises(FfmpegMissing, match=r"apt-get install ffmpeg.*pip install imageio-ffmpeg"):
        find("/nowhere/ffmpeg")


def test_the_ffmpeg_on_path_comes_before_the_bundled_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Path(fake_ffmpeg("noisy", tmp_path, REAL)).rename(tmp_path / "ffmpeg")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find(None) == str(fake)


def test_doctor_learns_what_an_ffmpeg_lacks(tmp_path: Path) -> None:
    (problem,) = problems(fake_ffmpeg("no_soxr", tmp_path, REAL))
    assert "libsoxr" in problem
    assert "VOXFLEET_FFMPEG" in problem
    assert "does not run as ffmpeg" in problems(fake_ffmpeg("failing", tmp_path, REAL))[0]
    assert "cannot be started" in problems("/nowhere/ffmpeg")[0]
