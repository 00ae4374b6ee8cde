"""
A hundred components, and what they cost
========================================

A picture with 100 components, the trace of the fit, and how many components each row had to
be compared with. See :doc:`../tutorial` for the idea behind it.
"""

# %%
# Rows along three spiral arms, described by 100 Gaussians.
import matplotlib.pyplot as plt
import numpy as np

from pickmix import ComponentsDisplay, GaussianMixture, TraceDisplay

rng = np.random.default_rng(0)
turn = rng.uniform(0.3, 2.2 * np.pi, 3_000)
arm = rng.integers(3, size=3_000)
angle = turn + 2.0 * np.pi * arm / 3.0
rows = turn[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
rows += 0.15 * rng.normal(size=rows.shape)
mixture = GaussianMixture(100, random_state=0).fit(rows)

# %%
# Left, the components. Right, the log-likelihood over the seconds of work.
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
ComponentsDisplay.from_estimator(mixture, rows, ax=left)
TraceDisplay.from_estimator(mixture, ax=right)

# %%
# A row is compared with a block of neighbours, not with all components.
per_pass = mixture.n_component_evaluations_ / len(rows) / mixture.n_iter_
print(f"{per_pass:.0f} of 100 components per row and pass, {mixture.n_iter_} passes")

# %%
# New rows come from the mixture as they came from the arms.
drawn, _ = mixture.sample(3_000, random_state=0)
figure, ax = plt.subplots(figsize=(5, 5), layout="constrained")
ax.plot(*drawn.T, ".", ms=1.5, color="#0072b2")
ax.set_title("3,000 rows drawn from the mixture", loc="left")
ax.set_aspect("equal")
