"""The kernels in NumPy: what to read first, and what the compiled ones must equal."""

from pickmix.kernels.numpy_kernels.choices import (
    Neighbours,
    Table,
    accept_or_stay,
    group_rows,
    grow_tree,
    leaf_of,
    nearest_in_regions,
    top_components,
)
from pickmix.kernels.numpy_kernels.partial import condition_pairs
from pickmix.kernels.numpy_kernels.sweeps import (
    blend,
    log_joint,
    log_joint_all,
    pair_statistics,
    sums_of_all,
    sweep,
)

COMPILED = False
