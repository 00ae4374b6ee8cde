import numpy as np
from scipy import stats

from pickmix.selection.randomness import StepRandomness, Stream


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
