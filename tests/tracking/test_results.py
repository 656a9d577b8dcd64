"""Digests of results: the same for the same config, inputs and code, different for any
change.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from railx.io import dotted_leaves
from railx.tracking.results import StageResult, few_numbers, numbers, result_digest

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
_CONFIGS = st.recursive(
    _LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), _CONFIGS, max_size=5))
def test_digest_does_not_depend_on_the_order_of_keys(config: dict[str, object]) -> None:
    assert result_digest(config) == result_digest(dict(reversed(config.items())))


def test_digest_sees_config_code_contents_and_their_order(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1")
    two.write_bytes(b"2")
    base = result_digest({"a": 1}, [one, two], "code")
    assert result_digest({"a": 1}, [one, two], "code") == base
    changed = [
        result_digest({"a": 2}, [one, two], "code"),
        result_digest({"a": 1}, [two, one], "code"),
        result_digest({"a": 1}, [one], "code"),
        result_digest({"a": 1}, [one, two], "other"),
    ]
    two.write_bytes(b"3")
    changed.append(result_digest({"a": 1}, [one, two], "code"))
    assert len({base, *changed}) == 6
    one.rename(tmp_path / "renamed")
    two.write_bytes(b"2")
    assert result_digest({"a": 1}, [tmp_path / "renamed", two], "code") == base


def test_keys_tell_stage_name_and_digest_apart() -> None:
    keys = {
        StageResult(*parts, {}, {}).key
        for parts in (("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c"))
    }
    assert len(keys) == 4


def test_dotted_leaves_and_numbers_keep_leaves() -> None:
    nested = {
        "a": {"b": 1, "c": {"d": 2.5}},
        "e": [1, 2],
        "f": "text",
        "g": float("inf"),
        "h": False,
    }
    assert dict(dotted_leaves(nested)) == {
        "a.b": 1,
        "a.c.d": 2.5,
        "e": [1, 2],
        "f": "text",
        "g": float("inf"),
        "h": False,
    }
    assert numbers(nested) == {"a.b": 1.0, "a.c.d": 2.5, "h": 0.0}


def test_few_numbers_are_those_of_the_result_itself() -> None:
    metrics = {
        "parts": {"a": {"x": 1.0}, "b": {"x": 2.0}},
        "a_name_that_is_longer_than_the_head_of_a_chart": 3.0,
        "time": 4.0,
        "time_low": 3.5,
        "time_high": 4.5,
        "chips": 5,
    }
    assert few_numbers(metrics, 2) == {"time": 4.0, "chips": 5.0}
    assert next(iter(few_numbers(metrics, 3))).startswith("a_name")
    assert len(few_numbers(metrics, 6)) == 6
    assert few_numbers(metrics, 100) == numbers(metrics)
