"""Small problems compile nothing: selection by arrays does not even import Numba."""

import subprocess
import sys
from pathlib import Path

import pickmix.selection

PROGRAM = """
import sys, types
import numpy as np

# The package without what it imports for users.
package = types.ModuleType("pickmix")
package.__path__ = [sys.argv[1]]
sys.modules["pickmix"] = package

from pickmix.kernels import numpy_kernels
from pickmix.selection.partitions import draw_partition
from pickmix.selection.proposals import TableForgettingProposal, TableProposal, UniformProposal
from pickmix.selection.randomness import StepRandomness
from pickmix.closed_form.rules import (
    ExactPosterior, MetropolisHastings, PosteriorDraws, TopComponents, TruncatedSearch,
)
from pickmix.selection.partitions import SearchSet

n_rows, n_components = 30, 6
table = np.random.default_rng(0).normal(size=(n_rows, n_components))


class Evaluator:
    n_components, backend = n_components, numpy_kernels

    def log_joint(self, candidates):
        return np.where(candidates >= 0, table[np.arange(n_rows)[:, None], candidates], -np.inf)

    def log_joint_all(self):
        return table.T.copy()

evaluate = Evaluator()
guesses = (np.arange(n_components)[:, None] + np.arange(3)) % n_components
rules = [ExactPosterior(), TopComponents(2), PosteriorDraws(2)]
rules += [TruncatedSearch(2, SearchSet(3, 1), guesses)]
for proposal in UniformProposal(), TableProposal(), TableForgettingProposal():
    rules.append(MetropolisHastings(proposal, 2))
for rule in rules:
    rule.start(np.zeros(n_rows, dtype=np.int32), n_components, evaluate.backend)
    for step in range(1, 4):
        random = StepRandomness(0, step)
        pairs = rule.select(evaluate, np.arange(n_rows), 1.0, 0.5, random)
        total = pairs.weights.sum(axis=0 if pairs.components is None else 1)
        np.testing.assert_allclose(total, 1.0)
for block_size in (2, 100):
    partition = draw_partition(table, block_size, 0.5, random, evaluate.backend)
    assert evaluate.backend.leaf_of(partition.tree, table).max() < partition.n_blocks
assert "numba" not in sys.modules, "numba was imported"
"""


def test_selection_by_arrays_never_imports_numba():
    package = str(Path(pickmix.selection.__file__).parents[1])
    command = [sys.executable, "-W", "error", "-c", PROGRAM, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
