"""PCM to MP3, in one encode, checked by decoding. The only place that knows ffmpeg's language."""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import ffmpeg
import numpy as np

from speech.audio import Audio, Samples, clipped
from speech.niceness import lower_session

SAMPLE_RATE: Final = 44_100
BITRATE: Final = 128_000
CHANNELS: Final = 1
CONTENT_TYPE: Final = "audio/mpeg"

#: How far the decoded audio may be from the PCM that went in, in samples: 5 ms.
_TOLERANCE: Final = SAMPLE_RATE * 5 // 1000
#: Samples in one write, 256 kB: with `_AHEAD`, all the PCM that waits in memory.
_BLOCK: Final = 65_536
_AHEAD: Final = 4
#: The end of what ffmpeg says is where the cause stands.
_TAIL: Final = 8192
_READ: Final = 65_536

_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")
_FULL_ERRNO: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class EncodeError(Exception):
    """The audio could not be made into a file. The set of subclasses is closed: `ERRORS` names them all."""

    #: Stable name, as a job's `error.code`.
    code: ClassVar[str] = "encode_error"
    #: Whether the same clips may be encoded later or elsewhere.
    transient: ClassVar[bool] = False


class EncoderFailed(EncodeError):
    """ffmpeg failed, stood still, or wrote a file that does not hold the audio."""

    code = "encoder_failed"
    transient = True


class DiskFull(EncodeError):
    """There is no room for the file."""

    code = "disk_full"
    transient = True


class EncoderMissing(EncodeError):
    """This machine has no ffmpeg; another one may."""

    code = "encoder_missing"
    transient = True


class EmptyAudio(EncodeError):
    """There is less than a millisecond of audio, of which ffmpeg would make a valid, silent file."""

    code = "empty_audio"


ERRORS: Final[dict[str, type[EncodeError]]] = {
    error.code: error for error in (EncoderFailed, DiskFull, EncoderMissing, EmptyAudio)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A file of audio.

    Attributes:
        path: where it lies.
        content_type: media type.
        bytes: size of the file.
        samples: length at `sample_rate`, without the encoder's padding.
        sample_rate: Hz.
        bitrate: bits per second.
        channels: 1.
        sha256: of the file, in hexadecimal.
        duration_ms: of the PCM that went in; the file's header says some 40 ms more.
        clipped: how many samples were beyond full scale and were cut to it.
    """

    path: Path
    content_type: str
    bytes: int
    samples: int
    sample_rate: int
    bitrate: int
    channels: int
    sha256: str
    duration_ms: int
    clipped: int


def _nothing() -> None:
    """Let the work go on."""


class Mp3Encoder:
    """Makes MP3: 44.1 kHz mono, 128 kbit/s CBR, one ID3v2.3 tag, one Info frame with gapless data.

    Holds no state between calls; memory does not grow with the length of the audio.
    """

    def __init__(self, path: str, *, nice: int = 0, patience_s: float = 60) -> None:
        """Make an encoder.

        Args:
            path: path of ffmpeg, as `speech.ffmpeg.find` gives it.
            nice: niceness of ffmpeg.
            patience_s: how long ffmpeg may take neither samples nor give any before it is killed.
        """
        self._path = path
        self._command = ["nice", "-n", str(nice), path] if nice else [path]
        self._nice = nice
        self._patience_s = patience_s

    def encode(self, pieces: Iterable[Audio], path: Path, *, check: Callable[[], None] = _nothing) -> Encoded:
        """Encode the pieces, as one sound, into the file `path`.

        `pieces` is read on the calling thread, and `check` called there every second or so; what they raise
        ends the work and goes through. The file appears when it is complete and verified, or not at all.

        Raises:
            EncodeError: one of `ERRORS`.
            ValueError: a piece has another sample rate than the first, or samples that are not finite.
        """
        part = path.with_name(f"{path.name}.part")
        pcm = _Pcm(pieces)
        try:
            self._write(pcm, part, check)
            samples = round(pcm.samples * SAMPLE_RATE / pcm.sample_rate)
            self._verify(part, samples, check)
            size, sha256 = _fingerprint(part)
            part.replace(path)
        except OSError as error:
            if error.errno not in _FULL_ERRNO or pcm.failed:
                raise
            raise DiskFull(f"{path}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)
        return Encoded(
            path=path,
            content_type=CONTENT_TYPE,
            bytes=size,
            samples=samples,
            sample_rate=SAMPLE_RATE,
            bitrate=BITRATE,
            channels=CHANNELS,
            sha256=sha256,
            duration_ms=round(pcm.samples * 1000 / pcm.sample_rate),
            clipped=pcm.clipped,
        )

    def _write(self, pcm: _Pcm, path: Path, check: Callable[[], None]) -> None:
        graph = (
            ffmpeg.input("pipe:0", format="f32le", ar=pcm.sample_rate, ac=CHANNELS)
            .filter("aresample", SAMPLE_RATE, resampler="soxr")
            .output(
                # `file:` and an absolute path: a name with a colon is no protocol.
                f"file:{path.absolute()}",
                format="mp3",
                acodec="libmp3lame",
                audio_bitrate=BITRATE,
                ac=CHANNELS,
                id3v2_version=3,
                write_xing=1,
            )
        )
        with self._started(graph, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            with _Feeder(process, self._patience_s) as feeder:
                for block in pcm:
                    check()
                    if not feeder.feed(block):
                        break
            process.finish(self._patience_s)
        if feeder.broken:
            raise EncoderFailed(f"ffmpeg stopped reading: {process.said()}")

    def _verify(self, path: Path, expected: int, check: Callable[[], None]) -> None:
        """Raise `EncoderFailed` unless the file decodes, without complaint, to `expected` samples."""
        graph = ffmpeg.input(f"file:{path.absolute()}").output("pipe:1", format="s16le", acodec="pcm_s16le")
        with self._started(graph, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            size = process.count_stdout(self._patience_s, check)
            process.finish(self._patience_s)
        if said := process.said():
            raise EncoderFailed(f"the file does not decode cleanly: {said}")
        decoded = size // 2
        if abs(decoded - expected) > _TOLERANCE:
            raise EncoderFailed(f"the file holds {decoded} samples of {expected}")

    def _started(self, graph: Any, *, stdin: int, stdout: int) -> _Process:
        if shutil.which(self._path) is None:
            raise EncoderMissing(f"{self._path} is no program")
        quiet = graph.global_args("-hide_banner", "-nostdin", "-loglevel", "error")
        command: list[str] = quiet.compile(cmd=self._command, overwrite_output=True)
        try:
            return _Process(command, stdin=stdin, stdout=stdout, nice=self._nice)
        except (FileNotFoundError, PermissionError) as error:
            raise EncoderMissing(f"{command[0]}: {error.strerror}") from error


class _Pcm:
    """The pieces as blocks of bounded size, clipped to full scale, and what was counted on the way."""

    def __init__(self, pieces: Iterable[Audio]) -> None:
        self.samples = 0
        self.clipped = 0
        #: Whether the pieces, not the encoder, raised the error in flight.
        self.failed = False
        self._pieces = self._watched(pieces)
        first: list[Audio] = []
        # Before ffmpeg starts: is there anything to encode?
        while not first or sum(len(piece.samples) for piece in first) * 1000 < first[0].sample_rate:
            piece = next(self._pieces, None)
            if piece is None:
                raise EmptyAudio("there is less than a millisecond of audio")
            first.append(piece)
        self.sample_rate = first[0].sample_rate
        self._pieces = chain(first, self._pieces)

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if piece.sample_rate != self.sample_rate:
                raise ValueError(f"a piece at {piece.sample_rate} Hz among pieces at {self.sample_rate} Hz")
            for start in range(0, len(piece.samples), _BLOCK):
                yield self._block(piece.samples[start : start + _BLOCK])

    def _block(self, samples: Samples) -> bytes:
        if not np.isfinite(samples).all():
            raise ValueError("a piece has samples that are not finite")
        self.samples += len(samples)
        self.clipped += clipped(samples)
        return np.clip(samples, -1, 1).astype("<f4").tobytes()

    def _watched(self, pieces: Iterable[Audio]) -> Iterator[Audio]:
        self.failed = True
        for piece in pieces:
            self.failed = False
            yield piece
            self.failed = True
        self.failed = False


class _Process:
    """A running ffmpeg: its stderr drained to a bounded tail, its whole group killed when left early."""

    def __init__(self, command: list[str], *, stdin: int, stdout: int, nice: int) -> None:
        # Its own group: a wrapper's children hold our pipes open and must go with it. Its own session: see
        # `speech.niceness`.
        self._process = subprocess.Popen(
            command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
        )
        if nice:
            lower_session(self._process.pid, nice)
        self._tail = b""
        self._drain = threading.Thread(target=self._read_stderr, name="ffmpeg-stderr", daemon=True)
        self._drain.start()

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None  # noqa: S101
        return self._process.stdin

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.wait()
        self._drain.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def finish(self, patience_s: float) -> None:
        """Wait for the end.

        Raises:
            DiskFull: it had no room to write.
            EncoderFailed: it failed, or did not end in time.
        """
        try:
            status = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise EncoderFailed(f"ffmpeg did not end within {patience_s:g} s") from None
        # A child of ffmpeg's that lives on would keep stderr open.
        self.kill()
        self._drain.join()
        said = self.said()
        if status == -signal.SIGXFSZ or any(words in said for words in _FULL):
            raise DiskFull(said or "the file would exceed the limit on the size of a file")
        if status:
            raise EncoderFailed(f"ffmpeg ended with {status}: {said}")

    def count_stdout(self, patience_s: float, check: Callable[[], None]) -> int:
        """Read stdout to its end and return how many bytes came."""
        assert self._process.stdout is not None  # noqa: S101
        descriptor = self._process.stdout.fileno()
        ready = select.poll()
        ready.register(descriptor, select.POLLIN)
        size = 0
        while True:
            check()
            if not ready.poll(patience_s * 1000):
                raise EncoderFailed(f"ffmpeg decoded nothing for {patience_s:g} s")
            block = os.read(descriptor, _READ)
            if not block:
                return size
            size += len(block)

    def said(self) -> str:
        """Return the end of what it wrote to stderr."""
        return self._tail.decode(errors="replace").strip()

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None  # noqa: S101
        descriptor = self._process.stderr.fileno()
        while block := os.read(descriptor, _READ):
            self._tail = (self._tail + block)[-_TAIL:]


class _Feeder:
    """A thread that writes to ffmpeg's stdin, so that a full pipe cannot stop the one who feeds it.

    Left with an error it kills ffmpeg, which would else take the end of its input for the end of the sound.
    """

    def __init__(self, process: _Process, patience_s: float) -> None:
        self._process = process
        self._pipe = process.stdin
        self._patience_s = patience_s
        self._blocks: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._thread = threading.Thread(target=self._run, name="ffmpeg-stdin", daemon=True)
        #: Whether ffmpeg closed its end before ours.
        self.broken = False

    def __enter__(self) -> _Feeder:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stuck = False
        if kind is None:
            stuck = not self._put(None)
            if not stuck:
                self._thread.join(self._patience_s)
                stuck = self._thread.is_alive()
        if kind is not None or stuck:
            self._abort()
        if stuck:
            raise EncoderFailed(f"ffmpeg took no samples for {self._patience_s:g} s")

    def feed(self, block: bytes) -> bool:
        """Hand over a block; return False when ffmpeg reads no more.

        Raises:
            EncoderFailed: ffmpeg has taken nothing for too long.
        """
        if not self._put(block):
            raise EncoderFailed(f"ffmpeg took no samples for {self._patience_s:g} s")
        return not self.broken

    def _put(self, block: bytes | None) -> bool:
        try:
            self._blocks.put(block, timeout=self._patience_s)
        except queue.Full:
            return False
        return True

    def _abort(self) -> None:
        self.broken = True  # what still waits is dropped, not written
        self._process.kill()
        self._blocks.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (block := self._blocks.get()) is not None:
                if not self.broken:
                    self._write(block)
        finally:
            with suppress(BrokenPipeError):
                self._pipe.close()

    def _write(self, block: bytes) -> None:
        try:
            self._pipe.write(block)
        except BrokenPipeError:
            self.broken = True


def _fingerprint(path: Path) -> tuple[int, str]:
    """Return the size of a file and its SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return path.stat().st_size, digest.hexdigest()
