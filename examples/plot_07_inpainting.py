"""
Missing halves of images
========================

A mixture with low-rank covariances of images says what the other half of an image looks like, and
how sure it is. No matrix of all pixels is made.
"""

# %%
# Handwritten digits of 8 x 8 pixels. Grey levels are whole numbers, so noise of one step is added.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from pickmix import GaussianMixture

random = np.random.default_rng(0)
images = load_digits().data
images = images[random.permutation(len(images))]
images += random.uniform(-0.5, 0.5, images.shape)
train, new = images[:1500], images[1500:]
mixture = GaussianMixture(20, covariance_type="low_rank", axes="columns", random_state=0)
mixture.fit(train)
print(f"ranks {mixture.ranks_.min()} to {mixture.ranks_.max()}")

# %%
# The lower halves of new images are taken away. Filled with the mean given the upper half they are
# smooth; draws are as sharp as the images.
halves = new.copy()
halves[:, 32:] = np.nan
filled = mixture.impute(halves)
drawn = mixture.sample_conditional(halves, random_state=0)
error = np.sqrt(np.square(filled - new)[:, 32:].mean())
usual = np.sqrt(np.square(train[:, 32:].mean(axis=0) - new[:, 32:]).mean())
print(f"error of a grey level: {error:.1f} with the upper half, {usual:.1f} without it")
rows = [("image", new), ("given", halves), ("mean", filled), ("a draw", drawn)]
figure, axes = plt.subplots(4, 8, figsize=(8, 4.4))
for line, (name, values) in zip(axes, rows, strict=True):
    line[0].set_ylabel(name)
    for ax, image in zip(line, values, strict=False):
        ax.imshow(image.reshape(8, 8), cmap="Greys", vmin=0, vmax=16)
        ax.set_xticks([])
        ax.set_yticks([])

# %%
# The means of some components, and the first direction in which each is long.
figure, axes = plt.subplots(2, 8, figsize=(8, 2.4))
for column, k in zip(axes.T, np.argsort(-mixture.weights_), strict=False):
    column[0].imshow(mixture.means_[k].reshape(8, 8), cmap="Greys")
    column[1].imshow(mixture.loadings_[k, :, 0].reshape(8, 8), cmap="PuOr")
    for ax in column:
        ax.set_axis_off()
