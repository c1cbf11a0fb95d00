"""What the engines on onnxruntime have in common. The runtime is imported by the engine, and given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speech.diagnosis import diagnose
from speech.engine import EngineUnavailable


def session_options(runtime: Any, *, threads: int) -> Any:
    """Return how onnxruntime runs a graph.

    Args:
        runtime: the module `onnxruntime`.
    """
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    # No graph has branches that are worth a thread.
    options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = True
    # Shares of work that grow smaller towards the end: no thread waits for one whose core was taken away.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    # A thread without work would keep its core busy, beside workers that need it.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def load_graph(
    path: Path,
    *,
    inputs: Mapping[str, tuple[str, int]],
    engine: str,
    runtime: Any,
    threads: int,
    name: str = "",
) -> Any:
    """Load a graph for the CPU; return the `InferenceSession`.

    Args:
        inputs: name, type and rank of what it must take.
        engine: named in errors.
        name: what to call the file there.

    Raises:
        EngineUnavailable: it is damaged, or another graph.
        Others, of the runtime: there is too little memory for it.
    """
    name = name or path.name
    options = session_options(runtime, threads=threads)
    try:
        session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except failures(runtime) as error:
        if diagnose(error).memory:
            raise
        said = str(error).partition("\n")[0]
        raise EngineUnavailable(f"{engine}: {name} cannot be loaded: {said}") from error
    found = {value.name: (value.type, len(value.shape)) for value in session.get_inputs()}
    # A graph that does not say its shapes has the rank 0.
    if found.keys() != inputs.keys() or any(
        found[value] not in ((kind, rank), (kind, 0)) for value, (kind, rank) in inputs.items()
    ):
        raise EngineUnavailable(
            f"{engine}: {name} has the inputs {_listed(found)}; {_listed(inputs)} are needed"
        )
    return session


def failures(runtime: Any) -> tuple[type[Exception], ...]:
    """Return what onnxruntime raises: classes that have nothing in common but `Exception`."""
    state = runtime.capi.onnxruntime_pybind11_state
    found = (getattr(state, name) for name in dir(state))
    return (
        RuntimeError,
        ValueError,
        *(kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)),
    )


def _listed(inputs: Mapping[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name}: {kind} of rank {rank}" for name, (kind, rank) in sorted(inputs.items()))
