"""Counter-based randomness: every draw is a function of (seed, stream, step, row, draw).

There is no generator state to share or to split, so the same seed gives the same
draws for any number of threads, blocks or machines, in any order of evaluation.
The generator is the five-round "squares" construction of Widynski (2020,
arXiv:2004.06278), keyed per step; keys come from the SplitMix64 finaliser.
Kernels draw with `uniform` of `kernels/numba_kernels/choices.py`, which gives the same bits.
"""

from __future__ import annotations

import enum

import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_WORD = 2**64 - 1
DRAW_BITS = np.uint64(20)
MOST_DRAWS = 2**20
HALF_WORD = np.uint64(32)
_TOGETHER = 2**14
TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


class Stream(enum.IntEnum):
    """What a draw is for. Draws of different streams are independent."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    POSTERIOR = 3
    EXPLORATION = 4
    START = 5
    PARTITION = 6
    RELOCATION = 7
    SPLIT = 8
    NOISE = 10


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _WORD
    word = ((word ^ (word >> 27)) * _MIX_2) & _WORD
    return word ^ (word >> 31)


def uniforms(key: np.uint64, rows: np.ndarray, n_draws: int, first_draw: int = 0) -> np.ndarray:
    """Uniforms (B, n_draws) in [0, 1) of rows (B,) < 2^44, draws first_draw, ... < 2^20."""
    out = np.empty((len(rows), n_draws))
    draws = np.arange(first_draw + 1, first_draw + 1 + n_draws).astype(np.uint64)
    # Few at a time: what lies between counters and uniforms stays in the cache.
    n_together = max(1, _TOGETHER // max(1, n_draws))
    for start in range(0, len(rows), n_together):
        some = np.asarray(rows[start : start + n_together]).astype(np.uint64) << DRAW_BITS
        x = (some[:, None] + draws) * key
        y = x
        z = y + key
        x = _swap(x * x + y)
        x = _swap(x * x + z)
        x = _swap(x * x + y)
        t = x * x + z
        x = _swap(t)
        word = t ^ ((x * x + y) >> HALF_WORD)
        np.multiply(word >> np.uint64(11), TO_UNIT, out=out[start : start + n_together])
    return out


def _swap(x: np.ndarray) -> np.ndarray:
    return np.asarray((x >> HALF_WORD) | (x << HALF_WORD))


def draw_uniformly(
    rows: np.ndarray, n_components: int, key: np.uint64, first_draw: int, n_draws: int
) -> np.ndarray:
    """Components (B, n_draws) int32, each equally likely."""
    drawn = (uniforms(key, rows, n_draws, first_draw) * n_components).astype(np.int32)
    return np.minimum(drawn, n_components - 1)


class StepRandomness:
    """The randomness of one step: keys and uniforms for its rows. `path` numbers children.

    >>> import numpy as np
    >>> rows = np.array([3, 8])
    >>> both = StepRandomness(seed=0, step=5).uniforms(Stream.PROPOSAL, rows, 2)
    >>> alone = StepRandomness(seed=0, step=5).uniforms(Stream.PROPOSAL, rows[1:], 2)
    >>> bool((both[1] == alone[0]).all())
    True
    """

    def __init__(self, seed: int, step: int, path: tuple[int, ...] = ()) -> None:
        self.seed = seed
        self.step = step
        self.path = path

    def child(self, n: int) -> StepRandomness:
        """The randomness of part n of this step, independent of the step's and of other parts.

        >>> random = StepRandomness(seed=0, step=5)
        >>> bool(random.child(1).key(Stream.START) == random.child(2).key(Stream.START))
        False
        """
        return StepRandomness(self.seed, self.step, (*self.path, int(n)))

    def key(self, stream: Stream) -> np.uint64:
        """Key of all draws of one stream in this step (odd, 64 bits)."""
        word = _mix((int(self.seed) + _GOLDEN) & _WORD)
        word = _mix(word ^ ((int(stream) * _GOLDEN) & _WORD))
        for number in (int(self.step), *self.path):
            word = _mix(word ^ ((number + _GOLDEN) & _WORD))
        return np.uint64(word | 1)

    def uniforms(
        self, stream: Stream, rows: np.ndarray, n_draws: int, first_draw: int = 0
    ) -> np.ndarray:
        """Uniforms in [0, 1) of shape (len(rows), n_draws)."""
        return uniforms(self.key(stream), rows, n_draws, first_draw)
