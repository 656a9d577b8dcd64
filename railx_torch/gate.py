"""A gate in a CUDA stream: what comes behind it runs once the host has opened it.

With a gate an operation is launched, in the order of the program, before its circuits
are there: the stream waits for them and the program's thread does not. The stream polls
a word of pinned memory (``cuStreamWaitValue32`` of the CUDA driver API). Reviewed and
held by fakes; not measured on a GPU yet.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

# Torch's own hints leave most of this module untyped.
_cuda: Any = torch.cuda

#: CU_STREAM_WAIT_VALUE_GEQ: wait until the word is at least the value.
_AT_LEAST = 0
_OPEN = 1


@cache
def _stream_wait_value() -> Any:
    """``cuStreamWaitValue32``; None where the driver lacks it."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    function.restype = ctypes.c_int
    return function


class Gate:
    """A closed gate; kept until the device has passed it, which reads its memory."""

    def __init__(self) -> None:
        self._word = torch.zeros(1, dtype=torch.int32, pin_memory=True)

    def hold(self, stream: Any) -> None:
        """Let ``stream`` wait here; RuntimeError where the driver refuses."""
        code = _stream_wait_value()(stream.cuda_stream, self._word.data_ptr(), _OPEN, _AT_LEAST)
        if code:
            raise RuntimeError(f"railx: cuStreamWaitValue32 ended with CUDA error {code}")

    def open(self) -> None:
        """Let the stream go on; may be called again."""
        ctypes.c_int32.from_address(self._word.data_ptr()).value = _OPEN


@cache
def has_gates(device: torch.device) -> bool:
    """Whether streams of ``device`` wait at gates: one is tried, once."""
    if _stream_wait_value() is None:
        return False
    with _cuda.device(device):
        stream, gate, passed = _cuda.Stream(device), Gate(), _cuda.Event(blocking=True)
        try:
            gate.hold(stream)
        except RuntimeError:
            return False
        passed.record(stream)
        waited = not passed.query()
        gate.open()
        passed.synchronize()
    return waited
