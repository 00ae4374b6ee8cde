"""The kernels in NumPy: what to read first, and what the compiled ones must equal."""

from pickmix.kernels.low_rank import serves_low_rank
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

# Covariances of low rank have kernels of their own, for both backends.
blend = serves_low_rank(blend)
log_joint = serves_low_rank(log_joint)
log_joint_all = serves_low_rank(log_joint_all)
pair_statistics = serves_low_rank(pair_statistics)
sums_of_all = serves_low_rank(sums_of_all)
sweep = serves_low_rank(sweep)
condition_pairs = serves_low_rank(condition_pairs)
