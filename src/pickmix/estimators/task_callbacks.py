"""scikit-learn's callbacks (from its version 1.9 on): evaluations of a fit are tasks of theirs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np

try:
    from sklearn.callback import CallbackSupportMixin
    from sklearn.callback import with_callbacks as _managed
except ImportError:  # Before 1.9 there are none.

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to set."""

    def _managed(method: Any) -> Any:
        return method


__all__ = ["CallbackSupportMixin", "with_tasks"]
Fit = TypeVar("Fit", bound=Callable[..., Any])


def with_tasks(fit: Fit) -> Fit:
    """Make a fit the root task of the callbacks that were set on an estimator.

    During the fit `_evaluation_tasks` has the function to call after each evaluation.
    """

    @functools.wraps(fit)
    def fit_as_task(self: Any, X: Any, y: Any = None, *args: Any, **options: Any) -> Any:
        if not getattr(self, "_skl_callbacks", ()):
            return fit(self, X, y, *args, **options)
        # How many evaluations there will be is not known before.
        root = self._init_callback_context(max_subtasks=None)
        # Monitors of scores ask only where there is a target; densities do not look at it.
        shape = X.shape[0] if hasattr(X, "shape") else len(X)
        data = {"estimator": self, "X": X, "y": np.zeros(shape) if y is None else y}

        def tell(info: Any) -> bool:
            task = root.subcontext(task_name="evaluation")
            task.call_on_fit_task_begin(**data)
            attributes = functools.partial(_fitted, info.estimator)
            return bool(task.call_on_fit_task_end(**data, reconstruction_attributes=attributes))

        root.call_on_fit_task_begin(**data)
        self._evaluation_tasks = [tell]
        try:
            fit(self, X, y, *args, **options)
        finally:
            del self._evaluation_tasks
        attributes = functools.partial(_fitted, lambda: self)
        root.call_on_fit_task_end(**data, reconstruction_attributes=attributes)
        return self

    return cast("Fit", functools.wraps(fit)(_managed(fit_as_task)))


def _fitted(make: Callable[[], Any]) -> dict[str, Any]:
    """Fitted attributes of an estimator."""
    estimator = make()
    known = estimator.get_params(deep=False)
    known |= dict.fromkeys(("_skl_callbacks", "_callback_fit_ctx", "_skl_callbacks_to_teardown"))
    known |= dict.fromkeys(("_evaluation_tasks", "_merged", "_parent_callback_ctx"))
    return {name: value for name, value in vars(estimator).items() if name not in known}
