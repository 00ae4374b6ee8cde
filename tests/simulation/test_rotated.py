import numpy as np
import pytest

from pickmix.simulation.rotated import generate


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
    # Off-diagonal elements scatter around 0, diagonal ones around the spectrum's mean.
    mean = covariances.mean(axis=0)
    np.testing.assert_allclose(mean, 0.55 * np.eye(4), atol=0.02)
    # Squared coordinates of a uniform direction: mean 1 / D, second moment 3 / (D (D + 2)).
    axes = np.linalg.eigh(covariances)[1]
    squares = axes**2
    np.testing.assert_allclose(squares.mean(axis=0), np.full((4, 4), 1 / 4), atol=0.02)
    np.testing.assert_allclose((squares**2).mean(axis=0), np.full((4, 4), 1 / 8), atol=0.02)
    # No corner of the cube is preferred; the standard error is 0.0002.
    assert abs(axes.prod(axis=1).mean()) < 1e-3


def test_power_law_is_one_over_rank_in_random_order():
    weights = generate(50, 2, 0.1, weights="power", random_state=3).weights
    expected = 1.0 / np.arange(1, 51)
    np.testing.assert_allclose(np.sort(weights)[::-1], expected / expected.sum())
    assert np.any(np.diff(weights) > 0)


def test_rows_follow_the_mixture():
    mixture = generate(3, 2, 0.05, weights="power", random_state=4)
    X, labels = mixture.sample(60_000, random_state=5)
    shares = np.bincount(labels) / 60_000
    np.testing.assert_allclose(shares, mixture.weights, atol=0.01)
    for k in range(3):
        np.testing.assert_allclose(X[labels == k].mean(axis=0), mixture.means[k], atol=3e-3)
        np.testing.assert_allclose(
            np.cov(X[labels == k].T), mixture.covariances[k], atol=0.05 * 0.05**2
        )


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


@pytest.mark.parametrize("n", [0, 2.5, True])
def test_bad_number_of_rows_is_named(n):
    with pytest.raises(ValueError, match="n must be an integer >= 1; got"):
        generate(2, 2, 0.1, random_state=0).sample(n)
