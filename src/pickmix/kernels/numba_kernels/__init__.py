"""The kernels in Numba: `numpy_kernels` documents them."""

from pickmix.kernels.low_rank import serves_low_rank
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

# Covariances of low rank have kernels of their own, for both backends.
blend = serves_low_rank(blend)
log_joint = serves_low_rank(log_joint)
log_joint_all = serves_low_rank(log_joint_all)
pair_statistics = serves_low_rank(pair_statistics)
sums_of_all = serves_low_rank(sums_of_all)
sweep = serves_low_rank(sweep)
condition_pairs = serves_low_rank(condition_pairs)
