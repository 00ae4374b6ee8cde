"""The paper's UCI data sets, where the package pickmix-experiments is installed."""

try:
    from pickmix_experiments.uci import NAMES, PROTOCOLS, SIZES, Split, load, read
except ModuleNotFoundError as error:
    raise ImportError(
        "pickmix.data.uci needs the package pickmix-experiments: in a clone of pickmix, "
        "pip install ./experiments"
    ) from error

__all__ = ["NAMES", "PROTOCOLS", "SIZES", "Split", "load", "read"]
