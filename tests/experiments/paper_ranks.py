"""The rows "rank" of the paper's tables, by model and algorithm.

"1224" ranks per set, averaged over the sets.
"""

from pickmix.experiments.runs import MHSAEM_U, SGD
from pickmix.experiments.tables.paper_numbers import FLOW, SPTN

BEST_RANK = {(SPTN, SGD): 1.56, (SPTN, MHSAEM_U): 1.44, (FLOW, SGD): 1.83, (FLOW, MHSAEM_U): 1.17}
FIXED_RANK = {(SPTN, SGD): 1.68, (SPTN, MHSAEM_U): 1.32, (FLOW, SGD): 1.74, (FLOW, MHSAEM_U): 1.26}
TRAIN_RANK = {(SPTN, SGD): 1.0, (SPTN, MHSAEM_U): 2.0, (FLOW, SGD): 1.72, (FLOW, MHSAEM_U): 1.28}
TEST_RANK = {(SPTN, SGD): 1.56, (SPTN, MHSAEM_U): 1.44, (FLOW, SGD): 1.83, (FLOW, MHSAEM_U): 1.17}
VALIDATION_RANK = {
    (SPTN, SGD): 1.56,
    (SPTN, MHSAEM_U): 1.44,
    (FLOW, SGD): 1.83,
    (FLOW, MHSAEM_U): 1.17,
}
