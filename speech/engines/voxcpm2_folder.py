"""What must be in a folder with the weights of VoxCPM2, and whether it is.

The package reads a folder without comparing it with anything: a tensor that is missing keeps its random
start, and the voice is noise. So everything is looked at before it is loaded: the files, the length of the
weights, and every tensor's name and shape against those that the model itself declares.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from speech.engine import EngineUnavailable

ARCHITECTURE: Final = "voxcpm2"
#: In the order in which the package looks for them.
WEIGHTS: Final = ("model.safetensors", "pytorch_model.bin")
DECODER: Final = ("audiovae.safetensors", "audiovae.pth")
TOKENIZER: Final = ("tokenizer.json", "tokenizer_config.json")
#: The name of the decoder among the model's parts.
DECODER_PREFIX: Final = "audio_vae."
#: The ids 101 to 104 mark where audio begins and ends.
LAST_AUDIO_MARK: Final = 104
#: Names of tensors in one message.
MOST_NAMES: Final = 5
#: What the safetensors library takes.
LARGEST_HEADER: Final = 100_000_000
MIB: Final = 1024 * 1024

#: What reading a pickled file of tensors raises when it is cut short or something else.
UNREADABLE: Final = (
    pickle.UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
    OSError,
)

Shapes = dict[str, tuple[int, ...]]

log = logging.getLogger("voxfleet.engine")


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Keep what the package prints, and its hundred warnings about its own style, out of the worker's log."""
    said = io.StringIO()
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(said),
    ):
        warnings.simplefilter("ignore")
        yield said
    if said.getvalue():
        log.debug("voxcpm said: %s", said.getvalue().strip())


def verify(folder: Path) -> None:
    """Compare a folder with what the model needs; the voxcpm package must be importable.

    Raises:
        EngineUnavailable: names the file, or the tensors, that are missing or wrong.
    """
    config = _config(folder)
    weights = _present(folder, WEIGHTS)
    decoder = _present(folder, DECODER)
    for name in TOKENIZER:
        if not isinstance(_json(folder, name), dict):
            raise EngineUnavailable(f"voxcpm2: {name} is no JSON object")
    # Before the model is built for comparison: these say more plainly what is wrong.
    found, found_decoder = _shapes(weights), _shapes(decoder)
    declared = _declared(folder, config)
    _compare(
        weights.name,
        found,
        {name: shape for name, shape in declared.items() if not name.startswith(DECODER_PREFIX)},
    )
    _compare(
        decoder.name,
        found_decoder,
        {
            name.removeprefix(DECODER_PREFIX): shape
            for name, shape in declared.items()
            if name.startswith(DECODER_PREFIX)
        },
    )


def fingerprint(folder: Path) -> str:
    """Return a digest, lower-case hex, of what is in a verified folder.

    Of each file of weights its length and its first and last MiB alone, for 5 GB would take seconds at every
    start: the header with all names, shapes and offsets, the embedding or the last layers. Weights that were
    trained further differ there; a bit that has turned over in the middle does not show.
    """
    digest = hashlib.sha256()
    for path in (folder / "config.json", *(folder / name for name in TOKENIZER)):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    for path in (_present(folder, WEIGHTS), _present(folder, DECODER)):
        size = path.stat().st_size
        with path.open("rb") as file:
            digest.update(size.to_bytes(8, "little") + file.read(MIB))
            file.seek(max(0, size - MIB))
            digest.update(file.read(MIB))
    return digest.hexdigest()


def safetensors_shapes(path: Path) -> Shapes:
    """Return the shapes of the tensors in a safetensors file, from its header alone.

    Source: https://github.com/huggingface/safetensors#format

    Raises:
        EngineUnavailable: it is none, or not as long as its header says.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        header = file.read(length) if length <= LARGEST_HEADER else b""
    if len(start) < 8 or len(header) < length:
        raise EngineUnavailable(f"voxcpm2: {path.name} is cut short, or no safetensors file")
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        shapes = {name: tuple(map(int, entry["shape"])) for name, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise EngineUnavailable(f"voxcpm2: the header of {path.name} is damaged") from error
    if size != 8 + length + end:
        raise EngineUnavailable(
            f"voxcpm2: {path.name} has {size} bytes, and {8 + length + end} by its own header: it is damaged"
        )
    return shapes


def _config(folder: Path) -> Mapping[str, Any]:
    config = _json(folder, "config.json")
    # What the package takes a folder for that does not say.
    found = config.get("architecture", "voxcpm") if isinstance(config, dict) else None
    if found is None or str(found).lower() != ARCHITECTURE:
        raise EngineUnavailable(
            f"voxcpm2: config.json is of the architecture {found!r}, {ARCHITECTURE} is needed"
        )
    return dict(config)


def _json(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_text(encoding="utf-8"))
    except OSError as error:
        raise EngineUnavailable(
            f"voxcpm2: {name} cannot be read in {folder.name}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise EngineUnavailable(f"voxcpm2: {name} is no JSON: {error}") from error


def _present(folder: Path, names: tuple[str, ...]) -> Path:
    """Return the file that the package would load."""
    for name in names:
        if (folder / name).exists():
            if not os.access(folder / name, os.R_OK) or not (folder / name).is_file():
                raise EngineUnavailable(f"voxcpm2: {name} cannot be read")
            return folder / name
    raise EngineUnavailable(f"voxcpm2: {folder.name} holds neither {' nor '.join(names)}")


def _shapes(path: Path) -> Shapes:
    if path.suffix == ".safetensors":
        return safetensors_shapes(path)
    torch: Any = import_module("torch")
    try:
        with quiet():
            # No tensor is read: `meta` has shapes alone. Files from before torch 1.6 are no archives.
            loaded = torch.load(path, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(path))
    except UNREADABLE as error:
        raise EngineUnavailable(
            f"voxcpm2: {path.name} cannot be read: {type(error).__name__}: {_first_line(error)}"
        ) from error
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict):
        raise EngineUnavailable(f"voxcpm2: {path.name} holds no tensors")
    return {
        str(name): tuple(tensor.shape) for name, tensor in state.items() if isinstance(tensor, torch.Tensor)
    }


def _declared(folder: Path, config: Mapping[str, Any]) -> Shapes:
    """Return the parameters of the model that `config` describes. 0.3 s at the released size, and no memory.

    Not its buffers: the model makes those out of the configuration where a file has none.

    Raises:
        EngineUnavailable: the configuration, or the tokenizer, cannot be that of this model.
    """
    torch: Any = import_module("torch")
    with quiet():
        package: Any = import_module("voxcpm.model.voxcpm2")
        try:
            read = package.VoxCPMConfig.model_validate(config)
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:MOST_NAMES]
            )
            raise EngineUnavailable(f"voxcpm2: config.json: {faults}") from error
        vocabulary = read.lm_config.vocab_size
        tokenizer = package.LlamaTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        last = max(tokenizer.get_vocab().values(), default=-1)
        if max(last, LAST_AUDIO_MARK) >= vocabulary:
            # On a GPU one such id in a text is the end of the process.
            raise EngineUnavailable(
                f"voxcpm2: tokenizer.json has the id {last}, the model {vocabulary} of them: "
                "it belongs to another model"
            )
        # The buffer for keys and values is the one thing that would be real.
        read.max_length = 1
        with torch.device("meta"):
            decoder = package.AudioVAEV2(config=read.audio_vae_config)
            model = package.VoxCPM2Model(read, tokenizer, decoder, device="cpu")
    return {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}


def _compare(file: str, found: Shapes, declared: Shapes) -> None:
    missing = sorted(declared.keys() - found.keys())
    if missing:
        raise EngineUnavailable(f"voxcpm2: {file} lacks {len(missing)} tensors: {_some(missing)}")
    wrong = sorted(name for name, shape in declared.items() if found[name] != shape)
    if wrong:
        raise EngineUnavailable(
            f"voxcpm2: {len(wrong)} tensors of {file} have another shape than by config.json: {_some(wrong)}"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
