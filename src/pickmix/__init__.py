"""Mixture models with very many components, fitted by visiting only a few of them per row."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pickmix import callbacks as callbacks
    from pickmix.data.open_rows import open_rows as open_rows
    from pickmix.displays.calibration import CalibrationDisplay as CalibrationDisplay
    from pickmix.displays.components import ComponentsDisplay as ComponentsDisplay
    from pickmix.displays.explanation import ExplanationDisplay as ExplanationDisplay
    from pickmix.displays.marginals import MarginalsDisplay as MarginalsDisplay
    from pickmix.displays.pairs import PairsDisplay as PairsDisplay
    from pickmix.displays.path import PathDisplay as PathDisplay
    from pickmix.displays.trace import TraceDisplay as TraceDisplay
    from pickmix.estimators.conditional_mixtures import ConditionalMixtures as ConditionalMixtures
    from pickmix.estimators.family_mixture import FamilyMixture as FamilyMixture
    from pickmix.estimators.flow_mixture import FlowMixture as FlowMixture
    from pickmix.estimators.gaussian_mixture import GaussianMixture as GaussianMixture
    from pickmix.estimators.merge_tree import MergeTree as MergeTree
    from pickmix.estimators.mixture import Mixture as Mixture
    from pickmix.estimators.path import ComponentPath as ComponentPath
    from pickmix.estimators.path import choose_n_components as choose_n_components
    from pickmix.estimators.path import path as path
    from pickmix.estimators.persistence import load as load
    from pickmix.estimators.persistence import save as save
    from pickmix.estimators.questions_explain import Explanation as Explanation
    from pickmix.estimators.sum_product_transform_network import (
        SumProductTransformNetwork as SumProductTransformNetwork,
    )
    from pickmix.estimators.table_conditionals import TableConditionals as TableConditionals
    from pickmix.estimators.table_explanation import TableExplanation as TableExplanation
    from pickmix.estimators.table_mixture import TableMixture as TableMixture
    from pickmix.reporting.report import report as report
    from pickmix.selection.proposals import Proposal as Proposal
    from pickmix.selection.settings import RandomPartition as RandomPartition
    from pickmix.selection.settings import SearchSet as SearchSet

__version__ = "0.2.0"

# Names are imported when they are asked for: a flow needs no kernels, a Gaussian no JAX.
_MODULES = {
    "CalibrationDisplay": "pickmix.displays.calibration",
    "ComponentPath": "pickmix.estimators.path",
    "ComponentsDisplay": "pickmix.displays.components",
    "ConditionalMixtures": "pickmix.estimators.conditional_mixtures",
    "Explanation": "pickmix.estimators.questions_explain",
    "ExplanationDisplay": "pickmix.displays.explanation",
    "FamilyMixture": "pickmix.estimators.family_mixture",
    "FlowMixture": "pickmix.estimators.flow_mixture",
    "GaussianMixture": "pickmix.estimators.gaussian_mixture",
    "MarginalsDisplay": "pickmix.displays.marginals",
    "MergeTree": "pickmix.estimators.merge_tree",
    "Mixture": "pickmix.estimators.mixture",
    "PairsDisplay": "pickmix.displays.pairs",
    "PathDisplay": "pickmix.displays.path",
    "Proposal": "pickmix.selection.proposals",
    "RandomPartition": "pickmix.selection.settings",
    "SearchSet": "pickmix.selection.settings",
    "SumProductTransformNetwork": "pickmix.estimators.sum_product_transform_network",
    "TableConditionals": "pickmix.estimators.table_conditionals",
    "TableExplanation": "pickmix.estimators.table_explanation",
    "TableMixture": "pickmix.estimators.table_mixture",
    "TraceDisplay": "pickmix.displays.trace",
    "choose_n_components": "pickmix.estimators.path",
    "load": "pickmix.estimators.persistence",
    "open_rows": "pickmix.data.open_rows",
    "path": "pickmix.estimators.path",
    "report": "pickmix.reporting.report",
    "save": "pickmix.estimators.persistence",
}
__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module("pickmix.callbacks")
    if name not in _MODULES:
        raise AttributeError(f"module 'pickmix' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
