"""What the engines on onnxruntime have in common; the runtime is imported by `session` alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from speech.engine import EngineUnavailable

_CPUS: Final = Path("/sys/devices/system/cpu")
_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> int:
    """Return how many cores this process may use: those of its affinity mask, two threads of one core counted
    once, and no more than its control group is given.
    """
    mine = os.sched_getaffinity(0)
    cores = set()
    for cpu in mine:
        try:
            cores.add((_CPUS / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip())
        except OSError:
            cores.add(str(cpu))
    try:
        quota, period = _QUOTA.read_text().split()
        given = len(mine) if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError, ZeroDivisionError):
        given = len(mine)
    return max(1, min(len(cores), given))


def session(path: Path, *, threads: int, inputs: frozenset[str], engine: str) -> Any:
    """Load a graph for the CPU; return the `onnxruntime.InferenceSession`.

    Args:
        inputs: the names that it must have.

    Raises:
        EngineUnavailable: it is missing, damaged, or another graph; names the file.
    """
    import onnxruntime as ort  # noqa: PLC0415  # the model's runtime: in the engine's process alone
    from onnxruntime.capi import onnxruntime_pybind11_state as errors  # noqa: PLC0415

    # They have no common class but Exception.
    failures = tuple(
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
    )
    if not path.is_file():
        raise EngineUnavailable(f"{engine}: {path.name} is missing from {path.parent}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.enable_cpu_mem_arena = True
    # Threads that spin between two small operators take the core from the API and from ffmpeg.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Smaller blocks towards the end of a parallel loop: a core that was taken away holds the others up less.
    options.add_session_config_entry("session.dynamic_block_base", "4")
    # Warnings of its optimizer are for whoever exports a model.
    options.log_severity_level = 3
    try:
        loaded = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except failures as error:
        raise EngineUnavailable(f"{engine}: {path.name} cannot be loaded: {error}") from error
    if (found := {given.name for given in loaded.get_inputs()}) != inputs:
        raise EngineUnavailable(
            f"{engine}: {path.name} is another graph: its inputs are {', '.join(sorted(found))}, "
            f"not {', '.join(sorted(inputs))}"
        )
    return loaded
