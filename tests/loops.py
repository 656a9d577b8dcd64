"""A test that checks every entry of a list, and names all that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

__all__ = ["for_every"]

_Test = Callable[..., None]


def for_every(
    argument: str, entries: Iterable[Any], name: Callable[[Any], object] = str
) -> Callable[[_Test], _Test]:
    """Like ``pytest.mark.parametrize``, with one case for all ``entries``.

    The test is called with every entry as ``argument``. Where calls fail, the message
    has the ``name`` and the failure of each. All calls share the test's fixtures.
    """
    listed = list(entries)
    assert listed, f"no {argument} to check"

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def check_all(**fixtures: Any) -> None:
            failures = []
            for entry in listed:
                try:
                    test(**fixtures, **{argument: entry})
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{name(entry)}: {type(error).__name__}: {error}")
            if failures:
                pytest.fail(f"{len(failures)} of {len(listed)} fail:\n" + "\n".join(failures))

        signature = inspect.signature(test)
        fixtures = [value for key, value in signature.parameters.items() if key != argument]
        check_all.__signature__ = signature.replace(parameters=fixtures)
        return check_all

    return decorate
