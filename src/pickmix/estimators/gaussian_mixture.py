"""The estimator that users import."""

from __future__ import annotations

import copy
import time
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin

from pickmix.closed_form.engine import ClosedFormEngine
from pickmix.closed_form.mixture import PRIOR_COUNT, GaussianMixtureState
from pickmix.closed_form.partition_engine import PartitionEngine
from pickmix.closed_form.structures import STRUCTURES
from pickmix.data.rows import ArrayRows, Batches
from pickmix.estimators import validation
from pickmix.estimators.compilation import compile_kernels
from pickmix.estimators.inference import GaussianInference
from pickmix.estimators.online import OnlineFitting
from pickmix.estimators.plan import (
    ALGORITHMS,
    Sizes,
    has_enough_rows,
    make_monitor,
    make_rule,
    partition_settings,
    partition_step_size,
    relocates,
    resolve_batch_size,
    resolve_n_samples,
    resolve_proposal,
)
from pickmix.estimators.starts import choose_start, is_warm
from pickmix.fitting import loop
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Outcome
from pickmix.selection.rules import PartitionGibbs
from pickmix.selection.schedules import ConstantStep, Schedule, resolve_annealing, resolve_step_size
from pickmix.selection.truncated import SearchSet
from pickmix.threads import Threads, resolve_n_jobs

INIT_PARAMS = ("auto", "k-means++", "random_from_data", "paper")


class GaussianMixture(OnlineFitting, GaussianInference, DensityMixin, BaseEstimator):
    """Gaussian mixture fitted by visiting only a few of its components per row.

    p(x) = sum_k weights_[k] N(x; means_[k], covariances_[k]), fitted by stochastic-approximation
    EM whose E-step is a Metropolis-Hastings chain over each row's component (Papež, Pevný and
    Šmídl 2022), or by any of the algorithms that paper compares.

    Parameters
    ----------
    n_components : int, default=1
        K.
    covariance_type : {"full", "tied", "diag", "spherical"}, default="full"
    algorithm : {"em", "saem", "ssaem", "tsaem", "mcsaem", "mhsaem"}, default="mhsaem"
        "em" evaluates all components on all rows and gives what scikit-learn gives. The others
        take minibatches; "tsaem" and "mhsaem" also evaluate only a few components per row.
    proposal : str, RandomPartition, Proposal or SearchSet, default="auto"
        For "mhsaem": where a row's chain may go next. "partition" (or a `pickmix.RandomPartition`)
        draws from the posterior within a random block of neighbouring components, at a cost that
        does not depend on K; "auto" is that. "uniform", "optimal", "table", "table-forgetting" and
        instances of `pickmix.Proposal` are proposed and accepted or not, as in the paper.
        `proposal_` tells which was taken. For "tsaem": a `pickmix.SearchSet`, or "auto".
    n_samples : int or "auto", default="auto"
        M: draws per visit, components kept per row for "ssaem" and "tsaem", or partitions per
        visit. "auto" is 1 for partitions, 3 for "tsaem" and 2 for the others.
    reuse_log_joint : bool, default=False
        For "mhsaem" with a proposal that may be rejected: take the log-joint of a row's current
        component from its last visit, at the parameters of then, instead of evaluating it again.
    batch_size : int or "auto", default="auto"
        B, rows per step. For partitions "auto" takes all rows, up to 500 per component if that is
        more than 200,000; else 4 per component.
    step_size : float, "paper", callable or "auto", default="auto"
        gamma_t: a constant, the paper's two phases (1 for 50 steps, then 0.05), any function of
        t = 1, 2, ... For partitions "auto" is 1 until the log-likelihood has stopped rising and
        averages over the last steps; else it averages over the passes made.
    annealing : None, "anti" or callable, default=None
        Inverse temperature beta_t: 1, the paper's anti-annealing over all steps, or any function
        of t.
    max_iter : int, default=100
        Passes over the data.
    max_steps : int, default=None
        Exact number of steps; wins over `max_iter`, and `tol` is not used.
    max_time : float, default=None
        Seconds of work, of all starts together.
    tol : float, default=1e-3
        The fit ends when the log-likelihood per row rises by less than this: per iteration for
        "em", by less than twice this over five steps for partitions, else smoothed and over about
        five passes. Not used with `max_steps` or `annealing`.
    evaluate_every : int, sequence of int or "auto", default="auto"
        Steps between evaluations of the log-likelihood, or the steps after which to evaluate it;
        "auto" lets them cost little beside the work. `tol` counts in evaluations.
    reg_covar : float, default=1e-6
        Added to the diagonal of every covariance.
    n_init : int, default=1
        Starts; the fit with the highest log-likelihood is kept.
    init_params : {"auto", "k-means++", "random_from_data", "paper"}, default="auto"
        "k-means++" runs on a subsample; "paper" draws means from the unit cube, with unit
        covariances. "auto" spreads the components of a partition fit over the rows (k-means++,
        within cells if there are thousands, then a soft k-means through the same blocks) and moves
        those that are hardly needed early in the fit; for the other fits it is "k-means++" up to
        3000 components and random rows beyond.
    weights_init, means_init, precisions_init : array-like, default=None
        Start parameters, in scikit-learn's shapes.
    random_state : int, RandomState or None, default=None
    n_jobs : int or None, default=None
        Threads at most; None means as many as there are cores. The result does not depend on it.
    warm_start : bool, default=False
        Go on from the last fit's parameters, effective counts, chain states and step number.
        Proposal tables and search sets are learnt anew.
    verbose : int, default=0
        1 shows a progress bar, 2 a line per evaluation.
    callbacks : callable or list of callables, default=()
        Called with a `FitInfo` after each evaluation; a true return value ends the fit.

    Attributes
    ----------
    weights_ : (K,) array
    means_ : (K, D) array
    covariances_, precisions_, precisions_cholesky_ : arrays
        In scikit-learn's shapes.
    converged_ : bool
    outcome_ : str
        How the fit ended: "converged", "max_iter", "max_steps", "max_time", "callback",
        "interrupted", "singular_covariance" or "non_finite".
    lower_bound_ : float
        Last log-likelihood per row in `trace_`.
    n_iter_ : int
        Passes made in this fit, the last one perhaps in part.
    n_steps_ : int
        Steps made, those of the fits that this one went on from included.
    n_component_evaluations_ : int
        Evaluations of a component on a row in this fit, those of the start not counted.
    n_start_evaluations_ : int
        Those of the soft k-means that a partition fit starts from.
    n_rows_seen_ : float
        Rows learnt from, by `partial_fit` and fits that it went on from too.
    start_seconds_ : float
        Time spent on the start; not part of the work time in `trace_`.
    proposal_ : str
        What `proposal="auto"` stood for.
    compile_seconds_ : float
        Time spent on loading or compiling kernels before the fit; 0 if they were there.
    trace_ : structured array
        One record per evaluation: step, epoch, seconds, evaluations, log_likelihood,
        acceptance, live_components.

    Notes
    -----
    A row of weight zero is a row removed, for every algorithm. A row of weight n is n equal rows
    for "em". The stochastic algorithms pursue the same weighted likelihood on average, but n equal
    rows are n visits and count as n rows behind a covariance, a row of weight n as one.

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

    n_steps_: int

    def __init__(
        self,
        n_components=1,
        *,
        covariance_type="full",
        algorithm="mhsaem",
        proposal="auto",
        n_samples="auto",
        reuse_log_joint=False,
        batch_size="auto",
        step_size="auto",
        annealing=None,
        max_iter=100,
        max_steps=None,
        max_time=None,
        tol=1e-3,
        evaluate_every="auto",
        reg_covar=1e-6,
        n_init=1,
        init_params="auto",
        weights_init=None,
        means_init=None,
        precisions_init=None,
        random_state=None,
        n_jobs=None,
        warm_start=False,
        verbose=0,
        callbacks=(),
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.algorithm = algorithm
        self.proposal = proposal
        self.n_samples = n_samples
        self.reuse_log_joint = reuse_log_joint
        self.batch_size = batch_size
        self.step_size = step_size
        self.annealing = annealing
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.max_time = max_time
        self.tol = tol
        self.evaluate_every = evaluate_every
        self.reg_covar = reg_covar
        self.n_init = n_init
        self.init_params = init_params
        self.weights_init = weights_init
        self.means_init = means_init
        self.precisions_init = precisions_init
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.verbose = verbose
        self.callbacks = callbacks

    def fit(self, X, y=None, sample_weight=None):
        """Fit the mixture.

        Parameters
        ----------
        X : array-like of shape (N, D), float32 or float64
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row.

        Returns
        -------
        self
        """
        self._check_parameters()
        random = validation.check_randomness(self.random_state)
        source = validation.check_rows(self, X, sample_weight)
        # A fit that goes on from the last one has one start only, as in scikit-learn.
        n_starts = 1 if is_warm(self, source.n_features) else self.n_init
        seeds = random.randint(2**31 - 1, size=(n_starts, 2))
        self.compile_seconds_ = compile_kernels(self, source)
        threads = Threads(resolve_n_jobs(self.n_jobs))
        chosen: Any = None
        work = 0.0
        try:
            best = -np.inf
            for first, second in seeds:
                contender: Any = copy.copy(self)
                if self.max_time is not None:
                    contender.max_time = max(1e-9, self.max_time - work)
                contender._fit_once(source, int(first) * (2**31) + int(second), threads)
                contender.max_time = self.max_time
                work += contender.trace_["seconds"][-1:].sum()
                if contender.lower_bound_ > best or not np.isfinite(best):
                    best = contender.lower_bound_
                    chosen = contender
                if contender.outcome_ == Outcome.INTERRUPTED:
                    # Starts that nobody has seen may be better, whichever was the best so far.
                    chosen.outcome_, chosen.converged_ = contender.outcome_, False
                    break
                if contender.outcome_ == Outcome.MAX_TIME:
                    break
        except KeyboardInterrupt:
            # Between two starts: what the first ones found is there.
            if chosen is None:
                raise
            chosen.outcome_, chosen.converged_ = str(Outcome.INTERRUPTED), False
        finally:
            threads.close()
        # A stream that was under way ends here.
        self.__dict__.pop("_online", None)
        self.__dict__.update(chosen.__dict__)
        validation.warn_about_outcome(self)
        return self

    def fit_predict(self, X, y=None, sample_weight=None):
        """Fit, and return the most probable component of each row, (N,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    def _check_parameters(self) -> None:
        check = validation
        check.check_integer("n_components", self.n_components, 1)
        check.check_choice("covariance_type", self.covariance_type, tuple(STRUCTURES))
        check.check_choice("algorithm", self.algorithm, ALGORITHMS)
        check.check_choice("init_params", self.init_params, INIT_PARAMS)
        if self.algorithm != "tsaem" or not isinstance(self.proposal, SearchSet):
            resolve_proposal(self.proposal)
        resolve_n_samples(self.n_samples, self.algorithm, self.proposal)
        check.check_flag("reuse_log_joint", self.reuse_log_joint)
        # EM takes all rows whatever batch_size says, but a mistake in it is one all the same.
        resolve_batch_size(self.batch_size, "mhsaem", Sizes(1, 1, self.n_components), True)
        check.check_integer("max_iter", self.max_iter, 1)
        check.check_integer("n_init", self.n_init, 1)
        if self.max_steps is not None:
            check.check_integer("max_steps", self.max_steps, 1)
        if self.max_time is not None:
            check.check_number("max_time", self.max_time, 0.0, strict=True)
        check.check_n_jobs(self.n_jobs)
        check.check_flag("warm_start", self.warm_start)
        if not isinstance(self.verbose, bool):
            check.check_integer("verbose", self.verbose, 0)
        check.check_number("tol", self.tol, 0.0)
        check.resolve_evaluate_every(self.evaluate_every, 1)
        check.check_number("reg_covar", self.reg_covar, 0.0)
        check.check_callbacks(self.callbacks)
        resolve_step_size(self.step_size, 2)
        resolve_annealing(self.annealing, 2)

    def _fit_once(self, source: ArrayRows, seed: int, threads: Threads) -> None:
        started = time.perf_counter()
        sizes = Sizes(source.n_rows, source.n_features, self.n_components)
        structure = STRUCTURES[self.covariance_type](sizes.n_features)
        exact = self.algorithm == "em"
        settings = partition_settings(self.algorithm, self.proposal)
        n_samples = resolve_n_samples(self.n_samples, self.algorithm, self.proposal)
        batch_size = resolve_batch_size(
            self.batch_size, self.algorithm, sizes, settings is not None
        )
        batches = Batches(sizes.n_rows, batch_size, seed)
        steps_per_pass = batches.n_batches
        n_steps = self.max_steps or self.max_iter * steps_per_pass
        start = choose_start(self, source, structure, seed, threads)
        warm = is_warm(self, sizes.n_features)
        first_step = 1 + (self.n_steps_ if warm else 0)
        passes_before: float = getattr(self, "_passes", 0.0) if warm else 0.0
        self.start_seconds_ = time.perf_counter() - started
        self.n_start_evaluations_ = start.evaluations
        state = GaussianMixtureState(
            structure,
            start.weights,
            start.means,
            start.covariances,
            self.reg_covar,
            # A component that batches miss keeps a weight at which it can still be selected.
            weight_floor=1e-17 if exact else 1e-4 / sizes.n_components,
            effective_counts=start.counts,
            least_count=0.0 if exact else sizes.n_features + 1.0,
            threads=threads,
            prior_count=0.0 if settings is None else PRIOR_COUNT,
            n_rows=sizes.n_rows,
        )
        rule = make_rule(
            self.algorithm, self.proposal, n_samples, self.reuse_log_joint, start.means
        )
        rule.start(start.chain, sizes.n_components)
        partition_step = partition_step_size(self.step_size, batches, sizes)
        monitor = make_monitor(
            rule,
            self.algorithm,
            sizes,
            steps_per_pass,
            n_samples + 1,
            self.max_iter,
            self.max_steps,
            self.max_time,
            self.tol,
            self.annealing is not None,
            compares=self.n_init > 1,
            replaces=settings is not None and partition_step is None,
        )
        probe = None
        if monitor.n_probe is not None:
            # The same rows for every start, so that their log-likelihoods can be compared.
            generator = np.random.Generator(np.random.Philox(key=0))
            probe = np.sort(generator.choice(sizes.n_rows, monitor.n_probe, replace=False))
        annealing = resolve_annealing(self.annealing, n_steps)
        engine: ClosedFormEngine
        if isinstance(rule, PartitionGibbs):
            engine = PartitionEngine(
                state,
                source,
                rule,
                batches,
                partition_step,
                annealing,
                seed,
                probe,
                first_step,
                last_step=first_step - 1 + n_steps,
                # Splits by chance outweigh real ones on too few rows.
                relocates=relocates(self, rule.settings, warm) and has_enough_rows(batches, sizes),
            )
        else:
            step_size: Schedule = ConstantStep(1.0)
            if not exact:
                step_size = resolve_step_size(self.step_size, steps_per_pass)
            engine = ClosedFormEngine(
                state, source, rule, batches, step_size, annealing, seed, probe, first_step
            )
        every = validation.resolve_evaluate_every(self.evaluate_every, monitor.evaluate_every)
        result = loop.run(
            engine,
            limits=monitor.limits,
            steps_per_pass=steps_per_pass,
            passes_before=passes_before,
            evaluate_every=every,
            plateau=monitor.plateau,
            progress=Progress(monitor.limits.last_step, self.verbose),
            callbacks=validation.check_callbacks(self.callbacks),
            snapshot=lambda: self._fitted_copy(state, source),
            first_step=first_step,
        )
        self._set_parameters(state, source)
        self.trace_ = result.trace.table()
        self.outcome_ = str(result.outcome)
        self.converged_ = result.outcome == Outcome.CONVERGED
        self.n_steps_ = result.n_steps
        n_new_steps = result.n_steps - first_step + 1
        self.n_iter_ = max(1, -(-n_new_steps // steps_per_pass))
        self._passes = passes_before + n_new_steps / steps_per_pass
        self._fitted_structure = structure.name
        self._effective_counts = state.effective_counts()
        seen = float(getattr(self, "n_rows_seen_", 0.0)) if warm else 0.0
        self.n_rows_seen_ = seen + sizes.n_rows
        self.n_component_evaluations_ = engine.counters.evaluations
        values = self.trace_["log_likelihood"]
        self.lower_bound_ = float(values[-1]) if values.size else float("nan")
        resolved = resolve_proposal(self.proposal if self.algorithm == "mhsaem" else "uniform")
        self.proposal_ = resolved if isinstance(resolved, str) else type(resolved).__name__
        self._chain = start.chain

    def _set_parameters(self, state: GaussianMixtureState, source: ArrayRows) -> None:
        self.weights_ = state.weights
        self.means_ = state.model.mean + source.center
        self.covariances_ = state.structure.unpack(state.covariances_in_use())

    def _fitted_copy(self, state: GaussianMixtureState, source: ArrayRows) -> Any:
        fitted = copy.copy(self)
        fitted._set_parameters(state, source)
        return fitted
