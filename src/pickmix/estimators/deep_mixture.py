"""What FlowMixture, SumProductTransformNetwork and Mixture share: the fit."""

from __future__ import annotations

import copy
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils.validation import validate_data

from pickmix.data.rows import Batches
from pickmix.estimators import validation
from pickmix.estimators.deep_inference import DeepInference, require_jax
from pickmix.estimators.deep_plan import (
    check_memory,
    check_parameters,
    choose_probe,
    find_frame,
    make_options,
    make_partitions,
    make_proposal,
    make_schedules,
    name_of_proposal,
)
from pickmix.fitting import loop
from pickmix.fitting.progress import Progress
from pickmix.fitting.stopping import Limits, Outcome, Plateau

if TYPE_CHECKING:
    from pickmix.gradient.engine import GradientEngine
    from pickmix.gradient.network import Network
    from pickmix.gradient.start import Start

# Records of a fit that makes all its steps.
_RECORDS = 100


class DeepMixture(DeepInference, DensityMixin, BaseEstimator):
    """Base of the mixtures that are fitted by gradients.

    A row of data selects a component by its Metropolis-Hastings chain, and a step of Adam moves
    the parameters of the selected components only: its cost does not depend on how many there are.

    Parameters
    ----------
    algorithm : {"mhsaem", "mcsaem", "em", "sgd"}, default="mhsaem"
        "mhsaem" evaluates `n_samples` + 1 components per row, or a block of them. The others
        evaluate all: "mcsaem" draws from the exact posterior, "em" takes exact responsibilities,
        "sgd" follows the gradient of log p(x).
    proposal : {"uniform", "optimal", "table", "table-forgetting", "partition"}, Proposal or \
            RandomPartition, default="uniform"
        For "mhsaem": where a row's chain may go next. "optimal" is "mcsaem". "partition" evaluates
        a small random block of components (4, or `RandomPartition(block_size=...)`), draws the
        row's next one from the posterior within it and weighs the gradients of all by that.
    n_samples : int, default=1
        M, draws per visit of a row; 1 with "partition".
    reuse_log_joint : bool, default=False
        For "mhsaem": take the log-joint of a row's current component from its last visit.
    batch_size : int or None, default=100
        B, rows per step; None takes all.
    max_steps : int, default=20000
        T.
    max_time : float, default=None
        Seconds of work.
    learning_rate : float, "cosine" or callable, default=1e-3
        Adam's. "cosine" falls from 1e-3 to zero over `max_steps`; a callable is given t = 1, 2, ...
    adam : {"row", "dense"}, default="row"
        Whether moments move only with the rows that a step visits, or all of them. "em" and "sgd"
        visit all rows.
    weight_update : {"auto", "gradient", "closed_form"}, default="auto"
        Mixture weights by gradients of a softmax, or as a running average with `step_size`. "auto"
        is the former up to 1024 components. "sgd" knows gradients only.
    step_size : float, "paper", callable or "auto", default="auto"
        gamma_t of closed-form weights and of the table proposals.
    annealing : None, "anti" or callable, default=None
        Inverse temperature beta_t; not for "sgd".
    gradient_clip : float, default=None
        Largest norm of a step's gradient.
    init_params : {"auto", "data", "paper"}, default="auto"
        "data" places components by k-means and begins each chain at the nearest; "paper" does not
        look at the data. "auto" is "data", where the components can be placed.
    standardize : {"auto", "whiten", "columns"} or False, default="auto"
        What the model sees: rows shifted and mapped to covariance one ("whiten"; correlations then
        need not be learnt by every component from its own few rows), columns shifted and scaled to
        variance one, or the rows as they are. "auto" chooses one of the first two, by rows held out
        from k-means, for flows and networks with transforms; else it is "columns". Densities are
        those of the data as they came.
    validation_fraction : float or None, default=0.1
        Share of the rows that is watched and not learnt from; with fewer than 20 rows, none is.
        Watched rows count alike, whatever they weigh.
    patience : int or None, default=20
        End when so many evaluations in a row have not raised the validation log-likelihood by
        `tol` (the training one, without validation rows). None makes all steps.
    tol : float, default=1e-4
        Nats per row.
    evaluate_every : int, sequence of int or "auto", default="auto"
        Steps between evaluations, or the steps after which to evaluate; "auto" makes a hundred
        records of a whole fit.
    dtype : {"float32", "float64"}, default="float32"
        What the model computes in. "float64" does not touch JAX's global setting.
    random_state : int, RandomState or None, default=None
    warm_start : bool, default=False
        Go on from the last fit's parameters, chains (if the rows are as many) and step number.
        Adam's moments begin anew.
    verbose : int, default=0
    callbacks : callable or list of callables, default=()

    Attributes
    ----------
    weights_ : (K,) array
        Of the components, or of the root's children.
    tables_ : list of arrays
        Parameters of the components with the highest validation log-likelihood, or the last ones.
    center_, scale_ : (D,) arrays
        What `standardize` shifts and scales by.
    whitening_ : (D, D) array or None
        What it then multiplies rows with.
    outcome_ : str
        How the fit ended: "converged", "max_steps", "max_time", "callback", "interrupted" or
        "non_finite" (a step whose gradient was not finite; the last good model is kept).
    converged_, n_iter_, n_steps_, n_component_evaluations_, proposal_, start_seconds_,
    compile_seconds_, trace_
        As in GaussianMixture; `trace_` also has the column `validation`.
    lower_bound_ : float
        Last log-likelihood per row in `trace_`.
    best_validation_ : float
        Highest validation log-likelihood, the start's included; NaN without validation rows.
    """

    n_steps_: int
    _split_seed: int = 0

    def _check_family(self) -> None:
        """Check the parameters of the family."""

    def _frames(self) -> tuple[str, ...]:
        """What `standardize="auto"` may choose from."""
        return ("columns",)

    def fit(self, X, y=None, sample_weight=None, validation_data=None):
        """Fit the mixture.

        Parameters
        ----------
        X : array-like of shape (N, D)
        y : ignored
        sample_weight : array-like of shape (N,), default=None
            Non-negative weights. A zero removes the row.
        validation_data : array-like of shape (V, D), default=None
            Rows to watch instead of a share of X.

        Returns
        -------
        self
        """
        require_jax()
        self._check_family()
        check_parameters(self)
        random = validation.check_randomness(self.random_state)
        X, weights = validation.check_table(self, X, sample_weight)
        if validation_data is not None:
            validation_data = validate_data(
                self, validation_data, dtype=[np.float64, np.float32], reset=False
            )
        seed = int(random.randint(2**31 - 1)) * 2**31 + int(random.randint(2**31 - 1))
        contender: Any = copy.copy(self)
        contender._fit_once(X, weights, validation_data, seed)
        self.__dict__.update(contender.__dict__)
        validation.warn_about_outcome(self)
        return self

    def fit_predict(self, X, y=None, sample_weight=None):
        """Fit, and return the most probable component of each row, (N,)."""
        return self.fit(X, sample_weight=sample_weight).predict(X)

    # -- one fit --------------------------------------------------------------------------

    def _fit_once(
        self, X: np.ndarray, weights: np.ndarray | None, watched: np.ndarray | None, seed: int
    ) -> None:
        from pickmix.gradient.start import choose_start

        started = time.perf_counter()
        warm = self.warm_start and self._is_fitted_for(X.shape[1])
        network = self._network(X.shape[1])
        check_memory(network, self.dtype)
        # The coordinates that the model sees; float32 rows far from the origin lose nothing.
        rows = self._to_model(X) if warm else self._choose_frame(X, network.n_children, seed)
        if watched is None:
            # A fit that goes on must not learn from rows that were watched before.
            self._split_seed = self._split_seed if warm else seed
            rows, weights, watched_rows = self._split(rows, weights, self._split_seed)
        else:
            watched_rows = self._to_model(watched)
        if warm:
            start = self._warm_start(network, rows.shape[0], seed)
        else:
            kind = "paper" if self.init_params == "paper" else "data"
            start = choose_start(network, kind, rows, seed, self.dtype)
        first_step = 1 + (self.n_steps_ if warm else 0)
        passes_before: float = getattr(self, "_passes", 0.0) if warm else 0.0
        batches = Batches(rows.shape[0], min(self.batch_size or rows.shape[0], rows.shape[0]), seed)
        engine = self._engine(
            network, start, rows, weights, watched_rows, batches, seed, first_step
        )
        self.start_seconds_ = time.perf_counter() - started
        self.compile_seconds_ = engine.compile()
        # On few rows a start may be better than all that follows it.
        first_value = engine.validation()
        engine.remember()
        plateau = None
        if self.patience is not None:
            plateau = Plateau(self.tol, patience=self.patience)
        result = loop.run(
            engine,
            limits=Limits(self.max_steps, Outcome.MAX_STEPS, self.max_time),
            steps_per_pass=batches.n_batches,
            passes_before=passes_before,
            evaluate_every=validation.resolve_evaluate_every(
                self.evaluate_every, max(1, self.max_steps // _RECORDS)
            ),
            plateau=plateau,
            progress=Progress(self.max_steps, self.verbose),
            callbacks=validation.check_callbacks(self.callbacks),
            snapshot=lambda: self._fitted_copy(engine),
            remember=engine.remember,
            best_before=-math.inf if first_value is None else first_value,
            first_step=first_step,
        )
        self._set_parameters(*engine.best())
        self.trace_ = result.trace.table()
        self.outcome_ = str(result.outcome)
        self.converged_ = result.outcome == Outcome.CONVERGED
        self.n_steps_ = result.n_steps
        n_new_steps = result.n_steps - first_step + 1
        self.n_iter_ = max(1, -(-n_new_steps // batches.n_batches))
        self._passes = passes_before + n_new_steps / batches.n_batches
        self.n_component_evaluations_ = engine.counters.evaluations
        values = self.trace_["log_likelihood"]
        first = math.nan if first_value is None else first_value
        self.lower_bound_ = float(values[-1]) if values.size else math.nan
        self.best_validation_ = float(np.fmax.reduce(self.trace_["validation"], initial=first))
        self.proposal_ = name_of_proposal(self)
        self._chain = engine.chain()

    def _split(
        self, rows: np.ndarray, weights: np.ndarray | None, seed: int
    ) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """Set a share of the rows apart."""
        n_rows = rows.shape[0]
        n_watched = round((self.validation_fraction or 0.0) * n_rows)
        if n_watched == 0 or n_rows < 20:
            return rows, weights, None
        order = np.random.default_rng([seed, 2]).permutation(n_rows)
        watched, kept = np.sort(order[:n_watched]), np.sort(order[n_watched:])
        return rows[kept], None if weights is None else weights[kept], rows[watched]

    def _engine(
        self,
        network: Network,
        start: Start,
        rows: np.ndarray,
        weights: np.ndarray | None,
        watched: np.ndarray | None,
        batches: Batches,
        seed: int,
        first_step: int,
    ) -> GradientEngine:
        from pickmix.gradient.engine import GradientEngine

        proposal = make_proposal(self, rows.shape[0], network, seed)
        probe, watched = choose_probe(rows.shape[0], watched, network.n_evaluated_by_all)
        return GradientEngine(
            network,
            start.tables,
            start.log_weights,
            make_options(self, network, proposal),
            rows,
            weights,
            proposal,
            start.chain,
            batches,
            make_schedules(self, batches.n_batches, first_step),
            seed,
            probe,
            watched,
            self.dtype,
            log_volume=self._log_volume(),
            partitions=make_partitions(self, network, batches, seed),
        )

    def _warm_start(self, network: Network, n_rows: int, seed: int) -> Start:
        """Take the last fit's parameters, and its chains if they belong to as many rows."""
        from pickmix.gradient.start import Start, random_trees

        chain = self._chain
        if chain.shape[0] != n_rows:
            chain = random_trees(network, n_rows, seed)
        with np.errstate(divide="ignore"):
            log_weights = np.log(self.weights_)
        tables: Any = tuple(self.tables_)
        return Start(tables, log_weights, chain)

    def _choose_frame(self, X: np.ndarray, n_children: int, seed: int) -> np.ndarray:
        """Set the frame, and return the rows in it.

        "auto" takes the frame in which clusters explain rows that they have not seen better.
        """
        from pickmix.gradient.start import find_clusters

        kinds = self._frames() if self.standardize == "auto" else (self.standardize,)
        best = -math.inf
        chosen: Any = None
        for kind in kinds:
            self.center_, self.scale_, self.whitening_ = frame = find_frame(X, kind)
            score = 0.0
            if len(kinds) > 1:
                found = find_clusters(self._to_model(X), n_children, seed)
                score = found[1] + self._log_volume()
            if chosen is None or score > best:
                best, chosen = score, frame
        self.center_, self.scale_, self.whitening_ = chosen
        return self._to_model(X)

    def _is_fitted_for(self, n_features: int) -> bool:
        if not hasattr(self, "tables_") or self.center_.shape[0] != n_features:
            return False
        shapes = [(rows, width) for rows, width in self._network(n_features).shapes]
        return [table.shape for table in self.tables_] == shapes

    def _set_parameters(self, tables: tuple[np.ndarray, ...], log_weights: np.ndarray) -> None:
        self.tables_ = list(tables)
        self.weights_ = np.exp(log_weights)

    def _fitted_copy(self, engine: GradientEngine) -> Any:
        fitted = copy.copy(self)
        fitted._set_parameters(engine.parameters(), engine.log_weights())
        return fitted
