"""Byte-pair tokens: nothing is lost, and the same text gives the same ids anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from railx.io import read_metadata, read_rows
from railx.settings import SettingsError
from railx.workload.corpus import build_corpus, write_corpus
from railx.workload.tokenizer import BYTES, Tokenizer, token_type, train_tokenizer
from tests.builders import ROOT, checked
from training.data import read_sequences

DOCUMENTS = [b"def width(self):\n    return self.width\n", "né né 日本語 日本語\n".encode()] * 3
PAIRS = train_tokenizer(DOCUMENTS, 280)

TRAINED = f"""
from railx.workload.tokenizer import train_tokenizer
documents = {DOCUMENTS!r}
trained = train_tokenizer(documents, 280)
print(trained.digest, [ids.tolist() for ids in trained.encode(documents)])
"""


@given(st.lists(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_any_bytes_come_back(documents: list[bytes]) -> None:
    for tokenizer in (PAIRS, BYTES):
        encoded = tokenizer.encode(documents)
        assert [tokenizer.decode(ids) for ids in encoded] == documents
        for ids in encoded:
            assert all(0 <= number < tokenizer.beginning_of_sequence for number in ids)


@given(st.lists(st.sampled_from(DOCUMENTS), min_size=1), st.integers(258, 270))
def test_training_gives_as_many_ids_as_asked_and_loses_nothing(
    documents: list[bytes], vocabulary: int
) -> None:
    trained = train_tokenizer([*documents, *DOCUMENTS], vocabulary)
    assert trained.vocabulary == vocabulary == trained.beginning_of_sequence + 1
    assert [trained.decode(ids) for ids in trained.encode(documents)] == documents


def test_bytes_keep_their_ids_and_pairs_shorten_the_text() -> None:
    assert PAIRS.pieces[:256] == BYTES.pieces == tuple(bytes([byte]) for byte in range(256))
    assert (BYTES.vocabulary, BYTES.beginning_of_sequence) == (257, 256)
    (ids,) = PAIRS.encode([b"self.width"])
    assert len(ids) < len(b"self.width") / 2
    assert PAIRS.decode([*ids, PAIRS.beginning_of_sequence]) == b"self.width"


def test_letters_of_other_scripts_are_words() -> None:
    """Bytes above 127 are letters: a whole word may become one token."""
    trained = train_tokenizer(["né 日本語 ".encode()] * 3, 268)
    assert "né".encode() in trained.pieces
    assert " 日本語".encode() in trained.pieces
    with pytest.raises(ValueError, match=r"^vocabulary: got 300; allowed: at most 268, the ids"):
        train_tokenizer(["né 日本語 ".encode()] * 3, 300)


def test_no_merge_joins_two_words() -> None:
    trained = train_tokenizer(DOCUMENTS, 280)
    assert not any(b" " in piece.strip(b" ") for piece in trained.pieces)


def test_two_merges_of_the_same_piece_have_one_id() -> None:
    twice = Tokenizer("byte_pair", ((97, 98), (98, 99), (256, 99), (97, 257)))
    assert twice.pieces[256:] == (b"ab", b"bc", b"abc")
    assert twice.vocabulary == 260


def test_another_process_trains_the_same_tokenizer() -> None:
    """Whatever its hash seed is and however many threads it has."""
    found = {
        subprocess.run(
            [sys.executable, "-c", TRAINED],
            env=os.environ | {"PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, threads in (("1", "1"), ("2", "3"))
    }
    expected = f"{PAIRS.digest} {[ids.tolist() for ids in PAIRS.encode(DOCUMENTS)]}\n"
    assert found == {expected}


def test_the_corpus_file_holds_ids_that_training_reads_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = build_corpus(checked("corpus", "stdlib_pairs", sequences=60, vocabulary=500), 1)
    path = tmp_path / "corpus.parquet"
    write_corpus(path, corpus)
    metadata = read_metadata(path)
    assert corpus.tokenizer is not None
    assert {
        key: metadata[key]
        for key in ("tokenizer", "vocabulary_size", "token_bytes", "beginning_of_sequence")
    } == {
        "tokenizer": "byte_pair",
        "vocabulary_size": 500,
        "token_bytes": 2,
        "beginning_of_sequence": 499,
    }
    assert metadata["tokenizer_digest"] == corpus.tokenizer.digest
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    read = read_sequences(path, {0: int(corpus.lengths[0])}, 500)
    assert read[0].tolist() == [499, *corpus.ids[0]]


def test_the_file_alone_gives_the_text_back(tmp_path: Path) -> None:
    corpus = build_corpus(checked("corpus", "stdlib_pairs", sequences=60, vocabulary=500), 1)
    path = tmp_path / "corpus.parquet"
    write_corpus(path, corpus)
    merges = tuple((left, right) for left, right in read_metadata(path)["merges"])
    lengths = {row["sequence"]: row["length_tokens"] for row in read_rows(path)}
    sequences = read_sequences(path, lengths, 500)
    decoded = Tokenizer("byte_pair", merges)
    assert tuple(decoded.decode(sequences[number]) for number in lengths) == corpus.documents


def test_the_digest_of_the_file_is_that_of_its_ids(tmp_path: Path) -> None:
    digests = set()
    for number, changes in enumerate(
        ({"vocabulary": 400}, {"vocabulary": 500}, {"sequences": 50}, {"vocabulary": 400})
    ):
        chosen = {"sequences": 40, "vocabulary": 400} | changes
        corpus = build_corpus(checked("corpus", "stdlib_pairs", **chosen), 1)
        path = tmp_path / f"{number}.parquet"
        write_corpus(path, corpus)
        digests.add(read_metadata(path)["digest"])
    assert len(digests) == 3


@pytest.mark.parametrize(("largest", "width"), [(255, 1), (256, 2), (65535, 2), (65536, 4)])
def test_ids_take_the_narrowest_integers(largest: int, width: int) -> None:
    kind = token_type(largest)
    assert kind.itemsize == width
    assert np.array([largest]).astype(kind)[0] == largest


def test_settings_that_do_not_fit_are_one_line() -> None:
    with pytest.raises(
        SettingsError, match=r"^corpus\.vocabulary: got 300; allowed with bytes as tokens: 257$"
    ):
        checked("corpus", "stdlib", vocabulary=300)
    with pytest.raises(SettingsError, match=r"^corpus\.vocabulary: got 256; allowed: "):
        checked("corpus", "stdlib_pairs", vocabulary=256)
    with pytest.raises(SettingsError, match=r"^corpus\.tokenizer: got 'words'; allowed: bytes, b"):
        checked("corpus", "stdlib", tokenizer="words")
