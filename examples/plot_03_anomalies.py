"""
Unusual rows, and why they are unusual
======================================

Rows of low density are unusual. ``explain`` says which of their cells make them so. Here a few
errors are hidden in a table of wines, and found again. See :doc:`../howto/anomalies`.
"""

# %%
# A table of 178 wines with 13 measurements. In five of them two values are swapped, as happens when
# somebody types a table.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

from pickmix import ExplanationDisplay, GaussianMixture

wine = load_wine(as_frame=True).data
rng = np.random.default_rng(0)
wrong = rng.choice(len(wine), 5, replace=False)
columns = ["alcohol", "color_intensity"]
table = wine.copy()
table.loc[wrong, columns] = wine.loc[wrong, columns[::-1]].to_numpy()

# %%
# Fit the table with its errors, and rank all rows by their log-density.
scaled = (table - table.mean()) / table.std()
mixture = GaussianMixture(3, random_state=0).fit(scaled)
scores = mixture.score_samples(scaled)
order = np.argsort(scores)
print("most unusual rows:", order[:8].tolist())
print("rows with errors: ", sorted(wrong.tolist()))
print("their ranks:      ", sorted(np.argsort(order)[wrong].tolist()))

# %%
# Scores of all rows. Those with errors are marked.
figure, ax = plt.subplots(figsize=(8, 3), layout="constrained")
ax.plot(np.sort(scores), ".", color="#8c8c8c", label="rows, sorted")
ranks = np.argsort(order)[wrong]
ax.plot(ranks, scores[wrong], "o", color="#d55e00", label="two cells swapped")
ax.set_xlabel("rank")
ax.set_ylabel("log-density")
ax.legend(frameon=False)

# %%
# Why is the first of them unusual? A bar says how much less probable the cell is than what was
# expected there, given all other cells of the row.
first = next(row for row in order if row in wrong)
ExplanationDisplay.from_estimator(mixture, scaled.iloc[[first]], top=6)
