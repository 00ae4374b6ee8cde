"""One call of `fit` or `partial_fit` of a deep mixture: from rows to fitted parameters. Needs JAX.

A call finds a frame and a start, makes an engine and runs the one loop. A fit that chooses its
number of components does so for each candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pickmix.data.rows import fill
from pickmix.estimators.deep_gaussians import choose_gaussians, fit_gaussians
from pickmix.estimators.row_sources import memory
from pickmix.fitting import loop
from pickmix.fitting.checkpoint import Checkpoints, check_proposal, fingerprint_of
from pickmix.fitting.loop import Limits, LoopState, Outcome, Plateau, Progress
from pickmix.fitting.settings import check_callbacks
from pickmix.gradient.engine import GradientEngine, Moments, rises
from pickmix.gradient.network import Network
from pickmix.gradient.queries import Fitted
from pickmix.gradient.settings import Settings
from pickmix.gradient.start import (
    Clusters,
    Gaussians,
    Start,
    choose_start,
    find_clusters,
    gaussian_start,
)
from pickmix.model.frame import Frame, find_frame

# With fewer rows than this, there are no validation rows.
_FEWEST_SPLIT = 20


@dataclass(frozen=True)
class DeepFit:
    """Where a fit has ended, so that another may continue, and how it went."""

    frame: Frame
    tables: tuple[np.ndarray, ...]
    #: Of the root's children, (s,).
    weights: np.ndarray
    #: The tree of each row, (N, n_slots).
    chain: np.ndarray
    #: Steps and passes of all fits so far.
    n_steps: int = 0
    passes: float = 0.0
    #: Chose the validation rows, or is the seed of the stream.
    split_seed: int = 0
    #: Adam's, for a stream that continues.
    moments: Moments | None = None
    #: Passes of this fit, rounded up.
    n_passes: int = 0
    trace: np.ndarray = field(default_factory=lambda: np.empty(0))
    outcome: Outcome = Outcome.MAX_STEPS
    n_evaluations: int = 0
    best_validation: float = math.nan
    start_validation: float = math.nan
    #: Log-likelihoods of validation rows, (V,).
    validation_scores: np.ndarray | None = None
    start_seconds: float = 0.0
    compile_seconds: float = 0.0

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the state that another fit continues from."""
        arrays = {"weights": self.weights, "chain": self.chain}
        arrays |= {f"table {number}": table for number, table in enumerate(self.tables)}
        prints: dict[str, Any] = {name: fingerprint_of(array) for name, array in arrays.items()}
        return prints | {"n_steps": self.n_steps}

    def work_seconds(self) -> float:
        """Seconds of steps."""
        return float(self.trace["seconds"][-1]) if self.trace.size else 0.0

    def is_better_than(self, other: DeepFit) -> bool:
        """Whether it explains validation rows better by more than chance; larger fits use fewer."""
        if self.validation_scores is None or other.validation_scores is None:
            return False
        n_rows = min(self.validation_scores.shape[0], other.validation_scores.shape[0])
        return rises(self.validation_scores[:n_rows], other.validation_scores[:n_rows], True)


def split_rows(
    X: np.ndarray, weights: np.ndarray | None, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Set a share of the rows apart: rows, their weights, and validation rows."""
    n_rows = X.shape[0]
    n_validation = round(share * n_rows)
    if n_validation == 0 or n_rows < _FEWEST_SPLIT:
        return X, weights, None
    order = np.random.default_rng([seed, 2]).permutation(n_rows)
    chosen, kept = np.sort(order[:n_validation]), np.sort(order[n_validation:])
    return X[kept], None if weights is None else weights[kept], X[chosen]


@dataclass(frozen=True)
class DeepTraining:
    """The rows and settings of one call."""

    #: From the number of the root's children to a network.
    make_network: Callable[[int], Network]
    settings: Settings
    #: Rows to learn from (N, D), their weights (N,), and validation rows (V, D).
    X: np.ndarray
    weights: np.ndarray | None
    validation: np.ndarray | None
    seed: int
    split_seed: int
    #: A fit with tables of the same shapes, to continue from.
    former: DeepFit | None
    #: From the fit as it stands to what callbacks get.
    show: Callable[[DeepFit], Any]
    #: Whether the rows are a batch of a stream: nothing is kept of them, and Adam's moments are.
    is_stream: bool = False
    #: All rows and their weights, where those for validation are some of them.
    all_rows: tuple[np.ndarray, np.ndarray | None] | None = None

    @property
    def n_steps_before(self) -> int:
        """Steps of earlier fits and batches that this one continues."""
        return 0 if self.former is None else self.former.n_steps

    def fit(self, checkpoints: Checkpoints | None = None) -> DeepFit:
        """Fit a network; save the fit now and then, and resume from where an earlier call ended."""
        if self.former is not None:
            return self._fit_one(self.make_network(self.former.weights.shape[0]), None, checkpoints)
        if self.settings.n_children is None:
            fit = self._fit_best(checkpoints)
        else:
            fit = self._fit_one(self.make_network(self.settings.n_children), None, checkpoints)
        return self._with_all_rows(fit, checkpoints)

    def _with_all_rows(self, fit: DeepFit, checkpoints: Checkpoints | None) -> DeepFit:
        """Fit Gaussians to all rows, if a fit has kept its start: validation has done its work."""
        kept_start = fit.best_validation == fit.start_validation
        usable = self._from_gaussians and fit.outcome != Outcome.INTERRUPTED
        if self.all_rows is None or not (kept_start and usable):
            return fit
        folder = None if checkpoints is None else checkpoints.within("all-rows")
        end = None if folder is None else folder.read()
        if end is None:
            started, number = time.perf_counter(), self.settings.n_children
            form, background = self.make_network(1).gaussian_form, number is None
            which = *self.all_rows, number or "auto", form, fit.frame, self.settings, background
            gaussians = fit_gaussians(*which)
            network = self.make_network(number or gaussians.n_components)
            rows = fit.frame.to_model(self.all_rows[0])
            start = gaussian_start(network, gaussians, rows, self.seed, self.settings.dtype)
            end = {
                "tables": tuple(map(np.asarray, start.tables)),
                "weights": np.exp(start.log_weights),
                "chain": start.chain[:0],
                "start_seconds": fit.start_seconds + time.perf_counter() - started,
            }
            if folder is not None:
                folder.write(end)
        return replace(fit, **end)

    def _fit_best(self, checkpoints: Checkpoints | None) -> DeepFit:
        """Fit from several Gaussian mixtures; keep the fit that explains validation rows best."""
        started = time.perf_counter()
        search = None if checkpoints is None else checkpoints.read()
        if search is None:
            frame = find_frame(self.X, self.settings.frames[0])
            form = self.make_network(1).gaussian_form
            candidates = choose_gaussians(
                self.X, self.weights, self.validation, form, frame, self.settings
            )
            search = {
                "frame": (frame.center, frame.scale, frame.whitening),
                "candidates": [(each.weights, each.means, each.cholesky) for each in candidates],
                "seconds": time.perf_counter() - started,
            }
            if checkpoints is not None:
                checkpoints.write(search)
        frame = Frame(*search["frame"])
        candidates = [Gaussians(*arrays) for arrays in search["candidates"]]
        training = self
        if self.settings.max_time is not None:
            max_time = self.settings.max_time / len(candidates)
            training = replace(self, settings=replace(self.settings, max_time=max_time))
        fits: list[DeepFit] = []
        for gaussians in candidates:
            number = gaussians.n_components
            folder = None if checkpoints is None else checkpoints.within(str(number))
            network = self.make_network(number)
            fits.append(training._fit_one(network, (frame, gaussians), folder, *fits[:1]))
            if fits[-1].outcome in (Outcome.INTERRUPTED, Outcome.CALLBACK):
                break
        # Another number of components must be better by more than chance.
        best = fits[0]
        for fit in fits[1:]:
            best = fit if fit.is_better_than(best) else best
        return replace(
            best,
            n_evaluations=sum(fit.n_evaluations for fit in fits),
            # Trying other numbers of components is part of finding the start.
            start_seconds=search["seconds"]
            + sum(fit.start_seconds for fit in fits)
            + sum(fit.work_seconds() for fit in fits if fit is not best),
            compile_seconds=sum(fit.compile_seconds for fit in fits),
        )

    def _fit_one(
        self,
        network: Network,
        candidate: tuple[Frame, Gaussians] | None,
        checkpoints: Checkpoints | None,
        first: DeepFit | None = None,
    ) -> DeepFit:
        """Fit a network from one start, or resume from a checkpoint.

        It must come above the best of a `first` fit in about as many evaluations.
        """
        settings, former = self.settings, self.former
        started = time.perf_counter()
        check_memory(network, settings.dtype)
        kept = None if checkpoints is None else _resume(checkpoints)
        if kept is None:
            frame, start = self._start(network, candidate)
        else:
            frame, tables = Frame(*kept["frame"]), kept["engine"]["tables"]
            chain = np.zeros((self.X.shape[0], network.n_slots), np.int32)
            start = Start(tables, np.zeros(network.n_children), chain)
        engine = self._make_engine(network, frame, start)
        if checkpoints is not None and engine.proposal is not None:
            check_proposal(engine.proposal.proposal)
        start_seconds = time.perf_counter() - started
        resumed = None if kept is None else LoopState.of_content(kept["loop"])
        has_ended = resumed is not None and resumed.outcome is not None
        compile_seconds = 0.0 if has_ended else engine.compile()
        if kept is None:
            # On few rows a start may be better than all that follows it.
            first_value = engine.validation()
            if not self.is_stream:
                engine.remember()
        else:
            assert checkpoints is not None
            with checkpoints.about_damage():
                engine.restore(kept["engine"])
            first_value, start_seconds = kept["first_value"], kept["start_seconds"]
        best_before = -math.inf if first_value is None else first_value
        if first is not None:
            best_before = max(best_before, first.best_validation)
        plateau = None
        if settings.patience is not None:
            plateau = Plateau(settings.tol, patience=settings.patience, reference=best_before)
            if first is not None:
                plateau.waited = -1 - int(first.trace["validation"].argmax())
        first_step = self.n_steps_before + 1
        done = 0 if resumed is None else resumed.step - first_step + 1
        begun = {
            "frame": (frame.center, frame.scale, frame.whitening),
            "first_value": first_value,
            "start_seconds": start_seconds,
        }

        def save(state: LoopState, must: bool) -> None:
            if checkpoints is not None and (must or checkpoints.due()):
                now = {"engine": engine.content(), "loop": state.content()}
                checkpoints.write(begun | now)

        n_batches = engine.batches.n_batches
        passes_before = 0.0 if former is None else former.passes
        result = loop.run(
            engine,
            limits=Limits(settings.max_steps, Outcome.MAX_STEPS, settings.max_time),
            steps_per_pass=n_batches,
            passes_before=passes_before,
            evaluate_every=settings.evaluate_every,
            plateau=plateau,
            progress=Progress(0 if has_ended else settings.verbose, done, total=settings.max_steps),
            callbacks=check_callbacks(settings.callbacks),
            snapshot=lambda: self.show(_snapshot(frame, engine)),
            remember=engine.remember,
            best_before=best_before,
            first_step=first_step,
            save=None if checkpoints is None else save,
            resumed=resumed,
        )
        n_new_steps = result.n_steps - self.n_steps_before
        best = engine.best()
        end = DeepFit(
            frame,
            best.tables,
            np.exp(best.log_weights),
            engine.chain(),
            result.n_steps,
            passes_before + n_new_steps / n_batches,
            self.split_seed,
        )
        if self.is_stream:
            end = replace(end, chain=end.chain[:0], moments=engine.moments())
            if result.outcome == Outcome.NON_FINITE:
                # A batch that the model cannot learn from leaves it as it was.
                unchanged = DeepFit(
                    frame,
                    tuple(map(np.array, start.tables)),
                    np.exp(start.log_weights),
                    start.chain[:0],
                    split_seed=self.split_seed,
                )
                end = former or unchanged
        n_drawn = 0
        if self.is_stream and former is not None and self._draws_chain:
            n_drawn = self.X.shape[0] * network.n_evaluated_by_all
        return replace(
            end,
            n_passes=max(1, -(-n_new_steps // n_batches)),
            trace=result.trace,
            outcome=result.outcome,
            n_evaluations=engine.counters.evaluations + n_drawn,
            best_validation=math.nan if best.scores is None else float(best.scores.mean()),
            start_validation=math.nan if first_value is None else first_value,
            validation_scores=best.scores,
            start_seconds=start_seconds,
            compile_seconds=compile_seconds,
        )

    @property
    def _from_gaussians(self) -> bool:
        """Whether the start is a Gaussian mixture, and not an earlier fit."""
        return self.former is None and self.settings.init_params == "gaussian"

    @property
    def _draws_chain(self) -> bool:
        """Whether the chains of a stream's rows matter to its steps."""
        return self.settings.algorithm not in ("em", "sgd")

    @property
    def _step_seed(self) -> int:
        """The seed of steps. Steps of a batch are numbered from 1, so each batch has its own."""
        if not self.is_stream:
            return self.seed
        sequence = np.random.SeedSequence([self.split_seed, self.n_steps_before])
        return int(sequence.generate_state(1, np.uint64)[0]) >> 2

    def _make_engine(self, network: Network, frame: Frame, start: Start) -> GradientEngine:
        rows = frame.to_model(self.X)
        validation = None if self.validation is None else frame.to_model(self.validation)
        log_volume: float | np.ndarray = frame.log_volume()
        if np.isnan(rows).any() or (validation is not None and np.isnan(validation).any()):
            log_volume = frame.log_volume_by_column()
        engine = GradientEngine(
            network,
            start,
            self.settings,
            rows,
            self.weights,
            validation,
            self._step_seed,
            log_volume,
            steps_before=self.n_steps_before if self.is_stream else None,
            from_gaussians=self._from_gaussians,
        )
        if self.is_stream and self.former is not None and self.former.moments is not None:
            engine.set_moments(self.former.moments)
        return engine

    def _start(
        self, network: Network, candidate: tuple[Frame, Gaussians] | None
    ) -> tuple[Frame, Start]:
        """Find the frame and the start."""
        settings, seed = self.settings, self.seed
        if self.former is not None:
            return self.former.frame, self._continued(network, self.former)
        if settings.init_params == "gaussian":
            if candidate is None:
                frame = find_frame(self.X, settings.frames[0])
                kind = network.n_children, network.gaussian_form
                gaussians = fit_gaussians(self.X, self.weights, *kind, frame, settings)
            else:
                frame, gaussians = candidate
            rows = frame.to_model(self.X)
            return frame, gaussian_start(network, gaussians, rows, seed, settings.dtype)
        frame, rows, clusters = self._choose_frame(network)
        return frame, choose_start(network, clusters, rows, seed, settings.dtype)

    def _choose_frame(self, network: Network) -> tuple[Frame, np.ndarray, Clusters | None]:
        """Choose the frame; return it, the rows in it, and their clusters if the start needs them.

        Among several frames, it is the one in which clusters explain held-out rows best.
        """
        kinds = self.settings.frames
        searches = len(kinds) > 1 or (self.settings.init_params != "paper" and network.places)
        choices: list[tuple[float, Frame, np.ndarray, Clusters | None]] = []
        for kind in kinds:
            frame = find_frame(self.X, kind)
            rows = frame.to_model(self.X)
            if np.isnan(rows).any():
                # Distances need all columns. Only the start sees what is filled in.
                rows = fill(rows)
            clusters, score = None, 0.0
            if searches:
                clusters, score = find_clusters(rows, network.n_children, self.seed)
            choices.append((score + frame.log_volume(), frame, rows, clusters))
        return max(choices, key=lambda choice: choice[0])[1:]

    def _continued(self, network: Network, former: DeepFit) -> Start:
        """Start at the parameters of an earlier fit.

        A fit to as many rows takes its chains too; else they are drawn from the posterior.
        """
        with np.errstate(divide="ignore"):
            log_weights = np.log(former.weights)
        chain, n_rows = former.chain, self.X.shape[0]
        if self.is_stream and not self._draws_chain:
            chain = np.zeros((n_rows, network.n_slots), np.int32)
        elif self.is_stream or chain.shape[0] != n_rows:
            rows = former.frame.to_model(self.X)
            fitted = Fitted(network, former.tables, log_weights, self.settings.dtype)
            chain = fitted.draw_chain(rows, self._step_seed)
        return Start(former.tables, log_weights, chain)


def _snapshot(frame: Frame, engine: GradientEngine) -> DeepFit:
    return DeepFit(frame, engine.parameters(), np.exp(engine.log_weights()), np.empty((0, 0)))


def _resume(checkpoints: Checkpoints) -> dict[str, Any] | None:
    """Read where an earlier fit of the same call has ended, if there is one; print that."""
    kept = checkpoints.read()
    if kept is not None:
        with checkpoints.about_damage():
            checkpoints.say_resumed(LoopState.of_content(kept["loop"]))
    return kept


def check_memory(network: Network, dtype: str) -> None:
    """Refuse a model that cannot fit into memory before it is built."""
    # Parameters, two moments, the first parameters and the best so far.
    n_numbers = sum(rows * width for rows, width in network.shapes)
    needed = 5 * n_numbers * np.dtype(dtype).itemsize
    if needed > memory():
        raise MemoryError(
            f"The model needs {needed / 1e9:.3g} GB for its {network.n_parameters:,} "
            f"parameters and their moments; this machine has {memory() / 1e9:.3g} GB. Take fewer "
            "components, children or layers."
        )
