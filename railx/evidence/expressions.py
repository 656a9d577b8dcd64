"""A small, safe language for the value of a claim: arithmetic on columns, aggregates,
and nothing else.

    mean(network.bound_over_ideal)                                   a column of a named selection
    sum(max(predicted_ms, by=(iteration, micro_batch)))              aggregate per group, then over the groups
    slope(stall_ms, reconfiguration_latency_ms)                      least-squares slope of the first on the second column
    sum((start_ms < max(start_ms, over=stage)) * (kind == 'forward'))  an aggregate per group, given back to the rows of the group

With one table columns stand alone; with selections they are ``selection.column``; a
dotted key of a JSON file is written as it is. The text is parsed as a Python expression
and only the nodes named here are evaluated: no attribute of an object is ever read.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from railx.evidence.errors import ClaimError, NotAvailable

__all__ = ["AGGREGATES", "FUNCTIONS", "evaluate"]

AGGREGATES = ("mean", "max", "min", "sum", "median", "count")
FUNCTIONS = (*AGGREGATES, "only", "slope", "abs", "minimum", "maximum", "where")

_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@dataclass(frozen=True)
class _Column:
    """Values of the rows of one selection, or of its groups when ``keys`` names the
    columns they are grouped by.
    """

    values: pd.Series[Any]
    selection: str
    keys: tuple[str, ...] = ()


_Value = float | str | _Column


def evaluate(expression: str, frames: Mapping[str, pd.DataFrame]) -> float | pd.Series[Any]:
    """The value of an expression over the selections: a number, or a series indexed by
    group when it ends in groups.

    ``frames`` maps selection names to their rows; the name "" makes columns stand
    alone. Raises ClaimError for what the language does not have (unknown function or
    column, rows that were not aggregated) and NotAvailable where the data hold no
    finite value.
    """
    try:
        tree = ast.parse(expression, mode="eval")
    except SyntaxError as error:
        raise ClaimError(f"expression: {expression!r} is not an expression ({error.msg})") from None
    value = _Evaluator(frames).visit(tree.body)
    if isinstance(value, str):
        raise ClaimError("expression: gives text; allowed: a number")
    if isinstance(value, _Column):
        if not value.keys:
            raise ClaimError(
                "expression: gives a value per row; allowed: an aggregate"
                f" ({', '.join(AGGREGATES)}) of it"
            )
        return value.values
    if not np.isfinite(value):
        raise NotAvailable(
            "the value is not a finite number (nothing measured, or a division by zero)"
        )
    return value


class _Evaluator:
    def __init__(self, frames: Mapping[str, pd.DataFrame]) -> None:
        self.frames = frames

    def visit(self, node: ast.expr) -> _Value:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, (int, float, str))
            and not isinstance(node.value, bool)
        ):
            return node.value if isinstance(node.value, str) else float(node.value)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._column(_dotted(node))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            return _apply(
                operator.mul,
                self.visit(node.operand),
                -1.0 if isinstance(node.op, ast.USub) else 1.0,
            )
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            return _apply(_BINARY[type(node.op)], self.visit(node.left), self.visit(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
            return _apply(
                _COMPARE[type(node.ops[0])],
                self.visit(node.left),
                self.visit(node.comparators[0]),
                text=True,
            )
        if isinstance(node, ast.Call):
            return self._call(node)
        raise ClaimError(
            f"expression: {ast.unparse(node)!r} is not allowed; allowed: columns, numbers, + - * /"
            f" **, {_functions()}"
        )

    def _column(self, name: str) -> _Column:
        if "" in self.frames:
            selection, column = "", name
        else:
            selection, _, column = name.partition(".")
            if selection not in self.frames or not column:
                raise ClaimError(
                    f"expression: {name!r} names no selection; allowed: {', '.join(self.frames)}, a"
                    " dot and a column"
                )
        frame = self.frames[selection]
        if column not in frame.columns:
            raise ClaimError(
                f"expression: no column {column!r}; allowed: {', '.join(map(str, frame.columns))}"
            )
        return _Column(frame[column], selection)

    def _call(self, node: ast.Call) -> _Value:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in FUNCTIONS:
            raise ClaimError(f"expression: no function {name!r}; allowed: {_functions()}")
        arguments = [self.visit(argument) for argument in node.args]
        keywords = {keyword.arg or "**": _names(keyword.value) for keyword in node.keywords}
        wanted = 2 if name in ("slope", "minimum", "maximum", "where") else 1
        if len(arguments) != wanted:
            raise ClaimError(
                f"expression: {name} got {len(arguments)} arguments; allowed: {wanted}"
            )
        if unknown := set(keywords) - ({"by", "over"} if name in AGGREGATES else set()):
            raise ClaimError(
                f"expression: {name} knows no {sorted(unknown)[0]}=; allowed: by= and over= of"
                f" {', '.join(AGGREGATES)}"
            )
        if name in AGGREGATES:
            return self._aggregate(name, arguments[0], keywords)
        return _FUNCTIONS[name](*arguments)

    def _aggregate(self, name: str, value: _Value, keywords: dict[str, tuple[str, ...]]) -> _Value:
        if not isinstance(value, _Column):
            raise ClaimError(f"expression: {name} of a single value; allowed: {name} of a column")
        values = _numeric(value.values) if name != "count" else value.values
        if len(keywords) > 1:
            raise ClaimError(f"expression: {name} has both by= and over=; allowed: one of them")
        if not keywords:
            return _finite(getattr(values, name)(), name)
        kind, keys = next(iter(keywords.items()))
        groups = values.groupby(self._group_keys(value, keys))
        if kind == "by":
            return _Column(groups.agg(name), value.selection, keys)
        if value.keys:
            raise ClaimError(
                "expression: over= works on rows; allowed: by= for what is already grouped"
            )
        transformed: pd.Series[Any] = cast("Any", groups).transform(name)
        return _Column(transformed, value.selection)

    def _group_keys(self, value: _Column, keys: tuple[str, ...]) -> list[Any]:
        if value.keys:
            unknown = [key for key in keys if key not in value.keys]
            if unknown:
                raise ClaimError(
                    f"expression: the groups have no {unknown[0]!r}; allowed:"
                    f" {', '.join(value.keys)}"
                )
            return [value.values.index.get_level_values(key) for key in keys]
        prefix = f"{value.selection}." if value.selection else ""
        return [self._column(f"{prefix}{key}").values.loc[value.values.index] for key in keys]


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    raise ClaimError(
        f"expression: {ast.unparse(node)!r} is not allowed; allowed: the name of a column"
    )


def _names(node: ast.expr) -> tuple[str, ...]:
    return (
        tuple(_dotted(item) for item in node.elts)
        if isinstance(node, ast.Tuple)
        else (_dotted(node),)
    )


def _functions() -> str:
    return ", ".join(FUNCTIONS)


def _numeric(values: pd.Series[Any]) -> pd.Series[Any]:
    if values.dtype == bool or pd.api.types.is_numeric_dtype(values):
        return values.astype(float)
    if values.isna().all():
        return pd.Series(np.nan, index=values.index)
    raise ClaimError(f"expression: the column {values.name!r} holds no numbers")


def _finite(value: Any, what: str) -> float:
    if value is None or pd.isna(value):
        raise NotAvailable(f"the results leave the {what} empty")
    return float(value)


def _apply(
    function: Callable[[Any, Any], Any], left: _Value, right: _Value, *, text: bool = False
) -> _Value:
    """An operator on two values; rows meet rows of their own selection only, groups
    meet groups with the same keys.
    """
    for side in (left, right):
        if isinstance(side, str) and not text:
            raise ClaimError(f"expression: the text {side!r} can only be compared")
    if isinstance(left, _Column) and isinstance(right, _Column):
        left, right = _aligned(left, right)
    shape = left if isinstance(left, _Column) else right
    plain = [_plain(side, text=text) for side in (left, right)]
    with np.errstate(all="ignore"):
        try:
            result = function(*plain)
        except ZeroDivisionError:
            result = float("nan")
        except (OverflowError, TypeError) as error:
            raise ClaimError(f"expression: {error}") from None
    if isinstance(shape, _Column):
        return _Column(result, shape.selection, shape.keys)
    if not isinstance(result, (int, float)):
        raise ClaimError("expression: gives no real number")
    return float(result)


def _plain(side: _Value, *, text: bool) -> Any:
    if not isinstance(side, _Column):
        return side
    return (
        side.values
        if text and not pd.api.types.is_numeric_dtype(side.values)
        else _numeric(side.values)
    )


def _aligned(left: _Column, right: _Column) -> tuple[_Column, _Column]:
    if left.keys != right.keys:
        raise ClaimError(
            "expression: rows and groups, or groups by different keys, do not combine; allowed: the"
            " same by= on both sides"
        )
    if not left.keys:
        if left.selection != right.selection:
            raise ClaimError(
                "expression: rows of two selections do not combine; allowed: aggregates of each"
            )
        return left, right
    common = left.values.index.intersection(right.values.index)
    if common.empty:
        raise NotAvailable(f"the two sides share no {' and '.join(left.keys)}")
    return (
        _Column(left.values.loc[common], left.selection, left.keys),
        _Column(right.values.loc[common], right.selection, right.keys),
    )


def _only(value: _Value) -> _Value:
    """The value that all rows share."""
    if not isinstance(value, _Column):
        raise ClaimError("expression: only of a single value; allowed: only of a column")
    found = _numeric(value.values).dropna().unique()
    if len(found) > 1:
        shown = ", ".join(f"{item:g}" for item in found[:4])
        raise ClaimError(
            f"expression: only() finds {len(found)} different values ({shown}); allowed: a filter"
            " that leaves one"
        )
    return _finite(found[0] if len(found) else None, "value")


def _slope(y: _Value, x: _Value) -> _Value:
    """Least-squares slope of y on x, both of the same rows."""
    if not (isinstance(y, _Column) and isinstance(x, _Column)):
        raise ClaimError("expression: slope of a single value; allowed: two columns")
    y, x = _aligned(y, x)
    horizontal, vertical = _numeric(x.values).to_numpy(), _numeric(y.values).to_numpy()
    known = np.isfinite(horizontal) & np.isfinite(vertical)
    horizontal, vertical = horizontal[known], vertical[known]
    if len(np.unique(horizontal)) < 2:
        raise NotAvailable("a slope needs at least two different values to stand on")
    centred = horizontal - horizontal.mean()
    return float((centred @ (vertical - vertical.mean())) / (centred @ centred))


def _absolute(value: _Value) -> _Value:
    if isinstance(value, _Column):
        return _Column(_numeric(value.values).abs(), value.selection, value.keys)
    return _apply(operator.mul, value, 1.0 if isinstance(value, str) or value >= 0 else -1.0)


def _minimum(left: _Value, right: _Value) -> _Value:
    return _apply(np.minimum, left, right)


def _maximum(left: _Value, right: _Value) -> _Value:
    return _apply(np.maximum, left, right)


def _where(condition: _Value, value: _Value) -> _Value:
    """The value where the condition holds, nothing elsewhere; aggregates pass over
    nothing.
    """
    if not (isinstance(condition, _Column) and isinstance(value, _Column)):
        raise ClaimError("expression: where of a single value; allowed: a condition and a column")
    condition, value = _aligned(condition, value)
    return _Column(
        _numeric(value.values).where(condition.values.astype(bool)), value.selection, value.keys
    )


_FUNCTIONS: dict[str, Callable[..., _Value]] = {
    "only": _only,
    "slope": _slope,
    "abs": _absolute,
    "minimum": _minimum,
    "maximum": _maximum,
    "where": _where,
}
