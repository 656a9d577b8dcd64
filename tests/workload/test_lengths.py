"""Lengths: published quantiles, mixtures, and a user's files."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.errors import UserError
from railx.workload.lengths import (
    length_statistics,
    published_quantiles,
    read_length_file,
    sample_mixture,
    sample_quantiles,
)

QUANTILES = (
    Path(__file__).resolve().parents[2] / "resources/published/wikipedia_length_quantiles.csv"
)


def test_published_quantiles_are_monotone_and_end_at_the_longest() -> None:
    lengths, above = published_quantiles(QUANTILES)
    assert np.all(np.diff(lengths) > 0)
    assert np.all(np.diff(above) <= 0)
    assert (lengths[0], above[0]) == (1, 1.0)
    assert lengths[-1] == 1_823_777


def test_samples_meet_the_published_statistics() -> None:
    drawn = sample_quantiles(*published_quantiles(QUANTILES), 400_000, seed=3)
    assert drawn.mean() == pytest.approx(1013.6, rel=0.02)
    for percent, length in (
        (25, 146),
        (50, 347),
        (75, 862),
        (90, 2112),
        (99, 10_919),
        (99.9, 37_353),
    ):
        assert np.percentile(drawn, percent) == pytest.approx(length, rel=0.06)
    assert np.mean(drawn > 8000) == pytest.approx(0.0166, rel=0.05)


def test_samples_depend_on_the_seed_alone() -> None:
    points = published_quantiles(QUANTILES)
    assert np.array_equal(sample_quantiles(*points, 100, 1), sample_quantiles(*points, 100, 1))
    assert not np.array_equal(sample_quantiles(*points, 100, 1), sample_quantiles(*points, 100, 2))


def test_a_table_of_quantiles_must_be_monotone(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "kind,key,value\nsummary,count,10\npercentile_lower,10,100\npercentile_lower,50,20\n"
    )
    with pytest.raises(ValueError, match=r"table\.csv: quantiles are not monotone"):
        published_quantiles(table)


@pytest.mark.parametrize(
    "rows", ["summary,count,0", "summary,count", "summary,count,10\npercentile_lower,10,long"]
)
def test_a_table_of_quantiles_has_numbers(tmp_path: Path, rows: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"kind,key,value\n{rows}\n")
    with pytest.raises(UserError, match=r"table\.csv: cells are missing or no numbers; allowed: "):
        published_quantiles(table)


@given(st.integers(0, 100), st.floats(0.01, 1.0), st.floats(0.5, 3.0))
def test_mixtures_stay_in_range(seed: int, fraction: float, exponent: float) -> None:
    drawn = sample_mixture(
        sequences=200,
        seed=seed,
        body_median_tokens=1000,
        body_sigma=1.0,
        tail_fraction=fraction,
        tail_start_tokens=8000,
        tail_exponent=exponent,
        longest_tokens=50_000,
    )
    assert drawn.min() >= 1
    assert drawn.max() <= 50_000


def test_a_pure_tail_is_pareto() -> None:
    drawn = sample_mixture(
        sequences=200_000,
        seed=0,
        body_median_tokens=1,
        body_sigma=1,
        tail_fraction=1.0,
        tail_start_tokens=1000,
        tail_exponent=1.5,
        longest_tokens=10**9,
    )
    assert drawn.min() >= 1000
    assert np.mean(drawn > 4000) == pytest.approx(4**-1.5, rel=0.02)


def test_statistics_by_hand() -> None:
    summary = length_statistics([1, 2, 3, 10_000])
    assert summary["total_tokens"] == 10_006
    assert summary["p50_tokens"] == 2.5
    assert summary["sequences_above_8192"] == 0.25
    assert summary["tokens_in_sequences_above_8192"] == pytest.approx(10_000 / 10_006)


@pytest.mark.parametrize("suffix", [".json", ".txt", ".csv", ".parquet"])
def test_files_of_lengths_in_every_form(tmp_path: Path, suffix: str) -> None:
    path, lengths = tmp_path / f"lengths{suffix}", [5, 17, 300]
    if suffix == ".json":
        path.write_text(json.dumps(lengths))
    elif suffix == ".txt":
        path.write_text("5\n17\n\n300\n")
    elif suffix == ".csv":
        path.write_text("id,length_tokens\na,5\nb,17\nc,300\n")
    else:
        pq.write_table(pa.table({"length_tokens": lengths}), path)
    assert read_length_file(path, "length_tokens").tolist() == lengths


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.json", "[5, 6]"), ("a.txt", "5\n6\n"), ("a.csv", "length_tokens\n5\n6\n")],
)
def test_a_byte_order_mark_is_no_part_of_a_length(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8-sig")
    assert read_length_file(tmp_path / name, "length_tokens").tolist() == [5, 6]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "", "no sequences; allowed: at least one length"),
        ("a.json", "[]", "no sequences"),
        ("a.json", "{}", "a JSON dict; allowed: a list"),
        ("a.json", "[3, 0]", "sequence 1 has length 0; allowed: at least 1 token"),
        ("a.json", "[3, 1.5]", "sequence 1 is 1.5; allowed: a whole number"),
        ("a.json", "[3, NaN]", "sequence 1 is nan; allowed: a whole number"),
        ("a.json", "[3, Infinity]", "sequence 1 is inf; allowed: a whole number"),
        ("a.json", "[3, 1e30]", "; allowed: at most 1099511627776 tokens"),
        ("a.json", f"[3, {2**70}]", f"sequence 1 has length {2**70}; allowed: at most"),
        ("a.json", "[true]", "sequence 0 is True"),
        ("a.json", "[3", "not valid JSON"),
        ("a.json", "[" * 200_000, "JSON nested too deeply; allowed: a list of lengths"),
        ("a.csv", "length_tokens\n" + "9" * 200_000, "no CSV (field larger than"),
        ("a.txt", "", "no sequences"),
        ("a.txt", "4\n-2\n", "line 2 has length -2"),
        ("a.txt", "4\n\nx\n", "line 3 is 'x'"),
        ("a.csv", "n\n4\n", "no column length_tokens; allowed: as corpus.column n"),
        ("a.csv", "", "no sequences"),
        ("a.parquet", "no table", "not a Parquet file"),
    ],
)
def test_bad_files_name_the_file_and_the_place(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError) as raised:
        read_length_file(path, "length_tokens")
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_says_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"absent\.json: no such file; allowed: a JSON list"):
        read_length_file(tmp_path / "absent.json", "length_tokens")
