"""A keyed permutation of 0 … n-1 that is computed, never stored. Pure numpy.

An integer hash of our own (splitmix64's finaliser) drives a Feistel network over a grid of
rows × columns ≥ n; a result beyond n is sent through again until it falls inside, which keeps the
map one-to-one. The grid is at most 2·sqrt(n) larger than n, so that is rare. Rounds that exchange
random pairs follow; without them permutations of fewer than ten places would not all be equally
likely. Nothing here may change its results: bump `order.ORDER_VERSION` if it must.
"""

import numpy as np
from numpy.typing import NDArray

ROUNDS = 8
PAIR_ROUNDS = 2
_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

_U_FIRST = np.uint64(_FIRST)
_U_SECOND = np.uint64(_SECOND)
_U_STEP = np.uint64(_STEP)
_ONE = np.uint64(1)
_S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (27, 30, 31, 32))
_STEPS = tuple(np.uint64(_STEP * (number + 1) & _MASK) for number in range(ROUNDS + PAIR_ROUNDS))


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64 of every value."""
    z = values + _U_STEP
    z = (z ^ (z >> _S30)) * _U_FIRST
    z = (z ^ (z >> _S27)) * _U_SECOND
    return z ^ (z >> _S31)


def mix_int(value: int) -> int:
    """splitmix64 of one value in [0, 2**64)."""
    z = (value + _STEP) & _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def make_key(*parts: int) -> int:
    """One 64-bit key of some integers; another order of them is another key."""
    key = 0
    for part in parts:
        key = mix_int(key ^ mix_int(part & _MASK))
    return key


def permute(
    positions: NDArray[np.uint64], sizes: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """The image of every position under the permutation of its key over 0 … size-1.

    All [n]; positions[k] < sizes[k] < 2**53. Costs the same for every size.
    """
    rows = np.ceil(np.sqrt(sizes)).astype(np.uint64)
    columns = (sizes + rows - _ONE) // rows
    images = _scramble(positions, rows, columns, keys)
    outside = np.flatnonzero(images >= sizes)
    while outside.size:
        again = _scramble(images[outside], rows[outside], columns[outside], keys[outside])
        images[outside] = again
        outside = outside[again >= sizes[outside]]
    for step in _STEPS[ROUNDS:]:
        images = _exchange(images, sizes, keys + step)
    return images


def _scramble(
    values: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    columns: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    """One pass: a permutation of 0 … rows·columns-1."""
    row, column = np.divmod(values, columns)
    for number, step in enumerate(_STEPS[:ROUNDS]):
        if number % 2:
            row = (row + _hash32(column, keys + step)) % rows
        else:
            column = (column + _hash32(row, keys + step)) % columns
    scrambled: NDArray[np.uint64] = row * columns + column
    return scrambled


def _exchange(
    values: NDArray[np.uint64], sizes: NDArray[np.uint64], keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Pair every value with another, v ↔ (k - v) mod size, and exchange a random half of the pairs."""
    partners = (_hash32(sizes, keys) % sizes + sizes - values) % sizes
    chosen = _hash32(np.maximum(values, partners), ~keys) & _ONE
    return np.where(chosen == _ONE, partners, values)


def _hash32(values: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """32 bits, so that adding them to a position cannot overflow."""
    z = values ^ keys
    z = (z ^ (z >> _S30)) * _U_FIRST
    z = (z ^ (z >> _S27)) * _U_SECOND
    return z >> _S32
