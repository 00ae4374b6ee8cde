"""Mixture models with very many components, fitted by visiting only a few of them per row."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pickmix import callbacks as callbacks
    from pickmix.estimators.annotation import annotate as annotate
    from pickmix.estimators.detector import MixtureDetector as MixtureDetector
    from pickmix.estimators.family_mixture import FamilyMixture as FamilyMixture
    from pickmix.estimators.flow_mixture import FlowMixture as FlowMixture
    from pickmix.estimators.gaussian_mixture import GaussianMixture as GaussianMixture
    from pickmix.estimators.mixture import Mixture as Mixture
    from pickmix.estimators.mixture_imputer import MixtureImputer as MixtureImputer
    from pickmix.estimators.mixture_predictors import MixtureClassifier as MixtureClassifier
    from pickmix.estimators.mixture_predictors import MixtureRegressor as MixtureRegressor
    from pickmix.estimators.persistence import load as load
    from pickmix.estimators.persistence import save as save
    from pickmix.estimators.sum_product_transform_network import (
        SumProductTransformNetwork as SumProductTransformNetwork,
    )
    from pickmix.estimators.table_mixture import TableMixture as TableMixture
    from pickmix.inputs.open_rows import open_rows as open_rows
    from pickmix.inspection.comparison import Comparison as Comparison
    from pickmix.inspection.comparison import compare as compare
    from pickmix.inspection.displays.columns import CalibrationDisplay as CalibrationDisplay
    from pickmix.inspection.displays.columns import MarginalsDisplay as MarginalsDisplay
    from pickmix.inspection.displays.components import ComponentsDisplay as ComponentsDisplay
    from pickmix.inspection.displays.explanation import ExplanationDisplay as ExplanationDisplay
    from pickmix.inspection.displays.fits import PathDisplay as PathDisplay
    from pickmix.inspection.displays.fits import TraceDisplay as TraceDisplay
    from pickmix.inspection.displays.pairs import PairsDisplay as PairsDisplay
    from pickmix.inspection.report import report as report
    from pickmix.model.conditional import ConditionalMixtures as ConditionalMixtures
    from pickmix.model.conditional import TableConditionals as TableConditionals
    from pickmix.model.explanation import Explanation as Explanation
    from pickmix.model.explanation import TableExplanation as TableExplanation
    from pickmix.model.merging import MergeTree as MergeTree
    from pickmix.model.path import ComponentPath as ComponentPath
    from pickmix.model.path import choose_n_components as choose_n_components
    from pickmix.model.path import path as path
    from pickmix.selection.partitions import RandomPartition as RandomPartition
    from pickmix.selection.partitions import SearchSet as SearchSet
    from pickmix.selection.proposals import Proposal as Proposal

__version__ = "0.2.0"

# Names are imported when they are asked for: a flow needs no kernels, a Gaussian no JAX.
_MODULES = {
    "CalibrationDisplay": "pickmix.inspection.displays.columns",
    "Comparison": "pickmix.inspection.comparison",
    "ComponentPath": "pickmix.model.path",
    "ComponentsDisplay": "pickmix.inspection.displays.components",
    "ConditionalMixtures": "pickmix.model.conditional",
    "Explanation": "pickmix.model.explanation",
    "ExplanationDisplay": "pickmix.inspection.displays.explanation",
    "FamilyMixture": "pickmix.estimators.family_mixture",
    "FlowMixture": "pickmix.estimators.flow_mixture",
    "GaussianMixture": "pickmix.estimators.gaussian_mixture",
    "MarginalsDisplay": "pickmix.inspection.displays.columns",
    "MergeTree": "pickmix.model.merging",
    "Mixture": "pickmix.estimators.mixture",
    "MixtureClassifier": "pickmix.estimators.mixture_predictors",
    "MixtureDetector": "pickmix.estimators.detector",
    "MixtureImputer": "pickmix.estimators.mixture_imputer",
    "MixtureRegressor": "pickmix.estimators.mixture_predictors",
    "PairsDisplay": "pickmix.inspection.displays.pairs",
    "PathDisplay": "pickmix.inspection.displays.fits",
    "Proposal": "pickmix.selection.proposals",
    "RandomPartition": "pickmix.selection.partitions",
    "SearchSet": "pickmix.selection.partitions",
    "SumProductTransformNetwork": "pickmix.estimators.sum_product_transform_network",
    "TableConditionals": "pickmix.model.conditional",
    "TableExplanation": "pickmix.model.explanation",
    "TableMixture": "pickmix.estimators.table_mixture",
    "TraceDisplay": "pickmix.inspection.displays.fits",
    "annotate": "pickmix.estimators.annotation",
    "choose_n_components": "pickmix.model.path",
    "compare": "pickmix.inspection.comparison",
    "load": "pickmix.estimators.persistence",
    "open_rows": "pickmix.inputs.open_rows",
    "path": "pickmix.model.path",
    "report": "pickmix.inspection.report",
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
