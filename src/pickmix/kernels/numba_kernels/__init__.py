"""The kernels in Numba: `numpy_kernels` documents them."""

from pickmix.kernels.numba_kernels.choices import (
    accept_or_stay,
    group_rows,
    grow_tree,
    leaf_of,
    nearest_in_regions,
    top_components,
)
from pickmix.kernels.numba_kernels.stores import Neighbours, Table
from pickmix.kernels.numba_kernels.sweeps import (
    blend,
    condition_pairs,
    log_joint,
    log_joint_all,
    pair_statistics,
    sums_of_all,
    sweep,
)

COMPILED = True
