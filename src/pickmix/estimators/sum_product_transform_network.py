"""Sum-product-transform networks."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.tree_inference import TreeInference
from pickmix.estimators.validation import check_flag, check_integer

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform


@dataclass(eq=False, repr=False)
class SumProductTransformNetwork(TreeInference, DeepMixture):
    """Sum-product-transform network, fitted by visiting one of its trees at a time. Needs JAX.

    A sum node over s children; each child is an affine transform of its coordinates, then a
    product over b contiguous parts of them, with a sum node of the next layer on each part. The
    last layer ends in standard normals. It is a mixture of very many Gaussians, one for every way
    to choose a child at each sum node (`n_trees_`), with few parameters.

    Parameters
    ----------
    n_children : int, default=8
        s.
    n_partitions : int, default=2
        b, clipped to the coordinates there are; 1 makes no products.
    n_layers : int, default=2
        l.
    transforms : bool, default=True
        False leaves the transforms out: a plain sum-product network, whose leaves are Gaussians
        with a location and a scale each. Marginals and conditionals are then exact.

    Attributes
    ----------
    n_trees_ : int
        K: s, then s times the b-th power of the layers below.
    n_paths_ : int
        s^l, by which the paper indexes its tables.

    Notes
    -----
    `weights_`, `predict`, `predict_proba` and `top_components` speak of the root's children.

    References
    ----------
    T. Pevný, V. Šmídl, M. Trapp, O. Poláček, T. Oberhuber: Sum-product-transform networks, 2020.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import SumProductTransformNetwork
    >>> X = np.random.default_rng(0).normal(size=(500, 4)) @ np.diag([1, 1, 3, 3])
    >>> network = SumProductTransformNetwork(4, 2, 2, max_steps=300, random_state=0).fit(X)
    >>> network.n_trees_, network.n_paths_, network.most_probable_trees(X).shape
    (64, 16, (500, 3))
    """

    n_children: int = 8
    n_partitions: int = 2
    n_layers: int = 2
    _: KW_ONLY
    transforms: bool = True

    def _check_family(self) -> int:
        check_integer("n_children", self.n_children, 1)
        check_integer("n_partitions", self.n_partitions, 1)
        check_integer("n_layers", self.n_layers, 1)
        check_flag("transforms", self.transforms)
        return self.n_children

    def _can_whiten(self) -> bool:
        # Without transforms columns must stay apart, or there are no marginals.
        return bool(self.transforms)

    def _network(self, n_features: int) -> SumProductTransform:
        from pickmix.gradient.sptn import SumProductTransform

        return SumProductTransform(
            self.n_children, self.n_partitions, self.n_layers, n_features, bool(self.transforms)
        )
