"""Finite fields GF(q) as tables, for graphs that are built over them.

Element e is the polynomial whose coefficients are the digits of e to base p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np

from railx.settings import SettingsError
from railx.vocabulary.arrays import IntArray
from railx.vocabulary.topology import nearest


@dataclass(frozen=True, eq=False)
class Field:
    """GF(q): ``add`` and ``multiply`` are int[q, q]; ``powers`` (int[q - 1]) are those
    of a primitive element, 1 first.
    """

    add: IntArray
    multiply: IntArray
    powers: IntArray


def prime_power(q: int) -> tuple[int, int] | None:
    """The prime p and the exponent k of q = p^k; None for other numbers."""
    for p in range(2, math.isqrt(max(q, 0)) + 1):
        if q % p == 0:
            k = round(math.log(q, p))
            return (p, k) if p**k == q else None
    return (q, 1) if q > 1 else None


def field_orders(smallest: int, most: int) -> list[int]:
    """The orders of fields from ``smallest`` to ``most``."""
    return [q for q in range(smallest, most + 1) if prime_power(q)]


def check_order(key: str, q: int, most: int, smallest: int = 2) -> None:
    """Refuse a q that no field has, below ``smallest`` or above ``most``."""
    orders = field_orders(smallest, most)
    if q in orders:
        return
    raise SettingsError(
        key,
        f"got {q}; allowed: a power of a prime from {smallest} to {most}; {nearest(q, orders)}",
    )


@lru_cache(maxsize=16)
def field(q: int) -> Field:
    """The field of q elements; ValueError where q is no power of a prime."""
    power = prime_power(q)
    if power is None:
        raise ValueError(f"q: got {q}; allowed: a power of a prime")
    p, k = power
    digits = np.arange(q)[:, None] // p ** np.arange(k) % p
    base = p ** np.arange(k)
    add = (digits[:, None] + digits) % p @ base
    for low in product(range(p), repeat=k):
        multiply = _products(digits, p, np.array(low), base)
        for element in range(1, q):
            powers = [1]
            for _ in range(q - 2):
                powers.append(int(multiply[powers[-1], element]))
            # Only a field has an element whose powers are all but 0.
            if 0 not in powers and len(set(powers)) == q - 1:
                return Field(add, multiply, np.array(powers))
    raise AssertionError(q)


def _products(digits: IntArray, p: int, low: IntArray, base: IntArray) -> IntArray:
    """Products of polynomials over GF(p) modulo x^k + ``low`` (k coefficients)."""
    k = len(low)
    full = np.zeros((len(digits), len(digits), 2 * k - 1), dtype=np.int64)
    for i, j in product(range(k), repeat=2):
        full[:, :, i + j] += digits[:, None, i] * digits[None, :, j]
    for degree in range(2 * k - 2, k - 1, -1):
        full[:, :, degree - k : degree] -= full[:, :, degree : degree + 1] * low
    result: IntArray = full[:, :, :k] % p @ base
    return result
