"""
A stream whose distribution changes
===================================

``partial_fit`` learns from one batch at a time and keeps none of its rows. With a constant
``step_size`` it follows a distribution that changes; with the default it converges.
See :doc:`../howto/streams`.
"""

# %%
# Eight groups that move along a circle. Each batch has 2,000 rows.
import matplotlib.pyplot as plt
import numpy as np

from pickmix import ComponentsDisplay, GaussianMixture

N_GROUPS = 8


def batch(time, n_rows=2_000):
    """Rows at a time: all groups have turned by an angle."""
    rng = np.random.default_rng(time)
    angle = 2.0 * np.pi * (rng.integers(N_GROUPS, size=n_rows) / N_GROUPS) + 0.03 * time
    centre = 5.0 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return centre + 0.5 * rng.normal(size=(n_rows, 2))


# %%
# Two mixtures see the same batches. Each is scored on the next batch, before it learns from it.
mixtures = {
    "step_size='auto'": GaussianMixture(N_GROUPS, random_state=0),
    "step_size=0.5": GaussianMixture(N_GROUPS, step_size=0.5, random_state=0),
}
scores = {name: [] for name in mixtures}
for time in range(25):
    rows = batch(time)
    for name, mixture in mixtures.items():
        if time > 0:
            scores[name].append(mixture.score(rows))
        mixture.partial_fit(rows)

# %%
# The mixture that forgets keeps up with the change. The other one averages over the past.
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
for (name, values), colour in zip(scores.items(), ("#8c8c8c", "#0072b2"), strict=True):
    left.plot(range(1, 25), values, ".-", color=colour, label=name)
left.set_xlabel("batch")
left.set_ylabel("log-likelihood of the next batch, per row")
left.legend(frameon=False)
ComponentsDisplay.from_estimator(mixtures["step_size=0.5"], batch(24), ax=right)
