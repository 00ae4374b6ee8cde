"""Sum-product-transform networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from pickmix.checks import check_integer, check_randomness
from pickmix.estimators.deep_mixture import DeepMixture, refuse_missing, require_jax
from pickmix.gradient.settings import check_number_of
from pickmix.inputs.arrays import naming_cells, without_mask

if TYPE_CHECKING:
    from pickmix.gradient.network import Network
    from pickmix.gradient.sptn import SumProductTransform

# With "auto": children of the nodes below the root.
_CHILDREN_BELOW = 4


@dataclass(eq=False, repr=False)
class SumProductTransformNetwork(DeepMixture):
    """Sum-product-transform network, fitted by visiting one of its trees at a time. Needs JAX.

    A sum node over s children; each child is an affine transform of its coordinates, then a
    product over b contiguous parts of them, with a sum node of the next layer on each part. The
    last layer ends in standard normals. It is a mixture of very many Gaussians, one for every way
    to choose a child at each sum node (`n_trees_`), with few parameters.

    Parameters
    ----------
    n_children : int, sequence of int or "auto", default="auto"
        s, the children of a sum node, or one number per layer, from the root down. "auto" chooses
        the number of the root by Gaussian mixtures, as FlowMixture does, and takes 4 below.
    n_partitions : int, default=2
        b, the parts of a product, at most the number of coordinates; 1 makes no products.
    n_layers : int, default=2
        l, the layers of sum nodes.
    transforms : {"triangular", "rotations"} or bool, default="triangular"
        "triangular" are affine maps with lower triangular matrices, which are fast. "rotations"
        (also True) are the paper's: two rotations and scales between them. Both make Gaussians
        with any covariance. With products (b > 1) rotations let each part look across all columns;
        triangular matrices take from a part what is linear in the columns before it. False leaves
        the transforms out: a plain sum-product network, whose leaves are Gaussians with a location
        and a scale each. Marginals and conditionals are then exact, and rows may have missing
        values (NaN), which are integrated out in fits and queries.

    Attributes
    ----------
    n_children_ : tuple of int
        s of each layer, from the root down.
    n_trees_ : int
        K: s, then s times the b-th power of the layers below.
    n_paths_ : int
        s^l, by which the paper indexes its tables.

    Notes
    -----
    The components of `weights_`, `predict`, `predict_proba` and `top_components` are the children
    of the root.

    References
    ----------
    T. Pevný, V. Šmídl, M. Trapp, O. Poláček, T. Oberhuber: Sum-product-transform networks, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import SumProductTransformNetwork
    >>> X = np.random.default_rng(0).normal(size=(500, 4)) @ np.diag([1, 1, 3, 3])
    >>> network = SumProductTransformNetwork(4, 2, 2, max_steps=50, random_state=0).fit(X)
    >>> network.n_trees_, network.n_paths_, network.most_probable_trees(X).shape
    (64, 16, (500, 3))
    """

    n_children: int | Sequence[int] | str = "auto"
    n_partitions: int = 2
    n_layers: int = 2
    _: KW_ONLY
    transforms: str | bool = "triangular"

    def _check_family(self) -> int | None:
        check_integer("n_partitions", self.n_partitions, 1)
        check_integer("n_layers", self.n_layers, 1)
        if self.transforms not in ("triangular", "rotations", True, False):
            raise ValueError(
                "transforms must be 'triangular', 'rotations', True or False, "
                f"got {self.transforms!r}."
            )
        given = self.n_children
        if isinstance(given, int | str | np.integer):
            return check_number_of(self, "n_children", given)
        numbers = list(given) if isinstance(given, Sequence) else []
        if len(numbers) != self.n_layers:
            raise ValueError(
                "n_children must be 'auto', an integer >= 1 or a sequence of them, one for each of "
                f"the n_layers={self.n_layers} layers, got {self.n_children!r}."
            )
        checked = [check_integer("n_children", number, 1) for number in numbers]
        return checked[0]

    def _takes_missing(self) -> bool:
        # Of rows whose columns are mixed, one gap would hide all.
        return not self.transforms and self.standardize != "whiten"

    def _partial_network(self, network: Network) -> Network:
        from pickmix.gradient.sptn import PartialSumProduct, SumProductTransform

        assert isinstance(network, SumProductTransform)
        return PartialSumProduct(network)

    def _network(self, n_features: int, n_children: int | None = None) -> SumProductTransform:
        from pickmix.gradient.sptn import SumProductTransform

        root, below = self._n_children(n_children), self.n_children
        numbers: int | list[int] = root
        if isinstance(below, str):
            numbers = [root] + [min(root, _CHILDREN_BELOW)] * (self.n_layers - 1)
        elif isinstance(below, Sequence):
            numbers = [root, *below[1:]]
        return SumProductTransform(
            numbers, self.n_partitions, self.n_layers, n_features, self.transforms
        )

    @property
    def n_trees_(self) -> int:
        """Number of trees, the components of the mixture that the network is."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).n_trees

    @property
    def n_children_(self) -> tuple[int, ...]:
        """Children of a sum node of each layer, from the root down."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).children

    @property
    def n_paths_(self) -> int:
        """s^l."""
        check_is_fitted(self)
        return self._network(self.center_.shape[0]).n_evaluated_by_all

    def most_probable_trees(self, X: Any) -> np.ndarray:
        """Most probable tree of each row: the child chosen at every sum node that it reaches.

        Parameters
        ----------
        X : array-like of shape (N, D)

        Returns
        -------
        choices : (N, n_slots) int array
            The choice at the root first, then layer by layer, part by part.
        """
        rows = self.model_.whole(self._read(X))
        if not self._takes_missing():
            refuse_missing(self, rows, "X")
        fitted, rows = self.model_.in_frame(rows)
        return fitted.most_probable_trees(rows)

    def score_marginal(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Log-density of some columns, the others integrated out, (N,).

        Exact for networks without transforms; a transform mixes the columns of its scope.

        Parameters
        ----------
        X : array-like of shape (N, len(columns))
            Values of those columns.
        columns : list of int
        """
        return self.model_.score_samples(self._with_gaps(X, columns))

    def score_conditional(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Log-density of the other columns, given some, (N,).

        Exact for networks without transforms.

        Parameters
        ----------
        X : array-like of shape (N, D)
            All columns.
        columns : list of int
            Columns that are given.
        """
        with naming_cells(X):
            X = check_array(without_mask(X), dtype=[np.float64, np.float32])
        given = X[:, np.asarray(columns, dtype=np.intp)]
        scores: np.ndarray = self.score_samples(X) - self.score_marginal(given, columns)
        return scores

    def sample_conditional(  # type: ignore[override]
        self, X: Any, columns: Sequence[int]
    ) -> np.ndarray:
        """Draw the other columns, given some: one full row for each row of X.

        Exact for networks without transforms.

        Parameters
        ----------
        X : array-like of shape (N, len(columns))
            Values of those columns.
        columns : list of int

        Returns
        -------
        rows : (N, D) array
        """
        model = self.model_
        fitted, rows = model.in_frame(model.whole(self._with_gaps(X, columns)))
        random = check_randomness(self.random_state)
        uniforms = random.random_sample((rows.shape[0], model.network.n_slots))
        drawn = fitted.sample_conditional(rows, uniforms, int(random.randint(2**31 - 1)))
        full = model.of_columns(model.frame.from_model(drawn))
        # To the last bit what was given.
        full[:, np.asarray(columns, dtype=np.intp)] = np.asarray(without_mask(X))
        return full

    def _with_gaps(self, X: Any, columns: Sequence[int]) -> np.ndarray:
        """Check columns, and put X (N, len(columns)) into rows (N, D), with NaN elsewhere."""
        require_jax()
        check_is_fitted(self)
        n_features = int(self.n_features_in_)
        if n_features > 1 and (self.whitening_ is not None or not self._takes_missing()):
            raise ValueError(
                "Marginals and conditionals are exact only without transforms across columns: fit "
                "with transforms=False and standardize='columns' (or 'auto'), got "
                f"transforms={self.transforms!r} and standardize={self.standardize!r}."
            )
        chosen = np.asarray(columns)
        if chosen.ndim != 1 or chosen.size == 0 or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(f"columns must be a list of column numbers, got {columns!r}.")
        is_number = (chosen >= 0) & (chosen < n_features)
        if not is_number.all() or len(set(chosen.tolist())) < len(chosen):
            raise ValueError(
                f"columns must be different numbers in [0, {n_features}), got {columns!r}."
            )
        with naming_cells(X):
            X = check_array(without_mask(X), dtype=[np.float64, np.float32])
        if X.shape[1] != chosen.size:
            raise ValueError(
                f"X must have one column for each of the {chosen.size} columns asked for, "
                f"got {X.shape[1]}."
            )
        rows = np.full((X.shape[0], n_features), np.nan)
        rows[:, chosen] = X
        return rows
