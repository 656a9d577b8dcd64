"""What a computation allocates, as seen by torch's dispatcher."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """The elements in the storage of the largest tensor that any operation gives.

    The backward pass counts too where it runs inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(given):
            if isinstance(leaf, Tensor):
                size = leaf.untyped_storage().nbytes() // leaf.element_size()
                self.elements = max(self.elements, size)
        return given
