"""Mixtures of Gaussians."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.mixture import GaussianMixture as SklearnMixture
from sklearn.utils.validation import check_is_fitted

from pickmix.checks import (
    check_array_parameter,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    check_weights_init,
)
from pickmix.closed_form.starts import GivenStart
from pickmix.data.rows import ArrayRows
from pickmix.estimators.known_parts import fit_around
from pickmix.estimators.low_rank_covariances import LOW_RANK, LowRankCovariances, check_low_rank
from pickmix.estimators.row_sources import is_large
from pickmix.estimators.trials import choose_covariances
from pickmix.families.base import Family
from pickmix.families.cholesky import factorise, unpack_symmetric
from pickmix.families.gaussian import GAUSSIANS, Gaussian, check_positive_definite
from pickmix.families.low_rank import LowRankGaussian
from pickmix.inputs.errors import warn_caller

_WIDE = 32  # Columns from which a fit of full covariances may warn that they are too many.
INIT_PARAMS = ("auto", "k-means++", "kmeans", "random", "random_from_data", "paper")


@dataclass(eq=False, repr=False)
class GaussianMixture(LowRankCovariances):
    """Gaussian mixture that is fitted by visiting only a few components per row.

    p(x) = sum_k weights_[k] N(x; means_[k], covariances_[k]). The fit is a stochastic form of EM:
    each row remembers one component, and a visit compares it with a few others instead of all K
    (Papež, Pevný and Šmídl 2022). The other algorithms of that paper are here too.

    Parameters
    ----------
    n_components : int or "auto", default=1
        K, the number of components. With "auto" a mixture grows: components are split and merged as
        long as rows that are left out of their components are explained better, and of the
        mixtures on the way the smallest is taken that is not worse than the best by more than a
        standard error. The fit begins with it. `n_components_` is the number, `growth_` says why.
    max_components : int, default=None
        Most components that "auto" may choose. None is half as many as there are rows, and 10^8
        parameters.
    covariance_type : {"full", "tied", "diag", "spherical", "low_rank", "auto"}, default="full"
        As in scikit-learn: a matrix per component, one matrix for all, variances per column, or
        one variance per component. "low_rank" is for rows of a hundred columns and more, or few
        rows per component: covariances L L' + diag(psi), with loadings L of few columns and noise
        variances psi. It makes no D x D matrix. "auto" compares "full", "low_rank" and "diag" by
        short fits to some rows and the likelihood of others; `covariance_type_` is its choice, and
        `covariance_scores_` says why. Up to 16 columns it is "full".
    rank : int or "auto", default="auto"
        For "low_rank": the most columns that the loadings of a component have; components whose
        rows show fewer directions have fewer. "auto" is 96, or less: D / 2, or what makes 3 * 10^7
        loadings in all.
    axes : {"auto", "columns", "principal"}, default="auto"
        For "low_rank": whether the noise is independent in columns, or along the principal axes of
        rows about their components, which suits images. "auto" compares both as above, where rows
        are in memory, have no gaps and at most 1000 columns; else, and for "em", it is "columns".
        With "principal", conditionals and marginals are made of D x D matrices, and rows must have
        no gaps.
    algorithm : {"em", "saem", "ssaem", "tsaem", "mcsaem", "mhsaem"}, default="mhsaem"
        "em" evaluates all components on all rows, and gives the result of scikit-learn from the
        same start. The others use minibatches; "tsaem" and "mhsaem" also evaluate only a few
        components per row.
    proposal : str, RandomPartition, Proposal or SearchSet, default="auto"
        For "mhsaem": how the next component of a row is chosen. "partition" (or a
        `pickmix.RandomPartition`), which is what "auto" means, draws from the posterior within a
        random block of neighbouring components; the cost does not depend on K. "uniform",
        "optimal", "table", "table-forgetting" and instances of `pickmix.Proposal` propose a
        component, which is accepted or rejected as in the paper. `proposal_` says which was used.
        For "tsaem": a `pickmix.SearchSet`, or "auto".
    n_samples : int or "auto", default="auto"
        M: draws per visit of a row, components kept per row for "ssaem" and "tsaem", or partitions
        per visit. "auto" is 1 for partitions, 3 for "tsaem" and 2 for the others.
    reuse_log_joint : bool, default=False
        For "mhsaem" with a proposal that may be rejected: use the log-joint of the current
        component of a row from the last visit of the row, instead of computing it again with the
        current parameters.
    batch_size : int or "auto", default="auto"
        B, the rows per step. For partitions "auto" means all rows, but at most 200,000 or 500 per
        component, whichever is more; for other fits it means 4 per component.
    step_size : float, "paper", callable or "auto", default="auto"
        Step size gamma_t: a constant, the paper's two phases (1 for 50 steps, then 0.05), or any
        function of t = 1, 2, ... For partitions "auto" is 1 until the log-likelihood has stopped
        rising and then averages over the last steps; for other fits it averages over the passes.
    annealing : None, "anti" or callable, default=None
        Inverse temperature beta_t of the posteriors: None means 1; "anti" is the paper's
        anti-annealing (flat posteriors first, sharp ones later) over all steps; or any function of
        t.
    max_iter : int, default=100
        Most passes over the data; 0 gives the start. A partition fit of many rows begins with a
        sample, and a pass over the sample counts as one.
    max_steps : int, default=None
        Exact number of steps. It overrides `max_iter`, and `tol` is not used.
    max_time : float, default=None
        Most seconds of work, over all starts; at most half of them choose a number of components.
    tol : float, default=1e-3
        The fit ends when the log-likelihood per row rises by less than this: per iteration for
        "em", by less than twice this over five steps for partitions, else smoothed and over about
        five passes. For "low_rank", but for "em", it is meant for every 4 columns. Not used with
        `max_steps` or `annealing`.
    evaluate_every : int, sequence of int or "auto", default="auto"
        Steps between evaluations of the log-likelihood, or the steps after which to evaluate it;
        with "auto" they take little of the time. `tol` counts in evaluations.
    reg_covar : float, default=1e-6
        Added to the diagonal of every covariance.
    background : bool, default=True
        Let one of the K components of a partition fit become a background for rows that belong to
        no group: a broad Gaussian about the mean of all rows. This happens only if left-out rows
        show that it explains some rows better than a component of their own. `background_` says
        which component it is. Not for "tied" covariances.
    n_init : int, default=1
        Number of starts; the fit with the highest log-likelihood is kept.
    init_params : {"auto", "k-means++", "kmeans", "random", "random_from_data", "paper"}, \
            default="auto"
        "kmeans" is scikit-learn's `KMeans` on all rows, "random" its random responsibilities.
        "k-means++" runs on a subsample, with Lloyd steps; "paper" draws means from the unit cube,
        with unit covariances. "auto" spreads the components of a partition fit over the rows
        (k-means++, within cells if there are thousands of components, then a soft k-means with the
        same blocks), and early in the fit moves components that are hardly needed; for other fits
        it is "k-means++" up to 3000 components and random rows beyond.
    weights_init, means_init, precisions_init : array-like, default=None
        Start parameters, in scikit-learn's shapes.
    fixed_components : (means, covariances), default=None
        Components that stay as given, such as a known background: they are the first of the
        `n_components`, and only their weights are fitted. Shapes as in `means_` and `covariances_`.
        For rows in memory, without noise; not for "tied" covariances.
    random_state : int, RandomState, Generator or None, default=None
    n_jobs : int or None, default=None
        Most threads; None means one per core. The result does not depend on it.
    warm_start : bool, default=False
        Continue from the parameters, effective counts, chain states and step number of the last
        fit. Proposal tables and search sets are learnt again.
    verbose : int, default=0
        1 shows a progress bar, 2 a line per evaluation.
    callbacks : callable or list of callables, default=()
        Called with a `FitInfo` after each evaluation; a true return value ends the fit.
    checkpoint : path, default=None
        Folder for checkpoints. A fit that was killed or interrupted resumes from the last one when
        the same call is made again, and gives the same result to the last bit. Other parameters or
        rows are refused. Ctrl-C and SIGTERM write a checkpoint before they end a fit.
    checkpoint_every : float, default=300
        Seconds between checkpoints. The last two are kept.

    Attributes
    ----------
    weights_ : (K,) array
    means_ : (K, D) array
    covariances_, precisions_, precisions_cholesky_ : arrays
        In scikit-learn's shapes. Of "low_rank", covariances are made when they are asked for, up
        to 10^8 numbers; `covariance` makes one.
    loadings_, noise_variances_ : (K, D, H) and (K, D) arrays
        Of "low_rank" covariances, loadings_[k] @ loadings_[k].T + diag(noise_variances_[k]).
        Columns beyond the rank of a component are zero.
    principal_axes_ : (D, D) array
        Of `axes="principal"`: noise variances are those of ``X @ principal_axes_``.
    covariance_type_ : str
        The covariance type in use.
    covariance_scores_ : dict
        Nats per held-out row in the comparisons that "auto" has made; empty without any.
    background_ : int or None
        The component that is a background, if there is one.
    converged_ : bool
    outcome_ : str
        How the fit ended: "converged", "max_iter", "max_steps", "max_time", "callback",
        "interrupted", "singular_covariance" or "non_finite".
    lower_bound_ : float
        Last log-likelihood per row in `trace_`; minus infinity if no step was made.
    lower_bounds_ : list of float
        All of them.
    n_iter_ : int
        Passes made in this fit; the last one may be incomplete.
    n_steps_ : int
        Steps made, including those of earlier fits that this one continued.
    n_component_evaluations_ : int
        Evaluations of a component on a row in this fit, without those of the start.
    n_start_evaluations_ : int
        Such evaluations in the soft k-means that a partition fit starts from.
    n_rows_seen_ : float
        Rows learnt from, also by `partial_fit` and by earlier fits that this one continued.
    start_seconds_ : float
        Time spent on the start; not part of the work time in `trace_`.
    proposal_ : str
        The proposal that was used; the name of the algorithm if it has no proposals.
    compile_seconds_ : float
        Time spent on loading or compiling kernels before the fit; 0 if they were loaded. Small
        problems need none: they run in NumPy.
    trace_ : structured array
        One record per evaluation: step, epoch, seconds, evaluations, log_likelihood,
        acceptance, live_components.

    Notes
    -----
    A row of weight zero is left out, by every algorithm. For "em", a row of weight n is the same as
    n equal rows. The stochastic algorithms maximise the same weighted likelihood on average, but n
    equal rows get n visits and count as n rows of a covariance; a row of weight n counts as one.

    References
    ----------
    M. Papež, T. Pevný, V. Šmídl: Fitting large mixture models using stochastic component
    selection, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-4, 1, (500, 2)), rng.normal(4, 1, (500, 2))])
    >>> mixture = GaussianMixture(n_components=2, random_state=0).fit(X)
    >>> np.sort(mixture.means_[:, 0]).round(0)
    array([-4.,  4.])
    """

    n_components: int | str = 1
    _: KW_ONLY
    covariance_type: str = "full"
    rank: int | str = "auto"
    axes: str = "auto"
    background: bool = True
    weights_init: ArrayLike | None = None
    means_init: ArrayLike | None = None
    precisions_init: ArrayLike | None = None
    fixed_components: tuple[ArrayLike, ArrayLike] | None = None

    _init_params = INIT_PARAMS
    _family_parameter = "covariance_type"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_choice("covariance_type", self.covariance_type, (*GAUSSIANS, LOW_RANK, "auto"))
        check_low_rank(self)
        check_number("reg_covar", self.reg_covar, 0.0)
        check_flag("background", self.background)

    def _fit(
        self,
        X: Any,
        sample_weight: Any,
        noise: Any = None,
        columns: Any = None,
        checkpoint: Any = None,
        **changes: Any,
    ) -> None:
        self._check_parameters()
        # A fit that continues keeps what the first one chose.
        continues = self.warm_start and self._fitted_description == self._description()
        if not (changes.pop("chosen", False) or continues):
            choose_covariances(self, X, sample_weight, columns)
        low_rank = self._description() == LOW_RANK
        if low_rank and noise is not None:
            raise ValueError(
                'noise is for other covariance types than "low_rank": use "full" or "diag".'
            )
        if self.fixed_components is None:
            super()._fit(X, sample_weight, noise, columns, checkpoint, **changes)
            return
        if low_rank:
            raise ValueError(
                'fixed_components is for other covariance types than "low_rank": use "full".'
            )
        others = {"noise": noise, "columns": columns, "checkpoint": checkpoint}
        others |= {"means_init": self.means_init, "weights_init": self.weights_init}
        given = [name for name, value in others.items() if value is not None]
        if given or is_large(X):
            wrong = given[0] if given else "rows that are not in memory"
            raise ValueError(f"fixed_components and {wrong} cannot be given together.")
        fit_around(self, X, sample_weight)

    def _warn_about(self, source: ArrayRows) -> None:
        variance = float(source.spread().max())
        if 0.0 < variance < self.reg_covar:
            warn_caller(
                f"reg_covar={self.reg_covar!r} exceeds the variance of every column of X "
                f"(largest: {variance:.3g}) and will hide its structure. "
                "Rescale X or lower reg_covar."
            )
        K, (n_rows, D) = self.n_components, source.data.shape
        wide = self.covariance_type == "full" and not isinstance(K, str) and D > _WIDE
        if wide and n_rows < int(K) * (D + 1) / 2:
            warn_caller(
                f"{K} full covariances of {D} columns have more numbers than X, which has "
                f'{n_rows} rows. covariance_type="low_rank" has fewer; "auto" compares both.'
            )

    def _start_is_given(self) -> bool:
        return super()._start_is_given() or self.means_init is not None

    def _limits(self) -> np.ndarray:
        # Parameters may have been set by hand, without a fit.
        fitted = hasattr(self, "n_features_in_")
        return np.zeros((1, self.n_features_in_ if fitted else self.means_.shape[1]))

    def _learn_columns(self, rows: np.ndarray) -> None:
        self._fitted_description = self._description()

    def _description(self) -> str:
        # "auto" is resolved before a fit.
        known = getattr(self, "covariance_type_", None) if self.covariance_type == "auto" else None
        return str(known or self.covariance_type)

    def _set_parameters(self, weights: np.ndarray, parameters: dict[str, np.ndarray]) -> None:
        self.weights_, self.means_ = weights, parameters["means"]
        if "loadings" in parameters:
            self.loadings_ = parameters["loadings"]
            self.noise_variances_ = parameters["noise_variances"]
            self.__dict__.pop("covariances_", None)
            return
        self.covariances_ = parameters["covariances"]
        for name in ("loadings_", "noise_variances_", "principal_axes_"):
            self.__dict__.pop(name, None)

    def _get_parameters(self) -> dict[str, np.ndarray]:
        if self._is_low_rank():
            names = ("means", "loadings", "noise_variances")
            known = {name: getattr(self, f"{name}_") for name in names}
            axes = getattr(self, "principal_axes_", None)
            return known if axes is None else known | {"axes": axes}
        return {"means": self.means_, "covariances": self.covariances_}

    def _given_start(self, family: Family, centre: np.ndarray) -> GivenStart:
        assert isinstance(family, Gaussian | LowRankGaussian)
        K, D = int(self.n_components), family.n_features
        means = weights = scatter = None
        if self.means_init is not None:
            means = check_array_parameter("means_init", self.means_init, (K, D)) - centre
        if self.weights_init is not None:
            weights = check_weights_init(self.weights_init, K)
        if self.precisions_init is not None:
            if isinstance(family, LowRankGaussian):
                raise ValueError(
                    'precisions_init is not for covariance_type="low_rank", which makes no '
                    "matrices of all columns. Give means_init and weights_init only."
                )
            name, shape = "precisions_init", family.shape(K)
            precisions = check_array_parameter(name, self.precisions_init, shape)
            check_positive_definite(name, precisions, family.name)
            parameters = {"means": np.zeros((K, D)), "covariances": family.invert(precisions)}
            scatter = family.moments_of(parameters, np.zeros(D)).scatter
        return GivenStart(means, weights, scatter)

    def _gaussian(self) -> Gaussian:
        check_is_fitted(self)
        family = self._fitted_family()
        if not isinstance(family, Gaussian):
            raise AttributeError(
                "precisions of low-rank covariances would be D x D matrices. Use covariance(k), "
                "loadings_ and noise_variances_, or score_samples for densities."
            )
        return family

    @property
    def precisions_(self) -> np.ndarray:
        """Inverses of the covariances."""
        family = self._gaussian()
        # Those of variances below 1e-308 are infinite.
        with np.errstate(over="ignore", invalid="ignore"):
            return family.invert(self.covariances_)

    @property
    def precisions_cholesky_(self) -> np.ndarray:
        """Factors of the precisions, in scikit-learn's shapes."""
        family = self._gaussian()
        packed = family.pack(self.covariances_)
        return family.unpack_factor(factorise(packed, family.n_features, 0.0)[0])

    def covariance(self, component: int) -> np.ndarray:
        """The covariance of one component, as a matrix.

        Parameters
        ----------
        component : int
            Its number, 0 to K - 1.

        Returns
        -------
        covariance : array of shape (D, D)

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> mixture = GaussianMixture(3, covariance_type="diag", random_state=0).fit(X)
        >>> mixture.covariance(1).shape
        (2, 2)
        """
        check_is_fitted(self)
        K, D = self.means_.shape
        check_integer("component", component, 0)
        if component >= K:
            raise ValueError(f"component must be below {K}, the number of them, got {component!r}.")
        fitted = self._fitted_family()
        if isinstance(fitted, LowRankGaussian):
            return fitted.covariance(self._get_parameters(), component)
        family = self._gaussian()
        packed = np.broadcast_to(family.pack(self.covariances_), (K, family.layout.n_products))
        chosen = packed[component]
        if family.products == "diagonal":
            return np.diag(chosen)
        return np.asarray(unpack_symmetric(chosen[None], D)[0])

    def to_sklearn(self) -> SklearnMixture:
        """The same mixture as a fitted `sklearn.mixture.GaussianMixture`.

        What reads that class works then: converters to ONNX, skops, ... Rows with missing values
        are refused by it.

        Returns
        -------
        mixture : sklearn.mixture.GaussianMixture

        Examples
        --------
        >>> import numpy as np
        >>> from pickmix import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> mixture = GaussianMixture(3, random_state=0).fit(X)
        >>> bool(np.allclose(mixture.to_sklearn().score_samples(X), mixture.score_samples(X)))
        True
        """
        family = self._gaussian()
        made = SklearnMixture(
            self.weights_.shape[0],
            covariance_type=family.name,
            tol=self.tol,
            reg_covar=self.reg_covar,
            max_iter=max(1, self.max_iter),
            n_init=self.n_init,
        )
        made.weights_ = self.weights_ / self.weights_.sum()
        made.means_, made.covariances_ = self.means_.copy(), self.covariances_.copy()
        made.precisions_cholesky_ = self.precisions_cholesky_
        made.precisions_ = self.precisions_
        made.n_features_in_ = family.n_features
        # A mixture whose parameters were set by hand has no fit to tell of.
        for name, unknown in (("converged_", True), ("n_iter_", 0), ("lower_bound_", -np.inf)):
            setattr(made, name, getattr(self, name, unknown))
        made.lower_bounds_ = list(getattr(self, "lower_bounds_", []))
        if hasattr(self, "feature_names_in_"):
            made.feature_names_in_ = self.feature_names_in_
        return made
