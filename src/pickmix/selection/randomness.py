"""Counter-based randomness: every draw is a function of (seed, stream, step, row, draw).

There is no generator state to share or to split, so the same seed gives the same
draws for any number of threads, blocks or machines, in any order of evaluation.
The generator is the five-round "squares" construction of Widynski (2020,
arXiv:2004.06278), keyed per step; keys come from the SplitMix64 finaliser.
"""

from __future__ import annotations

import enum

import numpy as np

from pickmix.compiled import kernel, part

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_HALF_WORD = np.uint64(32)
_DRAW_BITS = np.uint64(20)
MOST_DRAWS = 2**20
_TO_UNIT = 1.0 / 9007199254740992.0  # 2^-53


class Stream(enum.IntEnum):
    """What a draw is for. Draws of different streams are independent."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    POSTERIOR = 3
    EXPLORATION = 4
    START = 5
    PARTITION = 6
    RELOCATION = 7


@part()
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * _MIX_1
    word = (word ^ (word >> np.uint64(27))) * _MIX_2
    return word ^ (word >> np.uint64(31))


@kernel()
def step_key(seed, stream, step):
    """Key of all draws of one stream in one step (odd, 64 bits)."""
    word = _mix(np.uint64(seed) + _GOLDEN)
    word = _mix(word ^ (np.uint64(stream) * _GOLDEN))
    return _mix(word ^ (np.uint64(step) + _GOLDEN)) | np.uint64(1)


@part()
def uniform(key, row, draw):
    """Uniform number in [0, 1) for (row, draw); up to 2^44 rows and 2^20 draws per step."""
    x = ((np.uint64(row) << _DRAW_BITS) + np.uint64(draw) + np.uint64(1)) * key
    y = x
    z = y + key
    x = x * x + y
    x = (x >> _HALF_WORD) | (x << _HALF_WORD)
    x = x * x + z
    x = (x >> _HALF_WORD) | (x << _HALF_WORD)
    x = x * x + y
    x = (x >> _HALF_WORD) | (x << _HALF_WORD)
    x = x * x + z
    t = x
    x = (x >> _HALF_WORD) | (x << _HALF_WORD)
    word = t ^ ((x * x + y) >> _HALF_WORD)
    return float(word >> np.uint64(11)) * _TO_UNIT


@kernel()
def fill_uniform(key, rows, first_draw, out):
    """Fill `out` (B, M) with the uniforms of `rows` (B,), draws first_draw, first_draw + 1, ..."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = uniform(key, rows[i], first_draw + j)


class StepRandomness:
    """The randomness of one step: keys and uniforms for its rows.

    Examples
    --------
    >>> import numpy as np
    >>> rows = np.array([3, 8])
    >>> both = StepRandomness(seed=0, step=5).uniforms(Stream.PROPOSAL, rows, 2)
    >>> alone = StepRandomness(seed=0, step=5).uniforms(Stream.PROPOSAL, rows[1:], 2)
    >>> bool((both[1] == alone[0]).all())
    True
    """

    def __init__(self, seed: int, step: int) -> None:
        self.seed = seed
        self.step = step

    def key(self, stream: Stream) -> np.uint64:
        """Key of one stream in this step."""
        return np.uint64(step_key(self.seed, int(stream), self.step))

    def uniforms(
        self, stream: Stream, rows: np.ndarray, n_draws: int, first_draw: int = 0
    ) -> np.ndarray:
        """Uniforms in [0, 1) of shape (len(rows), n_draws)."""
        out = np.empty((rows.shape[0], n_draws))
        fill_uniform(self.key(stream), rows, first_draw, out)
        return out
