"""What makes the name ``railx`` known to torch.distributed.

The entry point of ``torch.backends``: torch calls :func:`register` at the end of
``import torch`` where this package is installed. Nothing is imported and nothing
connects before a program asks for a group of this name.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Let torch.distributed create ``railx`` groups, whenever one is asked for."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    dist.Backend.register_backend("railx", _create, extended_api=True, devices=["cpu", "cuda"])


def _create(options: Any, _: Any) -> Any:
    from training.backend import create_group

    return create_group(options)
