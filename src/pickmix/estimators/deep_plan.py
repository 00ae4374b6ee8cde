"""From a deep mixture's parameters to the parts of its fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.covariance import ledoit_wolf

from pickmix.estimators import validation
from pickmix.selection.partitions import RandomPartition
from pickmix.selection.proposals import (
    Proposal,
    TableForgettingProposal,
    TableProposal,
    UniformProposal,
)
from pickmix.selection.randomness import MOST_DRAWS
from pickmix.selection.schedules import resolve_annealing, resolve_rate, resolve_step_size

if TYPE_CHECKING:
    from pickmix.data.rows import Batches
    from pickmix.gradient.engine import Schedules
    from pickmix.gradient.network import Network
    from pickmix.gradient.partitions import Partitions
    from pickmix.gradient.proposals import TreeProposal
    from pickmix.gradient.state import Options

ALGORITHMS = ("mhsaem", "mcsaem", "em", "sgd")
PROPOSALS = ("uniform", "optimal", "table", "table-forgetting", "partition")
STARTS = ("auto", "data", "paper")
FRAMES = ("auto", "whiten", "columns")
# Components per block where none is said: deep ones cost too much for the blocks of Gaussians.
_BLOCK_SIZE = 4
# Beyond this many children of the root, weights come in closed form.
_MOST_GRADIENT_WEIGHTS = 1024
# Evaluations of components that a measurement of the log-likelihood may cost, and its least rows.
_PROBE_EVALUATIONS = 500_000
_FEWEST_PROBED = 100
# A direction in which the rows hardly differ is stretched to no more than a hundredfold.
_LEAST_VARIANCE = 1e-4


def check_parameters(estimator: Any) -> None:
    """Check what all deep mixtures share; the family checks its own."""
    check = validation
    check.check_choice("algorithm", estimator.algorithm, ALGORITHMS)
    if not isinstance(estimator.proposal, Proposal | RandomPartition):
        check.check_choice("proposal", estimator.proposal, PROPOSALS)
    if check.check_integer("n_samples", estimator.n_samples, 1) >= MOST_DRAWS:
        raise ValueError(f"n_samples must be below {MOST_DRAWS}, got {estimator.n_samples!r}.")
    if estimator.batch_size is not None:
        check.check_integer("batch_size", estimator.batch_size, 1)
    check.check_integer("max_steps", estimator.max_steps, 1)
    if estimator.max_time is not None:
        check.check_number("max_time", estimator.max_time, 0.0, strict=True)
    if estimator.gradient_clip is not None:
        check.check_number("gradient_clip", estimator.gradient_clip, 0.0, strict=True)
    check.check_choice("adam", estimator.adam, ("row", "dense"))
    check.check_choice(
        "weight_update", estimator.weight_update, ("auto", "gradient", "closed_form")
    )
    check.check_choice("init_params", estimator.init_params, STARTS)
    check.check_choice("dtype", estimator.dtype, ("float32", "float64"))
    for name in ("reuse_log_joint", "warm_start"):
        check.check_flag(name, getattr(estimator, name))
    if estimator.standardize is not False:
        check.check_choice("standardize", estimator.standardize, FRAMES)
    if estimator.validation_fraction is not None:
        check.check_number("validation_fraction", estimator.validation_fraction, 0.0)
        if estimator.validation_fraction >= 1.0:
            raise ValueError(
                "validation_fraction must be None or a number in [0, 1), "
                f"got {estimator.validation_fraction!r}."
            )
    if estimator.patience is not None:
        check.check_integer("patience", estimator.patience, 1)
    check.check_number("tol", estimator.tol, 0.0)
    check.resolve_evaluate_every(estimator.evaluate_every, 1)
    if not isinstance(estimator.verbose, bool):
        check.check_integer("verbose", estimator.verbose, 0)
    check.check_callbacks(estimator.callbacks)
    resolve_rate(estimator.learning_rate, estimator.max_steps)
    resolve_step_size(estimator.step_size, 2)
    if resolve_annealing(estimator.annealing, 2) is not None and estimator.algorithm == "sgd":
        raise ValueError(
            f"annealing must be None with algorithm='sgd', got {estimator.annealing!r}; "
            "algorithm='em' takes the same gradients at any temperature."
        )
    if estimator.weight_update == "closed_form" and estimator.algorithm == "sgd":
        raise ValueError(
            "weight_update must be 'auto' or 'gradient' with algorithm='sgd', "
            f"got {estimator.weight_update!r}."
        )
    if resolve_algorithm(estimator) == "partition":
        _check_partition(estimator)


def _check_partition(estimator: Any) -> None:
    if estimator.n_samples != 1:
        raise ValueError(
            "n_samples must be 1 with proposal='partition', which weighs all components of a "
            f"block, got {estimator.n_samples!r}. Take larger blocks: "
            "proposal=RandomPartition(block_size=...)."
        )
    if estimator.reuse_log_joint:
        raise ValueError(
            "reuse_log_joint must be False with proposal='partition', which evaluates all "
            "components of a block, got True."
        )
    if getattr(estimator.proposal, "relocate", False) is True:
        raise ValueError(
            "proposal must have relocate=False or 'auto' for a mixture that is fitted by "
            f"gradients: its components are not relocated, got {estimator.proposal!r}."
        )


def find_frame(X: np.ndarray, kind: str | bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Shift (D,), scale (D,) and whitening matrix (D, D) or None, for rows X (N, D).

    Whitening takes the inverse square root of the columns' correlations, shrunk as Ledoit and Wolf
    (2004) advise for the number of rows; of all ways to whiten, it moves columns the least.
    """
    n_features = X.shape[1]
    if kind is False:
        return np.zeros(n_features), np.ones(n_features), None
    with np.errstate(over="ignore", invalid="ignore"):
        rows = X.astype(np.float64)
        # From the first row: sums of far-off data would lose digits.
        center = rows[0] + (rows - rows[0]).mean(axis=0)
        scale = np.sqrt(np.mean((rows - center) ** 2, axis=0))
    if not np.isfinite(scale).all():
        raise ValueError(
            "X must have columns whose squares fit into float64, got values up to "
            f"{float(np.abs(X).max()):.3g}. Rescale it."
        )
    # A constant column, up to rounding, has no scale.
    constant = (scale <= 1e-12 * np.abs(center)) | (scale == 0.0)
    scale = np.where(constant, 1.0, scale)
    if kind == "columns" or n_features == 1 or X.shape[0] < 3:
        return center, scale, None
    correlations, _ = ledoit_wolf((rows - center) / scale, assume_centered=True)
    # A constant column stays as it is.
    correlations[constant, constant] = 1.0
    variances, axes = np.linalg.eigh(correlations)
    whitening = (axes / np.sqrt(np.maximum(variances, _LEAST_VARIANCE))) @ axes.T
    return center, scale, whitening


def resolve_algorithm(estimator: Any) -> str:
    """Name of the step: the optimal proposal is "mcsaem", and partitions have one of their own."""
    if estimator.algorithm != "mhsaem":
        return estimator.algorithm
    if isinstance(estimator.proposal, RandomPartition) or estimator.proposal == "partition":
        return "partition"
    return "mcsaem" if estimator.proposal == "optimal" else "mhsaem"


def name_of_proposal(estimator: Any) -> str:
    """What `proposal_` says."""
    algorithm = resolve_algorithm(estimator)
    if algorithm == "mhsaem":
        proposal = estimator.proposal
        return proposal if isinstance(proposal, str) else type(proposal).__name__
    return "partition" if algorithm == "partition" else "optimal"


def make_partitions(
    estimator: Any, network: Network, batches: Batches, seed: int
) -> Partitions | None:
    """Random partitions, for proposal="partition"."""
    from pickmix.gradient.partitions import Partitions

    if resolve_algorithm(estimator) != "partition":
        return None
    settings = estimator.proposal
    if not isinstance(settings, RandomPartition):
        settings = RandomPartition(block_size=_BLOCK_SIZE)
    return Partitions(network, settings, batches, seed)


def make_proposal(estimator: Any, n_rows: int, network: Network, seed: int) -> TreeProposal | None:
    """Proposal for trees, for "mhsaem"."""
    from pickmix.gradient.proposals import TreeProposal

    if resolve_algorithm(estimator) != "mhsaem":
        return None
    proposal = estimator.proposal
    if not isinstance(proposal, Proposal):
        named: dict[str, type[Any]] = {
            "uniform": UniformProposal,
            "table": TableProposal,
            "table-forgetting": TableForgettingProposal,
        }
        proposal = named[proposal]()
    return TreeProposal(
        proposal,
        n_rows,
        network.n_slots,
        network.n_children,
        estimator.n_samples,
        seed,
        np.dtype(estimator.dtype),
    )


def make_options(estimator: Any, network: Network, proposal: TreeProposal | None) -> Options:
    """What a step does."""
    from pickmix.gradient.state import Options

    algorithm = resolve_algorithm(estimator)
    closed_form = estimator.weight_update == "closed_form" or (
        estimator.weight_update == "auto"
        and algorithm != "sgd"
        and network.n_children > _MOST_GRADIENT_WEIGHTS
    )
    n_samples = estimator.n_samples if algorithm in ("mhsaem", "mcsaem") else 1
    propose_again = None
    if proposal is not None and not proposal.proposal.independent and n_samples > 1:
        propose_again = proposal.propose_again
    return Options(
        algorithm,
        n_samples,
        row_adam=estimator.adam == "row",
        closed_form_weights=closed_form,
        reuse_log_joint=estimator.reuse_log_joint and algorithm == "mhsaem",
        gradient_clip=estimator.gradient_clip,
        propose_again=propose_again,
    )


def make_schedules(estimator: Any, steps_per_pass: int, first_step: int) -> Schedules:
    """Learning rate, gamma and beta. Schedules with an end count the steps of this fit."""
    from pickmix.gradient.engine import Schedules

    rate = resolve_rate(estimator.learning_rate, estimator.max_steps)
    annealing = resolve_annealing(estimator.annealing, estimator.max_steps)
    return Schedules(
        lambda step: rate(step - first_step + 1),
        resolve_step_size(estimator.step_size, steps_per_pass),
        None if annealing is None else lambda step: annealing(step - first_step + 1),
    )


def choose_probe(
    n_rows: int, watched: np.ndarray | None, evaluations_per_row: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows on which the training log-likelihood is measured, and validation rows to watch.

    As many as can be afforded, the same in every fit.
    """
    affordable = max(_FEWEST_PROBED, _PROBE_EVALUATIONS // evaluations_per_row)
    generator = np.random.Generator(np.random.Philox(key=0))
    probe = np.sort(generator.choice(n_rows, min(n_rows, affordable), replace=False))
    if watched is not None and watched.shape[0] > 2 * affordable:
        watched = watched[generator.choice(watched.shape[0], 2 * affordable, replace=False)]
    return probe, watched


def check_memory(network: Network, dtype: str) -> None:
    """Refuse a model that cannot fit into memory before it is built."""
    # Parameters, two moments and the best parameters so far.
    needed = 4 * sum(rows * width for rows, width in network.shapes) * np.dtype(dtype).itemsize
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if needed > there:
            raise MemoryError(
                f"The model needs {needed / 1e9:.3g} GB for its {network.n_parameters:,} "
                f"parameters and their moments; this machine has {there / 1e9:.3g} GB. Take fewer "
                "components, children or layers."
            )
