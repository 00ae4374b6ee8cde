"""Input of every kind: refused with a clear error, or accepted and the same as plain arrays."""

import numpy as np
import pytest
from robust_fits import clusters, fitted
from scipy import sparse

exact_and_default = pytest.mark.parametrize(
    "settings", [{"algorithm": "em"}, {"algorithm": "mhsaem"}], ids=["em", "mhsaem"]
)


class TestRefusedInput:
    @pytest.mark.parametrize(
        ("X", "error", "message"),
        [
            (np.empty((0, 2)), ValueError, r"0 sample\(s\)"),
            (np.empty((5, 0)), ValueError, r"0 feature\(s\)"),
            (np.arange(10.0), ValueError, "Expected 2D array, got 1D array"),
            (np.zeros((4, 3, 2)), ValueError, "3"),
            (np.array([["a", "b"], ["c", "d"]]), ValueError, "got the text 'a' in row 0, column 0"),
            (
                np.full((5, 2), 1j),
                ValueError,
                "Complex data not supported: X must .* dtype complex128",
            ),
            (sparse.csr_array(np.eye(5)), TypeError, "[Ss]parse"),
            (None, ValueError, "X must be an array, .* got None"),
            ("text", FileNotFoundError, "text: expected a file or a folder, found nothing there"),
        ],
        ids=["empty", "no features", "1-D", "3-D", "strings", "complex", "sparse", "None", "text"],
    )
    def test_not_a_table_of_numbers(self, X, error, message):
        with pytest.raises(error, match=message):
            fitted(X)

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            (-np.ones(400), "[Nn]egative"),
            (np.zeros(400), "zero"),
            (np.ones(399), "sample_weight.shape"),
            (np.full(400, np.nan), "NaN"),
            (np.ones((400, 2)), "1D"),
        ],
        ids=["negative", "zeros", "short", "NaN", "2-D"],
    )
    def test_bad_sample_weight(self, weights, message):
        with pytest.raises(ValueError, match=message):
            fitted(clusters(), algorithm="em", sample_weight=weights)
        with pytest.raises(ValueError, match=message):
            fitted(clusters(), algorithm="em").score(clusters(), sample_weight=weights)


class TestAcceptedInput:
    """The layout and the type of the rows do not change the fit."""

    @staticmethod
    def layouts():
        X = clusters()
        read_only = X.copy()
        read_only.flags.writeable = False
        wide = np.zeros((800, 5))
        wide[::2, 1:4:2] = X
        backwards = X[::-1].copy()
        return {
            "fortran": np.asfortranarray(X),
            "strided": wide[::2, 1:4:2],
            "reversed view": backwards[::-1],
            "read-only": read_only,
            "list": X.tolist(),
            "tuple": tuple(map(tuple, X.tolist())),
            "big-endian": X.astype(">f8"),
        }

    @exact_and_default
    @pytest.mark.parametrize("layout", list(layouts()))
    def test_layout(self, settings, layout):
        X = self.layouts()[layout]
        plain = fitted(clusters(), **settings)
        mixture = fitted(X, **settings)
        # Sums over columns may be taken in another order, nothing else.
        np.testing.assert_allclose(mixture.means_, plain.means_, rtol=1e-11)
        np.testing.assert_allclose(mixture.covariances_, plain.covariances_, rtol=1e-11)
        np.testing.assert_allclose(
            mixture.score_samples(X), plain.score_samples(np.array(X, dtype=np.float64)), rtol=1e-11
        )

    @exact_and_default
    def test_float32_is_its_values(self, settings):
        X = clusters().astype(np.float32)
        mixture = fitted(X, **settings)
        twice = fitted(X, **settings)
        plain = fitted(X.astype(np.float64), **settings)
        for other in (twice, plain):
            np.testing.assert_array_equal(mixture.means_, other.means_)
            np.testing.assert_array_equal(mixture.covariances_, other.covariances_)
        assert mixture.means_.dtype == np.float64
        np.testing.assert_array_equal(
            mixture.score_samples(X), mixture.score_samples(X.astype(np.float64))
        )

    def test_data_frame(self):
        pandas = pytest.importorskip("pandas")
        frame = pandas.DataFrame(clusters(), columns=["height", "weight"])
        mixture, plain = fitted(frame), fitted(clusters())
        np.testing.assert_allclose(mixture.means_, plain.means_, rtol=1e-11)
        assert mixture.feature_names_in_.tolist() == ["height", "weight"]
        assert mixture.bic(frame) == pytest.approx(plain.bic(clusters()), rel=1e-11)
        with pytest.raises(ValueError, match="feature names"):
            mixture.predict(frame[["weight", "height"]])
