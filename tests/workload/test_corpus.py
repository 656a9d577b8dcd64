"""Corpora: provenance, determinism and the file that plans and training read. Global
batches: no sequence twice, truncation and dropping.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.errors import UserError
from railx.io import read_metadata, read_rows
from railx.settings import SettingsError
from railx.workload.batches import FilledBatchSettings, sample_batches
from railx.workload.corpus import (
    Corpus,
    build_corpus,
    read_corpus_lengths,
    split_definitions,
    stdlib_documents,
    write_corpus,
)
from railx.workload.corpus_check import check_corpus
from tests.builders import checked


def _build(name: str, seed: int = 1, **changes: Any) -> Corpus:
    return build_corpus(checked("corpus", name, **changes), seed)


def test_the_standard_library_is_real_text_with_a_long_tail() -> None:
    corpus = _build("stdlib")
    assert corpus.kind == "real_text"
    assert corpus.documents is not None
    assert [len(document) + 1 for document in corpus.documents] == corpus.lengths.tolist()
    assert corpus.lengths.max() > 20 * np.median(corpus.lengths)


def test_definitions_join_to_the_files() -> None:
    files = stdlib_documents("file")
    assert b"".join(stdlib_documents("definition")) == b"".join(files)


def test_a_source_is_cut_before_top_level_definitions() -> None:
    source = (
        b"import os\n\n@wraps\n@other(1)\ndef f():\n    def inner(): ...\n\nclass A:\n    def"
        b" m(self): ...\nasync def g(): ...\n"
    )
    parts = split_definitions(source)
    assert [part.split(b"\n")[0] for part in parts] == [
        b"import os",
        b"@wraps",
        b"class A:",
        b"async def g(): ...",
    ]
    assert b"".join(parts) == source


def test_a_drawn_part_of_a_text_corpus_depends_on_the_seed() -> None:
    first, again, other = (_build("stdlib", seed, sequences=50) for seed in (1, 1, 2))
    assert first.documents == again.documents
    assert first.documents != other.documents
    assert len(first.lengths) == 50
    assert "50 of" in first.description


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("wikipedia", "published_quantiles"),
        ("github_like", "synthetic"),
        ("commoncrawl_like", "synthetic"),
    ],
)
def test_drawn_corpora_are_named_for_what_they_are(name: str, kind: str) -> None:
    corpus = _build(name, sequences=1000)
    assert corpus.kind == kind
    assert corpus.documents is None
    assert len(corpus.lengths) == 1000
    assert ("synthetic" if kind == "synthetic" else "published quantiles") in corpus.description


@pytest.mark.parametrize(
    ("name", "under_2k", "above_64k", "mean"),
    [("github_like", 0.60, 0.005, 3750), ("commoncrawl_like", 0.70, 0.0043, 3080)],
)
def test_mixtures_meet_their_anchors(
    name: str, under_2k: float, above_64k: float, mean: float
) -> None:
    lengths = _build(name, sequences=300_000).lengths
    assert np.mean(lengths <= 2048) == pytest.approx(under_2k, abs=0.01)
    assert np.mean(lengths > 65_536) == pytest.approx(above_64k, abs=0.0008)
    assert np.mean(lengths > 65_536) < 0.006
    assert lengths[lengths <= 192_000].mean() == pytest.approx(mean, rel=0.03)


def test_a_folder_of_text(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.txt").write_bytes("né".encode())
    (tmp_path / "a.txt").write_bytes(b"hello")
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "other.md").write_bytes(b"no")
    corpus = _build("folder", path=str(tmp_path))
    assert corpus.documents == (b"hello", "né".encode())
    assert corpus.lengths.tolist() == [6, 4]


def test_shipped_text_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = checked("corpus", "folder", path="resources/catalogue", pattern="*.csv")
    monkeypatch.chdir(tmp_path)
    check_corpus(settings, "corpus", tmp_path)
    assert build_corpus(settings, 1).documents


@pytest.mark.parametrize(
    ("content", "at"), [(b"\xff\xfea\0", 0), (b"abc\0", 3), (b"caf\xe9", 3), (b"\x89PNG\r\n", 0)]
)
def test_bytes_that_are_no_text_are_no_corpus(tmp_path: Path, content: bytes, at: int) -> None:
    (tmp_path / "a.txt").write_bytes("text, \u00e9".encode())
    (tmp_path / "b.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"b\.txt: byte {at} is no text; allowed: text in UTF-8"):
        _build("folder", path=str(tmp_path))


@pytest.mark.parametrize(("content", "message"), [(None, "no file matches"), (b"", "are empty")])
def test_folders_without_text_are_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        _build("folder", path=str(tmp_path))
    with pytest.raises(ValueError, match="no such folder"):
        _build("folder", path=str(tmp_path / "absent"))


def test_the_corpus_file_round_trips_text(tmp_path: Path) -> None:
    corpus = _build("stdlib", sequences=20)
    write_corpus(tmp_path / "corpus.parquet", corpus)
    rows, metadata = (
        read_rows(tmp_path / "corpus.parquet"),
        read_metadata(tmp_path / "corpus.parquet"),
    )
    assert tuple(row["tokens"] for row in rows) == corpus.documents
    assert [row["sequence"] for row in rows] == list(range(20))
    assert all(len(row["tokens"]) + 1 == row["length_tokens"] for row in rows)
    assert (metadata["kind"], metadata["vocabulary_size"], metadata["beginning_of_sequence"]) == (
        "real_text",
        257,
        256,
    )
    name, lengths = read_corpus_lengths(tmp_path / "corpus.parquet")
    assert name == "stdlib"
    assert np.array_equal(lengths, corpus.lengths)


def test_the_corpus_file_without_text_has_null_tokens(tmp_path: Path) -> None:
    (tmp_path / "lengths.json").write_text("[4, 9]")
    corpus = _build("file", path=str(tmp_path / "lengths.json"))
    write_corpus(tmp_path / "corpus.parquet", corpus)
    assert [row["tokens"] for row in read_rows(tmp_path / "corpus.parquet")] == [None, None]
    assert read_metadata(tmp_path / "corpus.parquet")["kind"] == "real_lengths"
    assert read_metadata(tmp_path / "corpus.parquet")["beginning_of_sequence"] is None


def test_a_tail_beyond_the_longest_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^corpus\.tail_start_tokens: .*below longest_tokens"):
        checked("corpus", "github_like", tail_start_tokens=2e6)


def test_an_unknown_source_lists_the_choices() -> None:
    with pytest.raises(
        SettingsError,
        match=(
            r"corpus\.source: got 'web'; allowed: stdlib, wikipedia_quantiles, mixture, file,"
            r" folder"
        ),
    ):
        checked("corpus", "stdlib", source="web")


@given(
    st.lists(st.integers(1, 100), min_size=4, max_size=40),
    st.integers(1, 4),
    st.integers(1, 30),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_truncated_batches(
    lengths: list[int], size: int, batches: int, limit: int, seed: int
) -> None:
    drawn = sample_batches(lengths, FilledBatchSettings(size, batches, limit, "truncate"), seed)
    assert len(drawn) == batches
    for batch in drawn:
        assert len(set(batch.sequences.tolist())) == size
        assert batch.lengths.tolist() == [min(lengths[row], limit) for row in batch.sequences]


def test_overlong_sequences_are_dropped() -> None:
    drawn = sample_batches([5, 50, 6, 70, 7], FilledBatchSettings(3, 4, 10, "drop"), 0)
    assert all(sorted(batch.sequences.tolist()) == [0, 2, 4] for batch in drawn)


def test_a_corpus_is_used_up_before_it_repeats() -> None:
    drawn = sample_batches(np.arange(1, 11), FilledBatchSettings(3, 3, 100, "drop"), 7)
    assert len({int(row) for batch in drawn for row in batch.sequences}) == 9


def test_seeds_decide() -> None:
    settings, lengths = FilledBatchSettings(8, 2, 100, "truncate"), np.arange(1, 200)
    first, again, other = (
        sample_batches(lengths, settings, seed)[1].sequences.tolist() for seed in (1, 1, 2)
    )
    assert first == again != other


def test_too_few_sequences_say_how_many_there_are() -> None:
    with pytest.raises(
        ValueError,
        match=(
            r"^batch.batch_size: got 4; allowed: at most 2, the sequences of at most 10 tokens in"
            r" the corpus"
        ),
    ):
        sample_batches([5, 6, 700], FilledBatchSettings(4, 1, 10, "drop"), 0)
    with pytest.raises(ValueError, match=r"^batch.max_length_tokens: got 4; allowed: at least 5,"):
        sample_batches([5, 6, 700], FilledBatchSettings(1, 1, 4, "drop"), 0)
