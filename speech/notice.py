"""What somebody who listens hears when nothing can be spoken now: a sentence that was spoken beforehand.

The recordings lie beside this file and need no engine. `python -m speech.notice speech/notices` makes them
again: English by the bundled voice, Korean by espeak-ng where it is installed.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from speech.audio import Samples, pcm_s16le, resampled
from speech.engine import SynthesisRequest
from speech.host import EngineHost
from speech.voices import read_wav

FOLDER: Final = Path(__file__).parent / "notices"
DEFAULT: Final = "en"
#: What the recordings say, by primary language subtag.
SENTENCES: Final[dict[str, str]] = {
    "en": "Sorry, the voice is not available at the moment. Please try again in a minute.",
    "ko": "죄송합니다. 지금은 음성을 사용할 수 없습니다. 잠시 후에 다시 시도해 주세요.",
}
#: Hz. Speech needs no more, and the files are kept with the code.
SAMPLE_RATE: Final = 16_000
#: Root mean square of the spoken parts: -20 dBFS, as loud as the engines are on the whole.
LEVEL: Final = 0.1
LOUDEST: Final = 0.89

log = logging.getLogger("voxfleet.engine")


def notice(language: str, sample_rate: int) -> Samples:
    """Return the notice in `language` (BCP 47), in English where there is none, at `sample_rate` Hz."""
    base = language.replace("_", "-").partition("-")[0].lower()
    path = FOLDER / f"{base}.wav"
    if base not in SENTENCES or not path.exists():
        path = FOLDER / f"{DEFAULT}.wav"
    samples, rate = read_wav(path)
    return resampled(samples, rate, sample_rate)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record the notices."""
    parser = argparse.ArgumentParser(prog="speech.notice", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "en.wav", *_by_engine(SENTENCES["en"]))
    espeak = shutil.which("espeak-ng")
    if espeak is None:
        sys.stderr.write("espeak-ng is not installed: no notice in Korean\n")
    else:
        _write(folder / "ko.wav", *_by_espeak(espeak, SENTENCES["ko"], voice="ko"))
    return 0


def _by_engine(text: str) -> tuple[Samples, int]:
    with EngineHost("hibari", {}, nice=0, chunk_seconds=60) as host:
        info = host.start()
        request = SynthesisRequest(text=text, voice=info.default_voice, language="en", seed=0)
        return np.concatenate([*host.synthesize(request)]), info.sample_rate


def _by_espeak(program: str, text: str, *, voice: str) -> tuple[Samples, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notice.wav"
        subprocess.run([program, "-v", voice, "-s", "150", "-w", str(path), text], check=True)
        return read_wav(path)


def _write(path: Path, samples: Samples, rate: int) -> None:
    sound = resampled(samples, rate, SAMPLE_RATE)
    spoken = sound[np.abs(sound) > np.abs(sound).max() / 100]
    sound *= min(LEVEL / float(np.sqrt(np.mean(spoken**2))), LOUDEST / float(np.abs(sound).max()))
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, len(sound), "NONE", ""))
        file.writeframes(pcm_s16le(sound))


if __name__ == "__main__":
    sys.exit(main())
