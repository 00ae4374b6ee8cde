import numpy as np
import pytest
from scipy import stats

from pickmix.compiled import kernel
from pickmix.kernels.numba_kernels.choices import uniform
from pickmix.selection.randomness import StepRandomness, Stream, uniforms


def test_a_draw_depends_on_its_counter_alone():
    rows = np.array([5, 1, 900_000_000])
    together = StepRandomness(3, 17).uniforms(Stream.PROPOSAL, rows, 4)
    for i, row in enumerate(rows):
        alone = StepRandomness(3, 17).uniforms(Stream.PROPOSAL, np.array([row]), 2, first_draw=2)
        np.testing.assert_array_equal(together[i, 2:], alone[0])


def test_seeds_steps_streams_rows_and_draws_all_matter():
    rows = np.arange(50)
    base = StepRandomness(3, 17).uniforms(Stream.PROPOSAL, rows, 4)
    others = [
        StepRandomness(4, 17).uniforms(Stream.PROPOSAL, rows, 4),
        StepRandomness(3, 18).uniforms(Stream.PROPOSAL, rows, 4),
        StepRandomness(3, 17).uniforms(Stream.ACCEPTANCE, rows, 4),
        StepRandomness(3, 17).uniforms(Stream.PROPOSAL, rows + 50, 4),
        StepRandomness(3, 17).uniforms(Stream.PROPOSAL, rows, 4, first_draw=4),
    ]
    for other in others:
        assert not (base == other).any()


def test_uniforms_fill_the_unit_square_evenly_in_every_direction():
    """Pairs of neighbours along rows, draws, steps and seeds: 32 x 32 cells, chi-square."""
    rows = np.arange(200_000)
    now = StepRandomness(0, 1)
    first = now.uniforms(Stream.PROPOSAL, rows, 2)
    pairs = {
        "rows": (first[:-1, 0], first[1:, 0]),
        "draws": (first[:, 0], first[:, 1]),
        "steps": (first[:, 0], StepRandomness(0, 2).uniforms(Stream.PROPOSAL, rows, 1)[:, 0]),
        "seeds": (first[:, 0], StepRandomness(1, 1).uniforms(Stream.PROPOSAL, rows, 1)[:, 0]),
        "streams": (first[:, 0], now.uniforms(Stream.ACCEPTANCE, rows, 1)[:, 0]),
    }
    for name, (x, y) in pairs.items():
        assert x.min() >= 0.0, name
        assert x.max() < 1.0, name
        counts = np.histogram2d(x, y, bins=32, range=[[0, 1], [0, 1]])[0]
        # Five fixed-seed tests: a p-value below 1e-4 would be a one-in-2000 accident.
        assert stats.chisquare(counts.ravel()).pvalue > 1e-4, name


@kernel(cache=False)
def _fill(key, rows, first_draw, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = uniform(key, rows[i], first_draw + j)


def test_kernels_draw_the_same_bits():
    rows = np.array([0, 5, 2**31, 2**44 - 1])
    for key in (StepRandomness(3, 17).key(Stream.START), np.uint64(2**64 - 1)):
        drawn = np.empty((4, 6))
        _fill(key, rows, 100, drawn)
        np.testing.assert_array_equal(uniforms(key, rows, 6, 100), drawn)
    np.testing.assert_array_equal(uniforms(key, rows[:2].astype(np.int32), 6, 100), drawn[:2])
    rows, drawn = np.arange(40_000), np.empty((40_000, 3))
    _fill(key, rows, 0, drawn)
    np.testing.assert_array_equal(uniforms(key, rows, 3), drawn)


@pytest.mark.parametrize(
    ("seed", "stream", "step", "key"),
    [
        (0, Stream.PROPOSAL, 1, 0x78482DBE776F39D9),
        (12345, Stream.PARTITION, 10**6, 0x9B742F89C252A0EB),
        (2**32 - 1, Stream.RELOCATION, 0, 0xB78F4888B82FA969),
    ],
)
def test_keys_are_those_of_version_0_1(seed, stream, step, key):
    assert StepRandomness(seed, step).key(stream) == np.uint64(key)


def test_children_do_not_collide():
    """Steps, their children, and children of those: all keys differ."""
    keys = []
    for step in (1, 2):
        random = StepRandomness(0, step)
        keys.append(random.key(Stream.PARTITION))
        for n in range(2000):
            keys.append(random.child(n).key(Stream.PARTITION))
            keys.append(random.child(0).child(n).key(Stream.PARTITION))
            keys.append(StepRandomness(0, 1024 * step + n).key(Stream.PARTITION))
    # Steps 2048..3023 are in both of the last lists.
    assert len(set(keys)) == len(keys) - 976
