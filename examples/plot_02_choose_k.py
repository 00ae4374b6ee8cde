"""
How many components? One fit answers
====================================

Fit more components than you expect to need. Merging the most similar ones, two at a time, gives a
smaller mixture for every number, and rows that were not in the fit say which number is enough.
See :doc:`../howto/choose-k`.
"""

# %%
# Fifteen groups of different sizes and shapes, and a fit with 30 components.
import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster.hierarchy import dendrogram

from pickmix import ComponentsDisplay, GaussianMixture, PathDisplay, path
from pickmix.data.rotated import generate

truth = generate(n_components=15, n_features=2, width=0.07, random_state=3)
rows, _ = truth.sample(4_500, random_state=0)
train, new = rows[:3_000], rows[3_000:]
mixture = GaussianMixture(30, random_state=0).fit(train)

# %%
# The path: the log-likelihood of new rows over the number of components, and two criteria. Where
# groups overlap so much that new rows cannot tell them apart, fewer are chosen than there were.
found = path(mixture, new, train)
display = PathDisplay.from_path(found)
print(f"chosen: {display.chosen} components; the truth has 15")

# %%
# Before and after. The smaller mixture explains new rows as well as the large one.
smaller = mixture.reduce(display.chosen, train)
figure, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
ComponentsDisplay.from_estimator(mixture, train, ax=axes[0])
ComponentsDisplay.from_estimator(smaller, train, ax=axes[1])
for name, model in (("30 components", mixture), (f"{display.chosen} components", smaller)):
    print(f"{name}: {model.score(new):.3f} nats per new row")

# %%
# The merge tree itself, as SciPy draws it. Low merges join components of one group; the high ones
# at the top would join groups that differ.
tree = mixture.merge_tree()
figure, ax = plt.subplots(figsize=(9, 3.5), layout="constrained")
dendrogram(tree.linkage, ax=ax, no_labels=True, color_threshold=0.0)
ax.set_yscale("symlog", linthresh=1e-3)
ax.set_ylabel("cost of the merge, nats per row")
ax.axhline(np.median(tree.linkage[-display.chosen : -display.chosen + 2, 2]), ls="--", c="grey")
