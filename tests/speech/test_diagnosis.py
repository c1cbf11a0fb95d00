"""What engines' own errors mean: the same fault comes under several names."""

import pytest

from speech.diagnosis import Diagnosis, diagnose


class OutOfMemoryError(RuntimeError):
    """As torch names its own; what it says need not speak of memory."""


class AcceleratorError(RuntimeError):
    """As torch names any error of CUDA since 2.8."""


class Fail(Exception):
    """As onnxruntime names most of its errors: neither a RuntimeError nor a MemoryError."""


MEMORY = [
    OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 7.79 GiB"),
    OutOfMemoryError("Allocation on device"),
    RuntimeError("CUDA error: out of memory"),
    AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    Fail("[ONNXRuntimeError] : 1 : FAIL : Failed to allocate memory for requested buffer of size 1048576"),
    OSError(12, "Cannot allocate memory"),
    MemoryError(),
    MemoryError("Unable to allocate 1.2 GiB for an array"),
]
FATAL = [
    AcceleratorError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: unspecified launch failure"),
    RuntimeError("CUDA error: misaligned address"),
    RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx`"),
    AcceleratorError("CUDA error: unknown error"),
]
OTHER = [
    ValueError("KV cache is full"),
    RuntimeError("shape mismatch"),
    RuntimeError("The size of tensor a (4) must match the size of tensor b (5)"),
    TypeError("'NoneType' object is not subscriptable"),
    OSError(28, "No space left on device"),
    Fail("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input"),
]


@pytest.mark.parametrize("error", MEMORY, ids=repr)
def test_too_little_memory_is_told_by_whatever_name(error: Exception) -> None:
    assert diagnose(error) == Diagnosis(memory=True, fatal=False)


@pytest.mark.parametrize("error", FATAL, ids=repr)
def test_a_device_that_is_lost_ends_the_process(error: Exception) -> None:
    assert diagnose(error) == Diagnosis(memory=False, fatal=True)


@pytest.mark.parametrize("error", OTHER, ids=repr)
def test_other_errors_are_neither(error: Exception) -> None:
    assert diagnose(error) == Diagnosis(memory=False, fatal=False)


def test_a_bad_alloc_is_both_since_a_session_does_not_recover_from_it() -> None:
    assert diagnose(Fail("Non-zero status code. std::bad_alloc")) == Diagnosis(memory=True, fatal=True)


def test_the_table_knows_torchs_own_classes() -> None:
    import torch

    assert diagnose(torch.OutOfMemoryError("x")).memory
    assert diagnose(torch.AcceleratorError("x")).fatal
