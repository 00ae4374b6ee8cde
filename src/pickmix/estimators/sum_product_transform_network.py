"""Sum-product-transform networks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pickmix.estimators.deep_mixture import DeepMixture
from pickmix.estimators.tree_inference import TreeInference
from pickmix.estimators.validation import check_flag, check_integer

if TYPE_CHECKING:
    from pickmix.gradient.sptn import SumProductTransform


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
    weights_ : (s,) array
        Of the root's children, which `predict`, `predict_proba` and `top_components` speak of.
    n_trees_ : int
        K: s, then s times the b-th power of the layers below.
    n_paths_ : int
        s^l, by which the paper indexes its tables.

    Notes
    -----
    All other parameters and attributes are those of `DeepMixture`.

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

    def __init__(
        self,
        n_children=8,
        n_partitions=2,
        n_layers=2,
        *,
        transforms=True,
        algorithm="mhsaem",
        proposal="uniform",
        n_samples=1,
        reuse_log_joint=False,
        batch_size=100,
        max_steps=20000,
        max_time=None,
        learning_rate=1e-3,
        adam="row",
        weight_update="auto",
        step_size="auto",
        annealing=None,
        gradient_clip=None,
        init_params="auto",
        standardize="auto",
        validation_fraction=0.1,
        patience=20,
        tol=1e-4,
        evaluate_every="auto",
        dtype="float32",
        random_state=None,
        warm_start=False,
        verbose=0,
        callbacks=(),
    ):
        self.n_children = n_children
        self.n_partitions = n_partitions
        self.n_layers = n_layers
        self.transforms = transforms
        self.algorithm = algorithm
        self.proposal = proposal
        self.n_samples = n_samples
        self.reuse_log_joint = reuse_log_joint
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.max_time = max_time
        self.learning_rate = learning_rate
        self.adam = adam
        self.weight_update = weight_update
        self.step_size = step_size
        self.annealing = annealing
        self.gradient_clip = gradient_clip
        self.init_params = init_params
        self.standardize = standardize
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.tol = tol
        self.evaluate_every = evaluate_every
        self.dtype = dtype
        self.random_state = random_state
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks

    def _check_family(self) -> None:
        check_integer("n_children", self.n_children, 1)
        check_integer("n_partitions", self.n_partitions, 1)
        check_integer("n_layers", self.n_layers, 1)
        check_flag("transforms", self.transforms)

    def _frames(self) -> tuple[str, ...]:
        # Without transforms columns must stay apart, or there are no marginals.
        apart = not self.transforms or self.init_params == "paper"
        return ("columns",) if apart else ("columns", "whiten")

    def _network(self, n_features: int) -> SumProductTransform:
        from pickmix.gradient.sptn import SumProductTransform

        return SumProductTransform(
            self.n_children, self.n_partitions, self.n_layers, n_features, bool(self.transforms)
        )
