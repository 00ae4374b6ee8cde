"""A component of one's own against the closed form: full Gaussians, as EM fits them."""

import numpy as np
import pytest

from pickmix import GaussianMixture, Mixture
from pickmix_experiments.convergence import FullGaussian


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    shapes = np.array(
        [[[1.0, 0.8], [0.0, 0.6]], [[0.3, 0.0], [0.0, 2.0]], [[1.0, 0.0], [0.9, 0.4]]]
    )
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 9.0]])
    labels = rng.integers(3, size=600)
    return centres[labels] + np.einsum("ni,nij->nj", rng.normal(size=(600, 2)), shapes[labels])


@pytest.fixture(scope="module")
def exact(X):
    return GaussianMixture(3, algorithm="em", random_state=0).fit(X)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["mhsaem", "em", "sgd"])
def test_gradients_reach_the_likelihood_of_em(X, exact, algorithm):
    mixture = Mixture(
        FullGaussian(),
        3,
        algorithm=algorithm,
        max_steps=1500,
        evaluate_every=500,
        learning_rate=lambda t: 0.02 if t < 1000 else 0.002,
        validation_fraction=None,
        patience=None,
        random_state=0,
    ).fit(X)
    # No mixture of three is better than the closed form's, and this one is as good.
    assert mixture.score(X) == pytest.approx(exact.score(X), abs=0.02)
    np.testing.assert_allclose(np.sort(mixture.weights_), np.sort(exact.weights_), atol=0.03)
    # The same groups, by other numbers.
    pairs = set(zip(mixture.predict(X).tolist(), exact.predict(X).tolist(), strict=True))
    assert len(pairs) == 3
