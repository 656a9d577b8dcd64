"""How far buckets overstate the tokens of a batch."""

from dataclasses import replace

import numpy as np
import pytest

from railx.performance.sequence_cost import CostModel
from railx.planning.sequence.blaster import cut_batch, rounding_rows
from tests.builders import drawn_batch


def test_every_micro_batch_has_a_row_of_each_method(small: CostModel) -> None:
    lengths = [int(value) for value in np.random.default_rng(1).integers(1, 300, 200)]
    batches = [drawn_batch(lengths), drawn_batch([7] * 20)]
    rows = list(rounding_rows(batches, 64, replace(small, tokens_per_device=300)))
    first = [row for row in rows if row["iteration"] == 0]
    number = len(first) // 2
    assert {row["method"] for row in first} == {"least_error", "equal_width"}
    runs = cut_batch(np.array(lengths), number, "sorted")
    for row in first:
        own = np.array(lengths)[runs[row["micro_batch"]]]
        assert (row["sequences"], row["tokens"]) == (len(own), own.sum())
        assert row["buckets"] <= 16
        assert row["rounded_tokens"] >= row["tokens"]
    for least, naive in zip(first[::2], first[1::2], strict=True):
        assert least["rounded_tokens"] < naive["rounded_tokens"]
    alike = [row for row in rows if row["iteration"] == 1]
    assert [row["rounded_tokens"] for row in alike] == pytest.approx([140, 140])
