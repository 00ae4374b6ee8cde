"""Ready-made callbacks: stop early, save the model on the way, log to MLflow or TensorBoard.

Every estimator takes `callbacks`, a callable or a list of them. Each is called with a
`pickmix.fitting.loop.FitInfo` after each evaluation, and a true return value ends the fit. A
function of your own works just as well as the classes here.

Examples
--------
>>> import numpy as np
>>> from pickmix import GaussianMixture
>>> from pickmix.callbacks import EarlyStopping
>>> X = np.random.default_rng(0).normal(size=(400, 2))
>>> stop = EarlyStopping(on=X[300:], patience=2)
>>> GaussianMixture(2, random_state=0, tol=0.0, callbacks=[stop]).fit(X[:300]).outcome_
'callback'
"""

from pickmix.callbacks.control import CheckpointCallback as CheckpointCallback
from pickmix.callbacks.control import EarlyStopping as EarlyStopping
from pickmix.callbacks.loggers import MLflowCallback as MLflowCallback
from pickmix.callbacks.loggers import TensorBoardCallback as TensorBoardCallback

__all__ = ["CheckpointCallback", "EarlyStopping", "MLflowCallback", "TensorBoardCallback"]
