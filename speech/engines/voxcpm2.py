"""VoxCPM2 by its own package, voxcpm 2.0.3: 2.4 billion parameters, any language, 48 kHz, on one GPU.

It speaks in a voice that it draws, in one described in words, or in that of a clip. Of the package this uses
only the model behind its front door (`tts_model`): the same generator, with the voice given as tensors
instead of files. Audio comes in patches of 160 ms, each as soon as it is decoded.

Nothing was measured on a GPU by the authors of this file; figures of others are marked as such.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.machinery
import inspect
import io
import json
import logging
import math
import os
import re
import sys
import threading
import types
import unicodedata
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from speech.engine import (
    ANY_LANGUAGE,
    BadOption,
    BadOutput,
    BadReference,
    EngineFailed,
    EngineInfo,
    EngineUnavailable,
    Features,
    Samples,
    SynthesisRequest,
    TextTooLong,
    UnknownVoice,
    UnsupportedText,
    Voice,
    call_options,
    option_schema,
    read_options,
)
from speech.engines.hub import weights
from speech.engines.packages import require
from speech.engines.voxcpm2_folder import UNREADABLE, fingerprint, quiet, verify
from speech.text import speakable
from speech.voices import Reference, reference, references

NAME: Final = "voxcpm2"
VERSION: Final = "2.0.3"
INSTALL: Final = "pip install 'voxfleet[voxcpm2]'"
#: What it cannot load without; the rest of the package's long list is for training and for its demo.
NEEDED: Final = ("voxcpm", "torch", "transformers", "safetensors", "einops", "librosa", "huggingface_hub")

#: The voice of a request without a clip: drawn by the seed, or as `style` describes it.
DEFAULT_VOICE: Final = "default"
SHORTEST_CLIP: Final = 1.0
LONGEST_CLIP: Final = 60.0
LONGEST_STYLE: Final = 200

SAMPLE_RATE: Final = 48_000
#: The makers' own measure of a runaway (`retry_badcase_ratio_threshold`) and, in a stream, the end of every
#: call: so many patches for a token, and so many more.
PATCHES_PER_TOKEN: Final = 6.0
PATCHES_MORE: Final = 10
#: The package's own: a stop before the fourth patch, 640 ms, is not obeyed.
LEAST_PATCHES: Final = 2
#: The package's `streaming_prefix_len`, less the patch in hand.
CONTEXT_PATCHES: Final = 3
#: Less than half of what hurried English takes (0.05, 20 letters a second): a clip that lost most of its text
#: is found, and no fast style is refused.
MIN_SECONDS_PER_CHAR: Final = 0.02
#: Reckoned, not measured of this model: Chinese takes 0.25 a character, 0.4 when it is told to speak slowly;
#: digits and capitals spelled in English 0.35 to 0.6 each, among others that take less. A runaway in English
#: ends earlier, at `PATCHES_PER_TOKEN`.
MAX_SECONDS_PER_CHAR: Final = 0.5
MAX_EXTRA_SECONDS: Final = 3.0

#: Of one `voice_state`: a prompt of 100 s is 0.7 MB. More is nothing that this engine wrote.
LARGEST_STATE: Final = 4 * 1024 * 1024
LONGEST_PROMPT_PATCHES: Final = 1_600
LONGEST_PROMPT_TEXT: Final = 1_000
#: In units of the latent space, whose values are a few.
LARGEST_LATENT: Final = 1e4

_BRACKETS: Final = re.compile(r"[()（）]")
_OPENING: Final = re.compile(r"\s*[(（]")

#: What a call asks the voice to be like: `prompt_text`, `audio_feat` and `mode` of a continuation,
#: `ref_audio_feat` of a clip. The package's own format.
Prompt = dict[str, Any]

log = logging.getLogger("voxfleet.engine")


class VoxCpm2Options(BaseModel):
    """Settings of the voxcpm2 engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(
        default="openbmb/VoxCPM2",
        min_length=1,
        description="Folder with the weights, or their name on the Hugging Face hub.",
    )
    revision: str | None = Field(
        default=None, min_length=1, description="Commit, tag or branch on the hub; its newest without."
    )
    offline: bool = Field(
        default=False, description="Whether to take only what was downloaded before, and ask no hub."
    )
    device: Literal["auto", "cuda", "cpu"] = Field(
        default="auto",
        description="`auto` is the GPU where there is one; CUDA_VISIBLE_DEVICES says which of several.",
    )
    optimize: bool = Field(
        default=True,
        description="Whether to compile the model while loading, which takes minutes; on a GPU alone.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        le=64,
        description="Threads of one call on a CPU; with more than one, audio no longer repeats exactly.",
    )
    voices_dir: Path | None = Field(
        default=None,
        description="Folder of reference clips, `name.wav` of 1 to 60 s, each with an optional `name.txt` "
        "that holds its words.",
    )
    voices_cached: int = Field(
        default=16, ge=1, le=1000, description="Voices that stay encoded in memory, 0.1 to 0.8 MB each."
    )
    memory_fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the GPU's memory that this process may take, where others use it too.",
    )
    max_chars: int = Field(
        default=120,
        ge=10,
        le=500,
        description="Longest text of one call, in code points. Memory and drift grow with it.",
    )


class VoxCpm2CallOptions(BaseModel):
    """Engine options of a job."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Bounds of the package's command line, which recommends 1 to 3.
    cfg: float = Field(
        default=2.0,
        ge=0.1,
        le=10.0,
        description="Guidance: higher keeps closer to text and voice, lower is freer. 1 to 3 is usual.",
    )
    #: The command line takes 1 too; but the first step is left out (`zero_init_steps`), and what is left of
    #: one is noise.
    steps: int = Field(
        default=10,
        ge=2,
        le=100,
        description="Diffusion steps of each 160 ms: time grows with them. 4 to 30 is usual.",
    )


#: What is known without weights.
ABOUT: Final = EngineInfo(
    name=NAME,
    version=VERSION,
    revision=VERSION,
    sample_rate=SAMPLE_RATE,
    languages=(ANY_LANGUAGE,),
    voices=(Voice(id=DEFAULT_VOICE, name="Default", language=ANY_LANGUAGE, kind="design"),),
    default_voice=DEFAULT_VOICE,
    # Not ours: an RTX 3070 with 8 GB crashes beyond 10 s at once. 120 letters of English take 8 s.
    max_chars=120,
    device="cuda",
    deterministic=False,
    licence="Apache-2.0",
    min_seconds_per_char=MIN_SECONDS_PER_CHAR,
    max_seconds_per_char=MAX_SECONDS_PER_CHAR,
    max_extra_seconds=MAX_EXTRA_SECONDS,
    features=Features(streaming=True, cloning=True, continuation=True, design=True, seed=True, batch=False),
    dtype="bfloat16",
    # Not ours: seen by the author of an index of the repository on an RTX 3070 (docs/investigacion-ram-
    # servidor.md), without compilation. Weights 4.62 GiB and key-value buffers 288 MiB make 5,260 MB.
    memory_mb=5300,
    weights="openbmb/VoxCPM2",
    options=option_schema(VoxCpm2CallOptions),
    # Half the steps are half the time; the memory of a call they hardly change.
    thrift={"steps": 5},
)


class Prompts:
    """The prompts that were used last, by a digest of what they were made from."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[str, Prompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, digest: str, make: Callable[[], Prompt]) -> Prompt:
        """Return the prompt, made now if it is not there; the one unused for longest is let go for it."""
        prompt = self._kept.pop(digest, None)
        if prompt is None:
            prompt = make()
        self._kept[digest] = prompt
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return prompt

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()


class VoxCpm2Engine:
    """The model on one device. On a GPU it stays on the thread that loaded it: compiled, it is wrong on any
    other, and silently.
    """

    def __init__(
        self, model: Any, info: EngineInfo, voices: Iterable[Reference], *, voices_cached: int
    ) -> None:
        """Args:
        model: a loaded `voxcpm.VoxCPM`; nobody else uses it.
        """
        self.info = info
        self._torch: Any = import_module("torch")
        self._model = model
        self._references = {voice.id: voice for voice in voices}
        self._prompts = Prompts(voices_cached)
        self._thread = threading.get_ident()
        inner = model.tts_model
        self._patch_seconds: float = inner.patch_size * inner._decode_chunk_size / inner.sample_rate
        #: Positions of the language model and of its buffer.
        self._positions = min(inner.config.max_length, inner.config.lm_config.max_position_embeddings)
        self._markup = signs(inner.text_tokenizer.tokenizer.added_tokens_encoder)
        # On the main branch of its repository the package takes a seed; 2.0.3 does not.
        self._takes_seed = "seed" in inspect.signature(inner._generate_with_prompt_cache).parameters
        #: What the last call drew, if it ended whole and its voice was wanted.
        self._drawn: Prompt | None = None
        #: The latents that stand before those of the call, as the decoder takes them.
        self._before: Any = None
        inner.audio_vae.streaming_decode = partial(self._decoder, inner.audio_vae.streaming_decode)

    def synthesize(self, request: SynthesisRequest) -> Iterator[Samples]:
        """Yield the audio of `request.text` in pieces of 160 ms.

        Raises:
            UnknownVoice, UnsupportedText, TextTooLong, BadOption: the request.
            BadReference: the clip of the voice cannot be read any more, or the voice state is none.
            BadOutput: the voice did not end by itself; another seed may.
        """
        self._drawn = None
        if self.info.device == "cuda" and threading.get_ident() != self._thread:
            raise EngineFailed("voxcpm2 was called from another thread than it was loaded on")
        if request.voice != DEFAULT_VOICE and request.voice not in self._references:
            raise UnknownVoice(f"voxcpm2 has no voice {request.voice!r}")
        if len(request.text) > self.info.max_chars:
            raise TextTooLong(
                f"{len(request.text)} characters; voxcpm2 takes {self.info.max_chars} in one call"
            )
        call = call_options(VoxCpm2CallOptions, request.options, engine=NAME)
        text = plain(request.text, markup=self._markup)
        if not speakable(text):
            raise UnsupportedText(f"nothing to speak in {request.text[:40]!r}")
        style = styled(request.style, markup=self._markup)
        prompt = self._prompt(request, with_style=bool(style))
        most = self._patches_at_most(request.text, tokens=self._tokens(text))
        self._check_room(style + text, prompt, most)
        keeps = request.keeps_voice and prompt is None and not style
        drawn: list[Any] = []
        count = 0
        # Closed by name: whoever catches an error holds its frames, and with them what they iterate.
        with closing(self._patches(style + text, prompt, most, call, request.seed)) as patches:
            for samples, latent in patches:
                count += 1
                if keeps:
                    drawn.append(latent)
                yield samples
        if count >= most:
            raise BadOutput(f"it had not ended after {count * self._patch_seconds:.1f} s")
        if keeps:
            self._drawn = self._continuation(text, drawn)

    def voice_state(self) -> bytes | None:
        """Return the voice that the last call drew, with what it said in it; None if it drew none."""
        if self._drawn is None:
            return None
        buffer = io.BytesIO()
        self._torch.save(self._drawn, buffer)
        state = buffer.getvalue()
        drawn = self._drawn
        self._prompts.get(_digest(state), lambda: drawn)
        return state

    def free(self) -> None:
        """Give back the memory that PyTorch keeps for its next tensors."""
        gc.collect()
        if self.info.device == "cuda":
            self._torch.cuda.empty_cache()

    def device_bytes(self) -> int:
        """Return what PyTorch holds of the GPU, used or kept; 0 on a CPU."""
        return int(self._torch.cuda.memory_reserved()) if self.info.device == "cuda" else 0

    def close(self) -> None:
        """Let the model go."""
        self._model = self._drawn = self._before = None
        self._prompts.clear()
        self.free()

    def _patches(
        self, text: str, prompt: Prompt | None, most: int, call: VoxCpm2CallOptions, seed: int
    ) -> Generator[tuple[Samples, Any], None, None]:
        """Yield each patch of audio with its latent."""
        seeded: dict[str, Any] = {"seed": seed} if self._takes_seed else {}
        patches = self._model.tts_model.generate_with_prompt_cache_streaming(
            target_text=text,
            prompt_cache=prompt,
            min_len=LEAST_PATCHES,
            max_len=most,
            inference_timesteps=call.steps,
            cfg_value=call.cfg,
            # Who calls hears the whole clip, and asks again with another seed.
            retry_badcase=False,
            **seeded,
        )
        self._before = self._context(prompt)
        # All generators of PyTorch, CUDA's too; the first number is drawn when the first patch is asked for.
        self._torch.manual_seed(seed)
        # An abandoned stream leaves its decoder patched, and the next call sounds of it.
        with closing(patches):
            try:
                # The package turns on inference mode for each step, and off between them: here it would stay
                # on for whoever asks for the next piece.
                for audio, _, latents in patches:
                    yield np.asarray(audio.squeeze(0).cpu().numpy(), dtype=np.float32), latents[-1]
            except (IndexError, ValueError, RuntimeError) as error:
                if _overflows(error):
                    raise TextTooLong("text and voice together are longer than the model") from error
                raise
            finally:
                self._before = None

    @contextmanager
    def _decoder(self, package_decoder: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
        """Give the package's decoder for a stream, in the place of the package's own.

        Where the audio goes on from a prompt the package decodes the last patches of that first, and cuts
        their sound off; in a stream it forgets to, and the first half second of every chunk sounds of a
        decoder that starts from silence. With this both are alike to 1e-6.
        """
        with package_decoder() as decoder:
            if self._before is not None:
                decoder.decode_chunk(self._before)
            yield decoder

    def _context(self, prompt: Prompt | None) -> Any:
        if prompt is None or "audio_feat" not in prompt:
            return None
        latents = prompt["audio_feat"][-CONTEXT_PATCHES:]
        count, patch_size, width = latents.shape
        joined = latents.permute(2, 0, 1).reshape(1, width, count * patch_size)
        return joined.to(self._model.tts_model.device, dtype=self._torch.float32)

    def _prompt(self, request: SynthesisRequest, *, with_style: bool) -> Prompt | None:
        """Return the voice to speak in; None lets the model draw one."""
        if request.voice != DEFAULT_VOICE:
            voice = self._references[request.voice]
            prompt = self._prompts.get(voice.sha256, partial(self._encode, voice))
            if not with_style:
                return prompt
            # What goes on from a text reads a style aloud; a clip that stands apart leaves it its place.
            return {"ref_audio_feat": prompt["ref_audio_feat"], "mode": "reference"}
        if with_style or request.voice_state is None:
            # The words decide the voice, in every call.
            return None
        state = request.voice_state
        return self._prompts.get(_digest(state), partial(self._read_state, state))

    def _encode(self, voice: Reference) -> Prompt:
        """Encode a clip: by itself, and where its words are known as what the text goes on from, too.

        The makers call both together "ultimate cloning": it is nearer to the speaker than the clip alone.
        """
        # It may have changed since this engine was loaded, and its digest is in the revision.
        if reference(voice.path, shortest=SHORTEST_CLIP, longest=LONGEST_CLIP).sha256 != voice.sha256:
            raise BadReference(f"the clip of {voice.id} has changed since the engine was loaded")
        path = str(voice.path)
        words = plain(voice.transcript or "", markup=self._markup)
        told = {"prompt_wav_path": path, "prompt_text": joint(words)} if speakable(words) else {}
        with quiet():
            prompt = dict(self._model.tts_model.build_prompt_cache(reference_wav_path=path, **told))
        if 2 * self._prompt_positions(prompt) > self._positions:
            raise BadReference(f"the clip of {voice.id} and its words are too long for the model")
        return prompt

    def _continuation(self, text: str, latents: list[Any]) -> Prompt:
        """Return a prompt of what was just spoken. It stays the same for all later calls: one that grew with
        them would drift away from the first voice.
        """
        torch = self._torch
        with torch.inference_mode():
            joined = torch.cat(latents, dim=1).squeeze(0)
        # On the CPU, and float32 whatever the model computes in: `read_state` takes nothing else.
        features = torch.empty(joined.shape, dtype=torch.float32).copy_(joined)
        return dict(self._model.tts_model.merge_prompt_cache(None, joint(text), features))

    def _read_state(self, state: bytes) -> Prompt:
        inner = self._model.tts_model
        return read_state(state, patch_size=inner.patch_size, width=inner.audio_vae.latent_dim)

    def _tokens(self, text: str) -> int:
        try:
            return len(self._model.tts_model.text_tokenizer(text))
        except ValueError as error:
            # A lone surrogate.
            raise UnsupportedText(f"voxcpm2 cannot read {text[:40]!r}") from error

    def _patches_at_most(self, text: str, *, tokens: int) -> int:
        """Return after how many patches a call is a runaway: by its tokens as the makers reckon, or when it
        is longer than is believable of its characters.
        """
        believable = MAX_SECONDS_PER_CHAR * len(text) + MAX_EXTRA_SECONDS
        return min(
            int(tokens * PATCHES_PER_TOKEN) + PATCHES_MORE,
            math.ceil(believable / self._patch_seconds) + 1,
        )

    def _check_room(self, text: str, prompt: Prompt | None, most: int) -> None:
        """Refuse what the model has no positions for: on a GPU an index beyond them ends the process."""
        before = self._prompt_positions(prompt) if prompt else 0
        # One more marks where audio begins.
        needed = before + self._tokens(text) + 1 + most
        if needed > self._positions:
            raise TextTooLong(
                f"voice, text and audio need {needed} positions; the model has {self._positions}"
            )

    def _prompt_positions(self, prompt: Prompt) -> int:
        count: int = self._tokens(prompt["prompt_text"]) if "prompt_text" in prompt else 0
        for name, marks in (("audio_feat", 0), ("ref_audio_feat", 2)):
            if name in prompt:
                count += len(prompt[name]) + marks
        return count


class VoxCpm2Factory:
    """Loads the model from a folder, or from the hub, after comparing all of it with what it must be."""

    options = VoxCpm2Options
    about = ABOUT

    def missing(self) -> str | None:
        """Return how to install voxcpm, or None when it is here."""
        return INSTALL if any(find_spec(name) is None for name in NEEDED) else None

    def load(self, options: Mapping[str, str]) -> VoxCpm2Engine:
        """Load the model; minutes where it is compiled.

        Raises:
            EngineUnavailable: the package or a part of the weights is absent or damaged, or an option is
                wrong.
        """
        read = read_options(VoxCpm2Options, options, engine=NAME)
        require("voxcpm", VERSION, engine=NAME, install=INSTALL, missing=self.missing())
        voices = _clips(read)
        prepare_import()
        try:
            with quiet():
                torch: Any = import_module("torch")
                voxcpm: Any = import_module("voxcpm")
                if voices:
                    # It reads the clips, and compiles itself where it is first used: 2 s, or 12 where nothing
                    # is left of that from before. No job should wait for it.
                    import_module("librosa.core.audio")
        except (ImportError, OSError) as error:
            raise EngineUnavailable(f"voxcpm cannot be imported: {error}") from error
        device = _device(read, torch)
        compiles = read.optimize and device == "cuda"
        torch.set_num_threads(read.threads)
        if read.memory_fraction is not None:
            torch.cuda.set_per_process_memory_fraction(read.memory_fraction)
        with quiet():
            folder, named = weights(read.model, engine=NAME, revision=read.revision, offline=read.offline)
        verify(folder)
        with quiet() as said:
            model = voxcpm.VoxCPM.from_pretrained(
                str(folder),
                # It would be downloaded from another hub.
                load_denoiser=False,
                local_files_only=True,
                optimize=compiles,
                device=device,
            )
        if compiles and not hasattr(model.tts_model, "_feat_encoder_raw"):
            # The package goes on without a word to its caller.
            log.warning("voxcpm2 is not compiled: %s", said.getvalue().strip().splitlines()[-1:])
        config = model.tts_model.config
        info = replace(
            ABOUT,
            revision=_revision(folder, voices, torch=torch.__version__, device=device),
            sample_rate=int(model.tts_model.sample_rate),
            voices=(
                *ABOUT.voices,
                *(Voice(id=v.id, name=v.id, language=ANY_LANGUAGE, kind="reference") for v in voices),
            ),
            max_chars=read.max_chars,
            device=device,
            # On a GPU the order of sums is not fixed.
            deterministic=device == "cpu" and read.threads == 1,
            dtype=str(config.dtype),
            memory_mb=ABOUT.memory_mb if device == "cuda" else None,
            weights=named,
        )
        return VoxCpm2Engine(model, info, voices, voices_cached=read.voices_cached)


def prepare_import(environ: MutableMapping[str, str] = os.environ) -> None:
    """Make torch and voxcpm importable and quiet; before either is imported.

    voxcpm imports torchaudio, for a first version of the model alone; PyPI's build of it does not load beside
    a torch without CUDA (libc10_cuda.so). Where it is absent or broken an empty module takes its place.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        # torch 2.13 reads the first, and for some keys, and in earlier releases, the second. Chunks differ in
        # length: without it their memory is left in pieces.
        environ.setdefault(name, "expandable_segments:True")
    environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    environ.setdefault("TQDM_DISABLE", "1")
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if "torchaudio" in sys.modules:
        return
    try:
        with quiet():
            import_module("torchaudio")
    except (ImportError, OSError, RuntimeError, AttributeError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchaudio"]:
            del sys.modules[name]
        stub = types.ModuleType("torchaudio")
        # transformers asks find_spec for it, which fails for a module without one.
        stub.__spec__ = importlib.machinery.ModuleSpec("torchaudio", loader=None)
        sys.modules["torchaudio"] = stub


def signs(added: Iterable[object]) -> tuple[str, ...]:
    """Return the strings that a tokenizer takes for signs of its own wherever they stand in a text: `</s>`.

    Args:
        added: its `added_tokens_encoder`. Words and single characters among them are text.
    """
    found = {sign for sign in map(str, added) if len(sign.strip()) > 1 and not sign.strip().isalnum()}
    return tuple(sorted(found, key=lambda sign: (-len(sign), sign)))


def plain(text: str, *, markup: Iterable[str] = ()) -> str:
    """Return `text` on one line, with nothing in it that the model takes for something else than words.

    Args:
        markup: strings that the tokenizer takes for signs of its own; a space parts each, and its letters are
            read.
    """
    text = " ".join(text.split())
    for sign in markup:
        text = text.replace(sign, f"{sign[:1]} {sign[1:]}")
    # Parentheses at the start say how to speak, and are not spoken. Their words are: as a clause of its own.
    while opening := _OPENING.match(text):
        inner = text[opening.end() :]
        end = _closing(inner)
        if end is None:
            text = inner.lstrip()
            continue
        rest = inner[end + 1 :].lstrip()
        inner = inner[:end].strip()
        # A sign that follows, as in "(Well), then", stays with its word.
        apart = rest[:1].isalnum() or _OPENING.match(rest)
        pause = "" if not apart else ", " if inner[-1:].isalnum() else " "
        text = f"{inner}{pause}{rest}".strip()
    return text


def styled(style: str | None, *, markup: Iterable[str] = ()) -> str:
    """Return what says to the model how to speak the text that follows it; empty without a style.

    Raises:
        BadOption: it is too long, not one line, or holds parentheses or signs of the tokenizer.
    """
    if style is None or not style.strip():
        return ""
    style = style.strip()
    if len(style) > LONGEST_STYLE:
        raise BadOption(f"style: {len(style)} characters; voxcpm2 takes {LONGEST_STYLE}")
    if any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in style):
        raise BadOption("style: voxcpm2 takes one line without control characters")
    if _BRACKETS.search(style):
        raise BadOption("style: voxcpm2 takes no parentheses in it")
    if any(sign in style for sign in markup):
        raise BadOption("style: it holds a sign of the model's own")
    return f"({style})"


def joint(words: str) -> str:
    """Return the words of a prompt as the next text can follow: the package puts one behind the other, and
    two words in Latin letters would be one.
    """
    wide = words and unicodedata.east_asian_width(words[-1]) in "WF"
    return words if wide else f"{words} "


def read_state(state: bytes, *, patch_size: int, width: int) -> Prompt:
    """Read what `voice_state` wrote. Nothing in it is believed: it comes from an object store.

    Args:
        patch_size: latents of a patch.
        width: values of a latent.

    Raises:
        BadReference: it is something else, or of another model.
    """
    if len(state) > LARGEST_STATE:
        raise BadReference(f"the voice state has {len(state)} bytes; {LARGEST_STATE} is the most")
    torch: Any = import_module("torch")
    try:
        with zipfile.ZipFile(io.BytesIO(state)) as archive:
            entries = archive.infolist()
        # As torch writes them. Compressed, a few bytes could become any number of them.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise BadReference("the voice state is compressed")
        with quiet():
            loaded = torch.load(io.BytesIO(state), map_location="cpu", weights_only=True)
    except (zipfile.BadZipFile, NotImplementedError, AssertionError, *UNREADABLE) as error:
        raise BadReference(f"the voice state cannot be read: {type(error).__name__}") from error
    if not isinstance(loaded, dict) or loaded.keys() != {"prompt_text", "audio_feat", "mode"}:
        raise BadReference("the voice state is none of voxcpm2")
    text, features = loaded["prompt_text"], loaded["audio_feat"]
    if loaded["mode"] != "continuation" or not isinstance(text, str) or not speakable(text):
        raise BadReference("the voice state is none of voxcpm2")
    if len(text) > LONGEST_PROMPT_TEXT:
        raise BadReference(f"the voice state has {len(text)} characters; {LONGEST_PROMPT_TEXT} is the most")
    if not isinstance(features, torch.Tensor) or features.dtype != torch.float32 or features.ndim != 3:
        raise BadReference("the voice state holds no latents")
    if features.shape[1:] != (patch_size, width) or not 0 < len(features) <= LONGEST_PROMPT_PATCHES:
        raise BadReference(f"the voice state is of the shape {tuple(features.shape)}: of another model")
    # A NaN is not below anything.
    if not bool((features.abs() < LARGEST_LATENT).all()):
        raise BadReference("the voice state holds values that are no latents")
    return loaded | {"audio_feat": features.contiguous()}


def _digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


def _closing(text: str) -> int | None:
    """Return where the parenthesis ends that stands open before `text`."""
    depth = 1
    for found in _BRACKETS.finditer(text):
        depth += 1 if found[0] in "(（" else -1
        if not depth:
            return found.start()
    return None


def _overflows(error: Exception) -> bool:
    """Whether the model had no position left; the sum before each call should not let it come to that."""
    said = str(error)
    return (
        "KV cache is full" in said or "must match the existing size" in said or isinstance(error, IndexError)
    )


def _clips(options: VoxCpm2Options) -> tuple[Reference, ...]:
    try:
        found = references(options.voices_dir, shortest=SHORTEST_CLIP, longest=LONGEST_CLIP)
    except BadReference as error:
        raise EngineUnavailable(f"voxcpm2: {error}") from error
    if any(voice.id == DEFAULT_VOICE for voice in found):
        log.warning("voice %s.wav is left out: the name is that of the drawn voice", DEFAULT_VOICE)
    return tuple(voice for voice in found if voice.id != DEFAULT_VOICE)


def _device(options: VoxCpm2Options, torch: Any) -> str:
    """Return `cuda` or `cpu`. Never `cuda:0`: with a number the package does not compile, without a word."""
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        raise EngineUnavailable("voxcpm2: torch finds no GPU; device=cpu does without")
    device = "cuda" if there and options.device != "cpu" else "cpu"
    if device == "cpu" and options.memory_fraction is not None:
        raise EngineUnavailable("voxcpm2: memory_fraction is of a GPU, and there is none to use")
    if device == "cuda" and options.optimize and threading.current_thread() is not threading.main_thread():
        # CUDA graphs belong to a thread, and their loss is silent: OpenBMB/VoxCPM issues 107 and 125.
        raise EngineUnavailable("voxcpm2 is compiled on a main thread alone; optimize=false does without")
    return device


def _revision(folder: Path, voices: Iterable[Reference], *, torch: str, device: str) -> str:
    parts = [fingerprint(folder), torch, device, [(voice.id, voice.sha256) for voice in voices]]
    return f"{VERSION}+{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]}"


ENGINE: Final = VoxCpm2Factory()
