"""Mixtures of any closed-form family: counts, categories, and groups of columns."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np

from pickmix.checks import check_number
from pickmix.estimators.online import OnlineFitting
from pickmix.families.registry import Description


def check_dependence(dependence: object) -> None:
    if dependence is not None and dependence != "tree":
        raise ValueError(f"dependence must be 'tree' or None, got {dependence!r}.")


@dataclass(eq=False, repr=False)
class FamilyMixture(OnlineFitting):
    """Mixture of counts, categories, Gaussians, t's or groups, fitted by a few visits per row.

    ``p(x) = sum_k weights_[k] p(x; parameters_ of k)``. The fit is that of `GaussianMixture`: each
    row remembers one component and compares it with a block of others, so the cost of a visit does
    not depend on the number of components.

    Parameters
    ----------
    family : str or list of (str, list of int), default="diag"
        "full", "tied", "diag", "spherical" or "low_rank" (Gaussians), "student_t" (heavy tails, of
        all columns together), "poisson" (counts), "categorical" (levels 0, 1, 2, ...), or groups
        of columns that are independent given the component, as
        ``[("full", [0, 1, 2]), ("categorical", [3]), ("poisson", [4, 5])]``. A group of low rank
        is the first, with counts and categories as the others.
    n_components : int or "auto", default=1
        K, the number of components; "auto" chooses it, as in `GaussianMixture`.
    max_components : int, default=None
        Most components that "auto" may choose.
    dependence : {"tree", None}, default=None
        Dependence among the categories of a group inside components. With "tree" each column may
        depend on one other, its parent, as a mixture of few components finds; `column_parents_`
        names them. With None they are independent given the component.
    algorithm, proposal, n_samples, reuse_log_joint, batch_size, step_size, annealing, max_iter, \
    max_steps, max_time, tol, evaluate_every, n_init, random_state, n_jobs, warm_start, verbose, \
    callbacks, checkpoint, checkpoint_every
        As in `GaussianMixture`.
    reg_covar : float or array-like of shape (D,), default=1e-6
        Added to the diagonal of covariances, for groups that have them: one number, or one per
        column. For columns of rounded values, step^2 / 12 or more is good. Spherical groups use the
        mean over their columns.
    init_params : {"auto", "k-means++", "random_from_data"}, default="auto"
        As in `GaussianMixture`.

    Attributes
    ----------
    weights_ : (K,) array
    parameters_ : dict of arrays
        Parameters of the family: "means" and "covariances", "means", "loadings" and
        "noise_variances", "means", "scales" (matrices) and "degrees_of_freedom", "rates", or
        "probabilities" of all levels, one column after another;
        for groups "full0_means", "categorical1_probabilities", ...
    column_parents_ : (D,) array
        The column that each depends on given the component, -1 if there is none. Only with
        `dependence`; parameters then have "conditionals" too: probabilities of all levels given
        each level of the parent, one column after another.
    column_limits_ : (D,) array
        Largest value of each column, which gives the number of levels.
    converged_, outcome_, lower_bound_, lower_bounds_, n_iter_, n_steps_, trace_, \
    n_component_evaluations_, n_start_evaluations_, n_rows_seen_, start_seconds_, \
    compile_seconds_, proposal_
        As in `GaussianMixture`.

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import FamilyMixture
    >>> rng = np.random.default_rng(0)
    >>> counts = np.concatenate([rng.poisson(2.0, (300, 3)), rng.poisson(20.0, (300, 3))])
    >>> mixture = FamilyMixture("poisson", 2, random_state=0).fit(counts)
    >>> np.sort(mixture.parameters_["rates"][:, 0]).round(0)
    array([ 2., 20.])
    """

    family: Description = "diag"
    n_components: int | str = 1
    _: KW_ONLY
    dependence: str | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_dependence(self.dependence)
        if np.ndim(self.reg_covar) == 0:
            check_number("reg_covar", self.reg_covar, 0.0)
            return
        try:
            floors = np.asarray(self.reg_covar, dtype=np.float64)
            sound = floors.ndim == 1 and bool((np.isfinite(floors) & (floors >= 0.0)).all())
        except (TypeError, ValueError):
            sound = False
        if not sound:
            raise ValueError(
                "reg_covar must be a number >= 0.0, or one per column, finite and not negative, "
                f"got {self.reg_covar!r}."
            )

    def _floors(self, n_columns: int) -> float | np.ndarray:
        floors = np.asarray(self.reg_covar, dtype=np.float64)
        if floors.ndim and floors.shape[0] != n_columns:
            raise ValueError(
                f"reg_covar must be a number, or one for each of the {n_columns} columns of X, got "
                f"shape {floors.shape}."
            )
        return floors if floors.ndim else float(floors)
