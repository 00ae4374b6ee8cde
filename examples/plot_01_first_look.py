"""
A first look at a fitted mixture
================================

Fit a table of penguins and look at it from all sides: the components, pairs of columns, the
columns one by one, and how the fit went. The same table is used in the :doc:`../quickstart`.
"""

# %%
# The table has text, numbers and gaps. :class:`pickmix.TableMixture` takes it as it is.
from palmerpenguins import load_penguins

from pickmix import (
    CalibrationDisplay,
    ComponentsDisplay,
    MarginalsDisplay,
    PairsDisplay,
    TableMixture,
    TraceDisplay,
)

penguins = load_penguins()
penguins.columns = ["species", "island", "bill", "depth", "flipper", "mass", "sex", "year"]
penguins = penguins.drop(columns="year")
train = penguins.sample(frac=0.7, random_state=0)
new = penguins.drop(train.index)
mixture = TableMixture(6, random_state=0).fit(train)
print(f"log-likelihood per new row: {mixture.score(new):.2f} nats")

# %%
# Components in two columns. An ellipse is one component; darker ones weigh more.
ComponentsDisplay.from_estimator(mixture, penguins, columns=["flipper", "bill"])

# %%
# Pairs of columns, with the six components merged into three groups. They are the three species.
PairsDisplay.from_estimator(mixture, penguins, level=3)

# %%
# Does the mixture describe each column? Rows are grey, the mixture is blue. New rows say more than
# those of the fit.
MarginalsDisplay.from_estimator(mixture, new, n_bins=15)

# %%
# The same question as a test. If the mixture is right, these curves lie on the diagonal, within the
# grey band.
CalibrationDisplay.from_estimator(mixture, new, kind="curves")

# %%
# How the fit went: the log-likelihood over the seconds of work.
TraceDisplay.from_estimator(mixture)

# %%
# The groups by name: ``predict(level=3)`` says which of three groups a row belongs to.
groups = mixture.predict(penguins, level=3)
for group in range(3):
    found = sorted(set(penguins["species"][groups == group]))
    print(f"group {group}: {(groups == group).sum()} birds, {', '.join(found)}")
