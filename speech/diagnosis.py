"""What an engine's own exception means, by one table: out of memory, or a process that must end, or neither.

By the names of classes and by words: nothing here imports a runtime, and the same fault comes under several
classes. Sources: PyTorch (`torch.OutOfMemoryError`, `torch.AcceleratorError`, c10's allocators, cuBLAS and
cuDNN status names), onnxruntime's `Fail` and `RuntimeException`, which are neither `RuntimeError` nor
`MemoryError`, and the C++ library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong.

    Attributes:
        memory: there was too little memory: less at once may work.
        fatal: what this process answers from now on is wrong, or an error: it must end.
    """

    memory: bool
    fatal: bool


OTHER: Final = Diagnosis(memory=False, fatal=False)
MEMORY: Final = Diagnosis(memory=True, fatal=False)
#: An onnxruntime session still raised bad_alloc for ten floats afterwards.
MEMORY_FOR_GOOD: Final = Diagnosis(memory=True, fatal=True)
#: "Program restart is required": https://github.com/pytorch/pytorch/issues/17425
POISONED: Final = Diagnosis(memory=False, fatal=True)

#: The first row whose words an error's text holds, in lower case.
WORDS: Final[tuple[tuple[str, Diagnosis], ...]] = (
    ("std::bad_alloc", MEMORY_FOR_GOOD),
    ("out of memory", MEMORY),
    # CPU: "DefaultCPUAllocator: can't allocate memory", errno ENOMEM.
    ("can't allocate memory", MEMORY),
    ("cannot allocate memory", MEMORY),
    ("not enough memory", MEMORY),
    # The words of onnxruntime's arena.
    ("failed to allocate memory", MEMORY),
    ("out_of_memory", MEMORY),
    # CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED.
    ("alloc_failed", MEMORY),
    ("memoryallocation", MEMORY),
    ("device-side assert", POISONED),
    ("illegal memory access", POISONED),
    ("illegal address", POISONED),
    ("illegal instruction", POISONED),
    ("misaligned address", POISONED),
    # CUDA says "unspecified launch failure", onnxruntime "launch failed".
    ("launch failure", POISONED),
    ("launch failed", POISONED),
    ("launch timed out", POISONED),
    ("execution_failed", POISONED),
    ("mapping_error", POISONED),
    ("uncorrectable ecc", POISONED),
    ("hardware stack error", POISONED),
    ("device lost", POISONED),
    ("fallen off the bus", POISONED),
    ("context is destroyed", POISONED),
    ("invalid device context", POISONED),
)
#: Of an error whose words say nothing: the first of its class and those above.
CLASSES: Final[dict[str, Diagnosis]] = {
    "OutOfMemoryError": MEMORY,
    "MemoryError": MEMORY,
    "AcceleratorError": POISONED,
}


def diagnose(error: BaseException) -> Diagnosis:
    """Return what an exception means."""
    said = str(error).lower()
    names = [kind.__name__ for kind in type(error).__mro__]
    if "OutOfMemoryError" in names:
        # It may quote anything of the allocator's state.
        return MEMORY
    for words, diagnosis in WORDS:
        if words in said:
            return diagnosis
    return next((CLASSES[name] for name in names if name in CLASSES), OTHER)
