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

__version__ = "0.3.0"

# Names are imported when they are asked for: a flow needs no kernels, a Gaussian no JAX.
_NAMES = {
    "estimators.annotation": "annotate",
    "estimators.detector": "MixtureDetector",
    "estimators.family_mixture": "FamilyMixture",
    "estimators.flow_mixture": "FlowMixture",
    "estimators.gaussian_mixture": "GaussianMixture",
    "estimators.mixture": "Mixture",
    "estimators.mixture_imputer": "MixtureImputer",
    "estimators.mixture_predictors": "MixtureClassifier MixtureRegressor",
    "estimators.persistence": "load save",
    "estimators.sum_product_transform_network": "SumProductTransformNetwork",
    "estimators.table_mixture": "TableMixture",
    "inputs.open_rows": "open_rows",
    "inspection.comparison": "Comparison compare",
    "inspection.displays.columns": "CalibrationDisplay MarginalsDisplay",
    "inspection.displays.components": "ComponentsDisplay",
    "inspection.displays.explanation": "ExplanationDisplay",
    "inspection.displays.fits": "PathDisplay TraceDisplay",
    "inspection.displays.pairs": "PairsDisplay",
    "inspection.report": "report",
    "model.conditional": "ConditionalMixtures TableConditionals",
    "model.explanation": "Explanation TableExplanation",
    "model.merging": "MergeTree",
    "model.path": "ComponentPath choose_n_components path",
    "selection.partitions": "RandomPartition SearchSet",
    "selection.proposals": "Proposal",
}
_MODULES = {name: f"pickmix.{at}" for at, names in _NAMES.items() for name in names.split()}
__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "callbacks":
        return importlib.import_module("pickmix.callbacks")
    if name not in _MODULES:
        raise AttributeError(f"module 'pickmix' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
