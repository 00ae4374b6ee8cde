"""
Fill gaps, and know how sure you are
====================================

A mixture fills a gap with what is likely given the rest of the row. It says how sure it is, and
can draw several values instead of one. See :doc:`../howto/gaps`.
"""

# %%
# Hide one in five cells of a table of penguins, and fit what is left.
import matplotlib.pyplot as plt
import numpy as np
from palmerpenguins import load_penguins

from pickmix import TableMixture

names = ["species", "island", "bill", "depth", "flipper", "mass", "sex", "year"]
penguins = load_penguins().set_axis(names, axis=1).drop(columns="year").dropna()
penguins = penguins.reset_index(drop=True)
sizes = ["bill", "depth", "flipper", "mass"]
hidden = np.random.default_rng(0).random((len(penguins), len(sizes))) < 0.2
holes = penguins.assign(**penguins[sizes].mask(hidden))
mixture = TableMixture(6, random_state=0).fit(holes)

# %%
# Fill the gaps, and compare with what was hidden. Grey: the mean of the column instead.
filled = mixture.impute(holes)
means = holes.fillna(holes[sizes].mean())
figure, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
for ax, name, gap in zip(axes, sizes, hidden.T, strict=True):
    truth = penguins[name][gap]
    ax.axline((truth.mean(), truth.mean()), slope=1.0, color="#cccccc", lw=1)
    ax.plot(truth, means[name][gap], ".", color="#aaaaaa", label="column mean")
    ax.plot(truth, filled[name][gap], ".", color="#0072b2", label="mixture")
    ax.set_title(name, loc="left")
    ax.set_xlabel("hidden value")
axes[0].set_ylabel("filled value")
axes[0].legend(frameon=False)

# %%
# How sure? For one bird with a hidden mass: the distribution of the mass, given its other cells.
bird = int(np.flatnonzero(hidden[:, 3])[0])
given = {name: holes[name][bird] for name in holes if not holes[name].isna()[bird]}
mass = mixture.conditional(given, "mass")
grid = np.linspace(2500.0, 6500.0, 200)
density = [float(np.exp(mass.score_samples({"mass": [value]}))[0]) for value in grid]
tables = mixture.impute(holes, "draw", n_draws=20, random_state=0)
draws = [table["mass"][bird] for table in tables]
figure, ax = plt.subplots(figsize=(7, 3), layout="constrained")
ax.plot(grid, density, color="#0072b2", label="given the other cells")
ax.plot(draws, np.zeros(len(draws)), "|", ms=14, color="#009e73", label="20 draws")
ax.axvline(penguins["mass"][bird], color="#d55e00", label="hidden value")
ax.set_xlabel("mass, g")
ax.set_yticks([])
ax.legend(frameon=False)
print(", ".join(f"{name} {value}" for name, value in given.items()))
