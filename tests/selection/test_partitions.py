"""Random partitions: every component in one block, neighbours together, nothing else random."""

import numpy as np
import pytest

from pickmix.kernels import numba_kernels, numpy_kernels
from pickmix.selection.partitions import Partition, RandomPartition, draw_partition
from pickmix.selection.randomness import StepRandomness, Stream
from pickmix.threads import use_threads


def partition_of(means, block_size, shuffle=0.0, random=None, backend=None):
    random = random or StepRandomness(0, 1)
    return draw_partition(means, block_size, shuffle, random, backend or numpy_kernels)


def points(n, n_features=3, seed=0):
    return np.random.default_rng(seed).random((n, n_features))


@pytest.mark.parametrize("shuffle", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("n", "block_size"), [(1, 2), (2, 2), (7, 3), (32, 32), (33, 32), (900, 16)]
)
def test_every_component_has_one_place_and_blocks_are_full(n, block_size, shuffle, backend):
    partition = partition_of(points(n), block_size, shuffle, backend=backend)
    assert sorted(partition.members.tolist()) == list(range(n))
    sizes = np.diff(partition.offsets)
    assert partition.offsets[0] == 0
    assert partition.offsets[-1] == n
    assert partition.n_blocks == -(-n // block_size)
    assert sizes.max() <= block_size
    # Blocks are cut at equal shares of what is left, so they differ by rounding only.
    assert sizes.min() >= n // partition.n_blocks - 3
    np.testing.assert_array_equal(
        np.bincount(partition.block_of_position(), minlength=partition.n_blocks), sizes
    )


def test_threads_change_nothing():
    means = points(20_000)
    alone = partition_of(means, 16, 0.02, backend=numba_kernels)
    with use_threads(4):
        together = partition_of(means, 16, 0.02, backend=numba_kernels)
    np.testing.assert_array_equal(alone.members, together.members)
    np.testing.assert_array_equal(alone.tree.thresholds, together.tree.thresholds)


def test_seed_step_and_child_decide():
    means = points(300)
    first = partition_of(means, 16).members
    np.testing.assert_array_equal(first, partition_of(means, 16).members)
    for other in (StepRandomness(1, 1), StepRandomness(0, 2), StepRandomness(0, 1).child(0)):
        assert (first != partition_of(means, 16, random=other).members).mean() > 0.5


@pytest.mark.parametrize("n", [5, 64, 2000])
def test_the_tree_leads_every_mean_to_its_block(n, backend):
    means = points(n)
    partition = partition_of(means, 8, backend=backend)
    leaves = backend.leaf_of(partition.tree, means)
    np.testing.assert_array_equal(leaves[partition.members], partition.block_of_position())


def test_blocks_of_a_line_are_intervals(backend):
    values = np.random.default_rng(1).permutation(1000)
    partition = partition_of(values[:, None] / 7.0, 10, backend=backend)
    for block in np.split(values[partition.members], partition.offsets[1:-1]):
        assert block.max() - block.min() == block.shape[0] - 1


def test_neighbours_share_a_block_far_more_often_than_strangers():
    means = points(1024, 2)
    together = 0
    nearest = np.argsort(((means[:, None] - means) ** 2).sum(-1), axis=1)[:, 1]
    for step in range(20):
        partition = partition_of(means, 16, random=StepRandomness(0, step))
        block = np.empty(1024, dtype=int)
        block[partition.members] = partition.block_of_position()
        together += (block == block[nearest]).mean() / 20
    # Strangers meet with probability 15 / 1023.
    assert together > 0.6


def test_shuffled_components_may_meet_anybody():
    means = points(1000)
    plain, shuffled = partition_of(means, 10).members, partition_of(means, 10, 0.2).members
    moved = (plain != shuffled).sum()
    # 200 are chosen on average, standard deviation 12.6, and few of them stay by chance.
    assert 130 < moved < 260


def test_coinciding_means_are_no_trouble(backend):
    partition = partition_of(np.zeros((100, 2)), 8, backend=backend)
    assert sorted(partition.members.tolist()) == list(range(100))


def test_directions_are_measured_in_widths(backend):
    # A column in small units counts as much as the other if widths say so.
    means = points(4096, 2) * np.array([1e6, 1.0])
    random = StepRandomness(0, 1)
    widths = np.array([1e6, 1.0])
    partition = draw_partition(means, 64, 0.0, random, backend, widths)
    spans = [
        np.ptp(means[block, 1]) for block in np.split(partition.members, partition.offsets[1:-1])
    ]
    # 64 blocks of a unit square are about 1/8 wide; if only the first column counted, about 1.
    assert np.median(spans) < 0.5


def test_leaves_of_a_tree_over_rows(backend):
    rows = points(5000, 4)
    key = StepRandomness(3, 0).key(Stream.PARTITION)
    order, offsets, tree = backend.grow_tree(rows, 100, key, np.ones(4))
    leaves = backend.leaf_of(tree, rows)
    for leaf in range(offsets.shape[0] - 1):
        np.testing.assert_array_equal(leaves[order[offsets[leaf] : offsets[leaf + 1]]], leaf)


@pytest.mark.parametrize(("n", "size", "n_blocks"), [(6, 3, 2), (7, 3, 3), (2, 3, 1)])
def test_blocks_of_given_members(n, size, n_blocks):
    members = np.random.default_rng(0).permutation(n)
    partition = Partition.of_blocks(members, size)
    assert partition.n_blocks == n_blocks
    assert partition.tree is None
    np.testing.assert_array_equal(partition.block_of_position(), np.arange(n) // size)
    np.testing.assert_array_equal(partition.members, members)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 1}, r"block_size must lie in \[2, 4096\], got 1"),
        ({"block_size": 2.5}, r"block_size must be an integer >= 2, got 2.5"),
        ({"shuffle": 1.5}, r"shuffle must lie in \[0, 1\], got 1.5"),
        ({"relocate": "often"}, r"relocate must be True, False or 'auto', got 'often'"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        RandomPartition(**settings)


def test_members_of_some_blocks():
    partition = Partition(np.array([4, 0, 3, 1, 2]), np.array([0, 2, 3, 5]))
    found = partition.members_of(np.array([[2, 0], [1, -1]]))
    np.testing.assert_array_equal(found, [[1, 2, 4, 0], [3, -1, -1, -1]])
