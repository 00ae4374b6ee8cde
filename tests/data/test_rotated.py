import numpy as np
import pytest

from pickmix.data.rotated import generate


def test_spectrum_means_and_weights_are_as_asked():
    mixture = generate(400, 3, 0.2, random_state=0)
    spectrum = np.linalg.eigvalsh(mixture.covariances) / 0.2**2
    assert spectrum.min() >= 0.1
    assert spectrum.max() <= 1.0
    # Uniform in [0.1, 1]: mean 0.55, standard deviation 0.26.
    assert abs(spectrum.mean() - 0.55) < 4 * 0.26 / np.sqrt(1200)
    assert 0.0 <= mixture.means.min() < 0.01
    assert 0.99 < mixture.means.max() <= 1.0
    np.testing.assert_allclose(mixture.weights, 1 / 400)


def test_rotations_prefer_no_direction():
    covariances = generate(4000, 4, 1.0, random_state=1).covariances
    np.testing.assert_allclose(covariances.mean(axis=0), 0.55 * np.eye(4), atol=0.02)
    # Squared coordinates of a uniform direction: mean 1 / D, second moment 3 / (D (D + 2)).
    squares = np.linalg.eigh(covariances)[1] ** 2
    np.testing.assert_allclose(squares.mean(axis=0), np.full((4, 4), 1 / 4), atol=0.02)
    np.testing.assert_allclose((squares**2).mean(axis=0), np.full((4, 4), 1 / 8), atol=0.02)


def test_power_law_is_one_over_rank_in_random_order_and_rows_follow_it():
    mixture = generate(3, 2, 0.05, weights="power", random_state=4)
    expected = 1.0 / np.arange(1, 4)
    np.testing.assert_allclose(np.sort(mixture.weights)[::-1], expected / expected.sum())
    assert np.any(np.diff(generate(50, 2, 0.1, weights="power", random_state=3).weights) > 0)
    X, labels = mixture.sample(20_000, random_state=5)
    np.testing.assert_allclose(np.bincount(labels) / 20_000, mixture.weights, atol=0.02)
    for k in range(3):
        rows = X[labels == k]
        np.testing.assert_allclose(rows.mean(axis=0), mixture.means[k], atol=5e-3)
        np.testing.assert_allclose(np.cov(rows.T), mixture.covariances[k], atol=0.1 * 0.05**2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer >= 1; got 0"),
        ({"n_features": 1.5}, "n_features must be an integer >= 1; got 1.5"),
        ({"width": 0.0}, "width must be a positive number; got 0.0"),
        ({"weights": "zipf"}, "weights must be one of equal, power; got 'zipf'"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        generate(**{"n_components": 2, "n_features": 2, "width": 0.1, **change})
    for n in (0, 2.5, True):
        with pytest.raises(ValueError, match="n must be an integer >= 1; got"):
            generate(2, 2, 0.1, random_state=0).sample(n)
