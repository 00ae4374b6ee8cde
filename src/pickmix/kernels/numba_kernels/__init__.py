"""The kernels in Numba: `numpy_kernels` documents them."""

from pickmix.kernels import serves_layouts
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

# Some layouts have kernels of their own, for both backends.
blend = serves_layouts(blend)
log_joint = serves_layouts(log_joint)
log_joint_all = serves_layouts(log_joint_all)
pair_statistics = serves_layouts(pair_statistics)
sums_of_all = serves_layouts(sums_of_all)
sweep = serves_layouts(sweep)
condition_pairs = serves_layouts(condition_pairs)
