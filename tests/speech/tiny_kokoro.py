"""A Kokoro folder of random weights, a megabyte and a half, that onnxruntime loads and speaks from.

A phoneme, and each of the two pads, is 1,800 samples: 75 ms, divided by the speed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SAMPLE_RATE = 24_000
SAMPLES_PER_PHONEME = 1_800
VOCABULARY = 178
WIDTH = 8
VOICES = ("af_heart", "bm_george", "jf_alpha")


def build(folder: Path, *, seed: int = 0, inputs: tuple[str, ...] = ("tokens", "style", "speed")) -> Path:
    """Write the folder."""
    random = np.random.default_rng(seed)
    (folder / "voices").mkdir(parents=True)
    for name in VOICES:
        (random.standard_normal((510, 1, 256)) * 0.1).astype("<f4").tofile(folder / f"voices/{name}.bin")
    onnx.save(graph(random, inputs), str(folder / "kokoro-tiny.onnx"))
    return folder


def graph(random: np.random.Generator, inputs: tuple[str, ...]) -> onnx.ModelProto:
    """Return the graph; the speed shortens what is read of each phoneme's wave."""
    tokens, style, speed = inputs
    node = helper.make_node
    time = np.arange(SAMPLES_PER_PHONEME) / SAMPLE_RATE
    hertz = random.uniform(110, 800, WIDTH)
    weights = {
        "table": random.standard_normal((VOCABULARY, WIDTH)).astype(np.float32),
        "mix": (random.standard_normal((256, WIDTH)) * 0.02).astype(np.float32),
        "waves": (np.sin(2 * np.pi * hertz[:, None] * time) / WIDTH**0.5).astype(np.float32),
        "flat": np.array([-1], np.int64),
        "zero": np.array([0], np.int64),
        "last": np.array([2], np.int64),
        "length": np.array([SAMPLES_PER_PHONEME], np.float32),
    }
    nodes = [
        node("Gather", ["table", tokens], ["embedded"]),
        node("MatMul", [style, "mix"], ["voice"]),
        node("Add", ["embedded", "voice"], ["both"]),
        node("MatMul", ["both", "waves"], ["sound"]),
        node("Div", ["length", speed], ["exact"]),
        node("Cast", ["exact"], ["count"], to=TensorProto.INT64),
        node("Slice", ["sound", "zero", "count", "last"], ["cut"]),
        node("Tanh", ["cut"], ["bounded"]),
        node("Reshape", ["bounded", "flat"], ["audio"]),
    ]
    given = [
        helper.make_tensor_value_info(tokens, TensorProto.INT64, [1, "n"]),
        helper.make_tensor_value_info(style, TensorProto.FLOAT, [1, 256]),
        helper.make_tensor_value_info(speed, TensorProto.FLOAT, [1]),
    ]
    audio = helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["samples"])
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    made = helper.make_graph(nodes, "kokoro", given, [audio], constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model
