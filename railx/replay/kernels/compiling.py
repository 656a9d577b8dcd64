"""How the engine's loops are compiled, and kept on disk.

Numba caches a compiled function by the function's own file and does not see changes in
the files that it calls. So every loop takes the :class:`EngineState`, and the type of
one of its arrays carries a digest of all files here (``SOURCES`` of :mod:`state`).
Where a file has changed, the types are new and Numba compiles everything again.

Two measures shorten the compilation. Numba passes a tuple of arrays field by field,
several hundred values with each call; so the loop gives its callees a pointer to the
tuple (:func:`lent`). And all integers have one type in a call, so that each function is
compiled once for every kind of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, TypeVar, cast

from numba import njit
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, models, register_model

__all__ = ["called", "compiled", "lent"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Lent(types.Type):
    """A pointer to a named tuple of arrays."""

    def __init__(self, arrays: Any) -> None:
        self.dtype = arrays
        # The name of the tuple's type has thousands of letters, and is part of the name
        # of everything that takes one.
        super().__init__(name=f"Lent({sha256(str(arrays).encode()).hexdigest()[:16]})")


register_model(Lent)(models.PointerModel)


@infer_getattr
class _LentFields(AttributeTemplate):  # type: ignore[misc]
    key = Lent

    def generic_resolve(self, lent: Lent, name: str) -> Any:
        fields = lent.dtype.fields
        return lent.dtype.types[fields.index(name)] if name in fields else None


@lower_getattr_generic(Lent)  # type: ignore[untyped-decorator]
def _load(context: Any, builder: Any, lent: Lent, pointer: Any, name: str) -> Any:
    index = lent.dtype.fields.index(name)
    kind = lent.dtype.types[index]
    address = cgutils.gep_inbounds(builder, pointer, 0, index)
    loaded = context.data_model_manager[kind].load_from_data_pointer(builder, address)
    return impl_ret_borrowed(context, builder, kind, loaded)


@intrinsic  # type: ignore[untyped-decorator]
def lent(typing: Any, arrays: Any) -> Any:
    """A pointer to a named tuple of arrays, for callees: it ends with the caller."""

    def store(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        model = context.data_model_manager[signature.args[0]]
        address = cgutils.alloca_once(builder, model.get_data_type())
        builder.store(model.as_data(builder, arguments[0]), address)
        return address

    return Lent(arrays)(arrays), store


def called(function: Function) -> Function:
    """Compile on first use, for compiled callers, of whose compiled code it is part.

    Nothing here allocates, so arrays go without reference counts. Whole numbers come as
    64 bits, and so do truths.
    """
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled_function = njit(error_model="numpy", _nrt=False, **wrappers)(function)
    resolve = compiled_function.get_call_template
    compiled_function.get_call_template = lambda kinds, named: resolve(
        tuple(map(_wide, kinds)), named
    )
    return cast("Function", compiled_function)


def _wide(kind: Any) -> Any:
    return types.int64 if isinstance(kind, types.Integer | types.Boolean) else kind


def compiled(function: Function) -> Function:
    """Compile on first use and keep the result on disk."""
    return cast("Function", njit(cache=True, error_model="numpy")(function))
