"""Operations that pass through torch's dispatcher while somebody watches it.

A process group of torch in C++ sends each operation through the dispatcher, as an
operator ``c10d::...``. There torch's tools see it: dispatch modes, such as
``CommDebugMode``, and the profiler. A process group written in Python is called without
the dispatcher. So, while a mode or the profiler is active in the calling thread, the
operation takes this way: the inner group's method dispatches the operator, and at the
bottom of the stack of modes, :class:`_Carrier` runs our operation in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._C import (
    _len_torch_dispatch_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

_T = TypeVar("_T")

# Torch's own hints leave this untyped.
_profiler_enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled
#: Whether the calling thread records operators.
_record: Callable[[bool], None] = torch._C._autograd._enable_record_function


def _is_watched() -> bool:
    """Whether a dispatch mode or the profiler is active in the calling thread."""
    return _len_torch_dispatch_stack() > 0 or _profiler_enabled()


def unrecorded(method: Callable[..., _T]) -> Callable[..., _T]:
    """A method that dispatches an operator which the profiler has recorded already."""
    if not _is_watched():
        return method

    def call(*arguments: Any, **keywords: Any) -> _T:
        _record(False)
        try:
            return method(*arguments, **keywords)
        finally:
            _record(True)

    return call


class _Carrier(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The lowest mode: runs ``issue`` in place of the operator's kernel."""

    def __init__(self, issue: Callable[[], Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._issue = issue
        #: The handle of the operation. The operator's box does not keep it alive.
        self.work: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace != "c10d":
            # A barrier creates an empty tensor first.
            return func(*args, **(kwargs or {}))
        self.work = self._issue()
        returned = len(func._schema.returns)
        if returned == 0:
            return None
        # Outputs come first in every schema, and are returned in front of the handle.
        return self.work.boxed() if returned == 1 else (args[0], self.work.boxed())


def dispatched(dispatch: Callable[[], Any], issue: Callable[[], _T]) -> _T:
    """Run ``issue``, as the kernel of the operator of ``dispatch`` while it is watched.

    Returns what ``issue`` does, or what a mode that did not run it put in its place.
    Under a mode of the tracer (fake tensors, say) the operator's own kernels run.
    """
    if not _is_watched():
        return issue()
    modes = _get_current_dispatch_mode_stack()
    result: _T
    if any(mode.is_infra_mode() for mode in modes):
        result = dispatch()
        return result
    for _ in modes:
        _pop_torch_dispatch_stack(None)
    carrier = _Carrier(issue)
    _push_on_torch_dispatch_stack(carrier)
    for mode in modes:
        _push_on_torch_dispatch_stack(mode)
    try:
        result = dispatch()
        return result if carrier.work is None else carrier.work
    finally:
        for _ in range(_len_torch_dispatch_stack()):
            _pop_torch_dispatch_stack(None)
        for mode in modes:
            _push_on_torch_dispatch_stack(mode)
