"""Tokens of documents: their bytes, or byte pairs merged by frequency.

A tokenizer is its list of merges: ids 0 to 255 are the bytes, every merge that makes a
new piece of text adds an id, and the last id precedes every document. Without
merges tokens are bytes. Notable:

* documents are bytes and need not be text: every piece is a string of bytes, so that
  decoding restores every encoded text;
* the package ``tokenizers`` trains and encodes. What is decoded, and what is read from
  a corpus file, needs nothing but the merges;
* a merge never joins two words, and bytes above 127 count as letters, so that words of
  any script may become one token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from railx.errors import UserError

if TYPE_CHECKING:
    import tokenizers

TokenizerName = Literal["bytes", "byte_pair"]

# Each byte is the character of the same number (Latin-1), so that a package for text
# takes any document.
_ENCODING = "latin-1"
# Words with the space before them, numbers, other signs and white space: ASCII is meant
# letter by letter, because the characters above it are bytes.
_SPACE, _LETTERS, _DIGITS = r" \t\n\r\f\v", "A-Za-z_\u0080-\u00ff", "0-9"
_WORDS = f" ?[{_LETTERS}]+| ?[{_DIGITS}]{{1,3}}| ?[^{_SPACE}{_LETTERS}{_DIGITS}]+|[{_SPACE}]+"


@dataclass(frozen=True)
class Tokenizer:
    """A mapping of bytes to tokens; ``merges``: pairs of ids in order."""

    name: TokenizerName
    merges: tuple[tuple[int, int], ...] = ()

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes of every id but the beginning of a sequence."""
        pieces = [bytes([byte]) for byte in range(256)]
        seen = set(pieces)
        for left, right in self.merges:
            piece = pieces[left] + pieces[right]
            # Two merges may make the same piece, which has one id.
            if piece not in seen:
                seen.add(piece)
                pieces.append(piece)
        return tuple(pieces)

    @property
    def beginning_of_sequence(self) -> int:
        """The id, no text, before every document: its first token is predicted too."""
        return len(self.pieces)

    @property
    def vocabulary(self) -> int:
        """The number of ids."""
        return len(self.pieces) + 1

    @property
    def digest(self) -> str:
        """A digest that is equal for equal tokens."""
        named = f"{self.name} " + " ".join(f"{left},{right}" for left, right in self.merges)
        return hashlib.sha256(named.encode("ascii")).hexdigest()

    def encode(self, documents: Sequence[bytes]) -> list[npt.NDArray[np.int64]]:
        """The ids of each document, without the beginning of a sequence."""
        if not self.merges:
            return [
                np.frombuffer(document, dtype=np.uint8).astype(np.int64) for document in documents
            ]
        encoded = self._engine.encode_batch(
            [document.decode(_ENCODING) for document in documents], add_special_tokens=False
        )
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encoded]

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids; ids without text (the beginning) add none."""
        pieces = self.pieces
        return b"".join(pieces[index] for index in ids if index < len(pieces))

    @cached_property
    def _engine(self) -> tokenizers.Tokenizer:
        from tokenizers import Tokenizer as Engine
        from tokenizers import models

        texts = [piece.decode(_ENCODING) for piece in self.pieces]
        model = models.BPE(
            vocab={text: number for number, text in enumerate(texts)},
            merges=[(texts[left], texts[right]) for left, right in self.merges],
        )
        engine = Engine(model)
        engine.pre_tokenizer = _words()
        return engine


#: Bytes as tokens.
BYTES = Tokenizer("bytes")


def train_tokenizer(documents: Sequence[bytes], vocabulary: int) -> Tokenizer:
    """The byte-pair tokenizer with ``vocabulary`` ids of these documents.

    The same documents give the same tokenizer in any process. ValueError where they
    have too few pairs for the vocabulary.
    """
    import json

    from tokenizers import Tokenizer as Engine
    from tokenizers import models, trainers

    engine = Engine(models.BPE())
    engine.pre_tokenizer = _words()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 1,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=[chr(byte) for byte in range(256)],
    )
    engine.train_from_iterator(
        (document.decode(_ENCODING) for document in documents), trainer=trainer
    )
    model: dict[str, Any] = json.loads(engine.to_str())["model"]
    ids: dict[str, int] = model["vocab"]
    trained = Tokenizer(
        "byte_pair", tuple((ids[left], ids[right]) for left, right in model["merges"])
    )
    if {piece.decode(_ENCODING): number for number, piece in enumerate(trained.pieces)} != ids:
        raise ValueError("the package tokenizers numbers its tokens in another way than expected")
    if trained.vocabulary != vocabulary:
        raise UserError(
            f"vocabulary: got {vocabulary}; allowed: at most {trained.vocabulary}, the ids that"
            " the pairs of this text give"
        )
    return trained


def token_type(largest: int) -> np.dtype[Any]:
    """The narrowest unsigned integers, lowest byte first, for ids up to ``largest``."""
    for width in (1, 2, 4):
        if largest < 256**width:
            return np.dtype(f"<u{width}")
    raise UserError(f"token id {largest}; allowed: below {256**4}")


def _words() -> Any:
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(_WORDS), "isolated")
