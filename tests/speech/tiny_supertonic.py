"""A folder of Supertonic 3 with small random weights, which the real package loads: no speech, but sound.

Names, types and ranks of all inputs are those of the released graphs, and so is a frame of 3,072 samples at
44.1 kHz; channels are shrunk, to 0.6 MB. A text lasts 60 ms for each character that the model gets of it, the
language tags included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLE_RATE = 44_100
BASE = 512
FACTOR = 6
FRAME = BASE * FACTOR
LATENT = 4
STYLE_TTL = (1, 6, 8)
STYLE_DP = (1, 3, 4)
EMBEDDING = 8
SECONDS_PER_CHAR = 0.06
VOICES = tuple(f"{kind}{number}" for kind in "MF" for number in range(1, 6))

#: What the indexer knows, as the released one: base letters and accents apart, jamo instead of syllables. The
#: dot below, U+0323, is left out, and so is all of Armenian.
KNOWN = (
    *((0x20, 0x22), (0x24, 0x3F), (0x41, 0x5A), (0x61, 0x7A), (0x7D, 0x7D)),
    *((0xA1, 0xA1), (0xA3, 0xA3), (0xAB, 0xAB), (0xB0, 0xB0), (0xBB, 0xBB), (0xBF, 0xBF)),
    *((0x300, 0x322), (0x324, 0x333), (0x391, 0x3C9), (0x410, 0x45F)),
    *((0x621, 0x63A), (0x641, 0x64A), (0x905, 0x94D)),
    *((0x1100, 0x1112), (0x1161, 0x1175), (0x11A8, 0x11C2)),
    *((0x3001, 0x3002), (0x3041, 0x3096), (0x3099, 0x3099), (0x30A1, 0x30FA), (0x4E00, 0x4E20)),
    *((0x20AC, 0x20AC), (0x2026, 0x2026)),
)


def build(
    folder: Path,
    *,
    seed: int = 0,
    seconds_per_char: float = SECONDS_PER_CHAR,
    latent: int = LATENT,
    voices: Iterable[str] = VOICES,
) -> Path:
    """Write the folder, and return it; the same every time.

    Args:
        latent: channels of the graphs; another number than `LATENT` does not go with the configuration.
    """
    numbers = np.random.default_rng(seed)
    (folder / "onnx").mkdir(parents=True)
    (folder / "voice_styles").mkdir()
    index = indexer()
    words = max(index) + 1
    duration_predictor(folder, words=words, seconds_per_char=seconds_per_char)
    text_encoder(folder, table=_random(numbers, words, EMBEDDING))
    vector_estimator(folder, numbers, channels=latent * FACTOR)
    vocoder(folder, numbers, channels=latent * FACTOR)
    config = {
        "tts_version": "tiny",
        "ae": {"sample_rate": SAMPLE_RATE, "base_chunk_size": BASE},
        "ttl": {"chunk_compress_factor": FACTOR, "latent_dim": LATENT},
    }
    (folder / "onnx/tts.json").write_text(json.dumps(config))
    (folder / "onnx/unicode_indexer.json").write_text(json.dumps(index))
    for voice in voices:
        write_style(folder / f"voice_styles/{voice}.json", numbers)
    return folder


def indexer() -> list[int]:
    """Return the index of each code point; -1 of those that the model does not know."""
    index = [-1] * 65_536
    known = (point for first, last in KNOWN for point in range(first, last + 1))
    for number, point in enumerate(known):
        index[point] = number
    return index


def write_style(path: Path, numbers: np.random.Generator) -> None:
    """Write a voice."""
    style = {
        name: {"dims": list(dims), "type": "float32", "data": _random(numbers, *dims).tolist()}
        for name, dims in (("style_ttl", STYLE_TTL), ("style_dp", STYLE_DP))
    }
    path.write_text(json.dumps(style))


def duration_predictor(folder: Path, *, words: int, seconds_per_char: float) -> None:
    """Write the graph that counts the characters. An index beyond its table fails, as in the released one."""
    write_graph(
        folder / "onnx/duration_predictor.onnx",
        [
            helper.make_node("ReduceSum", ["text_mask", "inner"], ["count"], keepdims=0),
            helper.make_node("Mul", ["count", "pace"], ["seconds"]),
            helper.make_node("Gather", ["table", "text_ids"], ["found"]),
            helper.make_node("ReduceMean", ["found"], ["text"], axes=[1], keepdims=0),
            helper.make_node("ReduceMean", ["style_dp"], ["style"], axes=[1, 2], keepdims=0),
            helper.make_node("Add", ["text", "style"], ["both"]),
            helper.make_node("Mul", ["both", "zero"], ["nothing"]),
            helper.make_node("Add", ["seconds", "nothing"], ["duration"]),
        ],
        [_indices(), _floats("style_dp", "b", *STYLE_DP[1:]), _floats("text_mask", "b", 1, "t")],
        _floats("duration", "b"),
        {
            "inner": np.array([1, 2], np.int64),
            "pace": np.array([seconds_per_char], np.float32),
            "table": np.zeros(words, np.float32),
            "zero": np.zeros(1, np.float32),
        },
    )


def text_encoder(folder: Path, *, table: Any) -> None:
    """Write the graph that looks each character up, and adds the voice."""
    write_graph(
        folder / "onnx/text_encoder.onnx",
        [
            helper.make_node("Gather", ["table", "text_ids"], ["found"]),
            helper.make_node("ReduceMean", ["style_ttl"], ["style"], axes=[1], keepdims=1),
            helper.make_node("Add", ["found", "style"], ["both"]),
            helper.make_node("Transpose", ["both"], ["turned"], perm=[0, 2, 1]),
            helper.make_node("Mul", ["turned", "text_mask"], ["text_emb"]),
        ],
        [_indices(), _floats("style_ttl", "b", *STYLE_TTL[1:]), _floats("text_mask", "b", 1, "t")],
        _floats("text_emb", "b", EMBEDDING, "t"),
        {"table": table},
    )


def vector_estimator(folder: Path, numbers: np.random.Generator, *, channels: int) -> None:
    """Write the graph of one step: noise, text and voice, mixed."""
    write_graph(
        folder / "onnx/vector_estimator.onnx",
        [
            helper.make_node("Conv", ["noisy_latent", "of_noise"], ["noise"]),
            helper.make_node("Mul", ["text_emb", "text_mask"], ["spoken"]),
            helper.make_node("ReduceMean", ["spoken"], ["gist"], axes=[2], keepdims=1),
            helper.make_node("Conv", ["gist", "of_text"], ["text"]),
            helper.make_node("Transpose", ["style_ttl"], ["turned"], perm=[0, 2, 1]),
            helper.make_node("ReduceMean", ["turned"], ["manner"], axes=[2], keepdims=1),
            helper.make_node("Conv", ["manner", "of_style"], ["style"]),
            helper.make_node("Sum", ["noise", "text", "style"], ["all"]),
            helper.make_node("Tanh", ["all"], ["change"]),
            helper.make_node("Add", ["current_step", "one"], ["step"]),
            helper.make_node("Div", ["step", "total_step"], ["share"]),
            helper.make_node("Unsqueeze", ["share", "inner"], ["share_3d"]),
            helper.make_node("Mul", ["change", "share_3d"], ["part"]),
            helper.make_node("Add", ["noisy_latent", "part"], ["next"]),
            helper.make_node("Mul", ["next", "latent_mask"], ["denoised_latent"]),
        ],
        [
            _floats("noisy_latent", "b", channels, "l"),
            _floats("text_emb", "b", EMBEDDING, "t"),
            _floats("style_ttl", "b", *STYLE_TTL[1:]),
            _floats("text_mask", "b", 1, "t"),
            _floats("latent_mask", "b", 1, "l"),
            _floats("current_step", "b"),
            _floats("total_step", "b"),
        ],
        _floats("denoised_latent", "b", channels, "l"),
        {
            "of_noise": 0.1 * _random(numbers, channels, channels, 1),
            "of_text": 0.3 * _random(numbers, channels, EMBEDDING, 1),
            "of_style": 0.3 * _random(numbers, channels, STYLE_TTL[2], 1),
            "one": np.ones(1, np.float32),
            "inner": np.array([1, 2], np.int64),
        },
    )


def vocoder(folder: Path, numbers: np.random.Generator, *, channels: int) -> None:
    """Write the graph that makes a frame of samples out of each latent: a chord of one tone per channel."""
    time = np.arange(FRAME) / SAMPLE_RATE
    # Whole periods in a frame, 115 to 575 Hz.
    hertz = numbers.integers(8, 40, channels) * SAMPLE_RATE / FRAME
    tones = np.sin(2 * np.pi * np.outer(hertz, time)) / np.sqrt(channels)
    write_graph(
        folder / "onnx/vocoder.onnx",
        [
            helper.make_node("Transpose", ["latent"], ["turned"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["turned", "tones"], ["frames"]),
            helper.make_node("Tanh", ["frames"], ["bounded"]),
            helper.make_node("Mul", ["bounded", "gain"], ["audio"]),
            helper.make_node("Reshape", ["audio", "flat"], ["wav_tts"]),
        ],
        [_floats("latent", "b", channels, "l")],
        _floats("wav_tts", "b", "n"),
        {
            "tones": tones.astype(np.float32),
            "gain": np.array([0.5], np.float32),
            "flat": np.array([0, -1], np.int64),
        },
    )


def write_graph(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    values: Mapping[str, Any],
) -> None:
    """Write a graph after checking it."""
    weights = [numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, path.stem, inputs, [output], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    # The newest would be refused by an onnxruntime that is a little older.
    model.ir_version = 9
    onnx.checker.check_model(model)
    onnx.save(model, str(path))


def _indices() -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info("text_ids", TensorProto.INT64, ["b", "t"])


def _floats(name: str, *dims: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims))


def _random(numbers: np.random.Generator, *dims: int) -> Any:
    return numbers.standard_normal(dims).astype(np.float32)
