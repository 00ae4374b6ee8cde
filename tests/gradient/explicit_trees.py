"""Walls of rotations and trees of transforms written out in NumPy, one rotation at a time."""

import itertools

import numpy as np


def pairs_of_wall(n, n_places):
    """(layer, place among the layer's angles, first coordinate) of every rotation, in order.

    Even layers rotate (0, 1), (2, 3), ..., odd ones (1, 2), (3, 4), .... The coordinates move
    past the places, by one place every second layer.
    """
    return [
        (layer, (first - layer) // 2 % n_places, first)
        for layer in range(n)
        for first in range(layer % 2, n - 1, 2)
    ]


def wall(angles, n):
    """Product of the Givens rotations with angles (depth, pairs): an (n, n) matrix.

    Coordinates beyond n are ignored; angles may be complex, for derivatives by complex steps.
    """
    matrix = np.eye(n, dtype=angles.dtype)
    for layer, place, first in pairs_of_wall(n, angles.shape[1]):
        sine, cosine = np.sin(angles[layer, place]), np.cos(angles[layer, place])
        above, below = matrix[first].copy(), matrix[first + 1].copy()
        matrix[first] = cosine * above - sine * below
        matrix[first + 1] = sine * above + cosine * below
    return matrix


def triangle(own, n):
    """Matrix and shift of a triangular transform of n coordinates, its frame multiplied out."""
    width = len(own["log_scale"])
    matrix = np.diag(np.exp(own["log_scale"]))
    numbers = iter(own.get("below", ()))
    for column in range(width):
        for row in range(column + 1, width):
            matrix[row, column] = next(numbers)
    matrix = matrix[:n, :n] * np.exp(own["log_unit"][:n])
    return matrix, own["shift"][:n] - matrix @ own["origin"][:n]


def log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def every_tree(network):
    """All trees (n_trees, n_slots)."""
    choices = itertools.product(*map(range, network.n_choices))
    return np.array(list(choices), dtype=np.int32)


def split_scope(size, n_partitions):
    """Sizes of at most b parts, as even as possible and the larger ones first."""
    n_parts = min(n_partitions, size)
    return [len(part) for part in np.array_split(np.arange(size), n_parts)]


def tree_as_affine_map(named, choices, n_partitions, n_layers, n_features):
    """Follow one tree down: y = A x + c of its leaves, and its log-weights below the root.

    `named` holds, for each layer, parameters (slots, ...) of the nodes that the tree visits. Slots
    are numbered across a layer from left to right, and choices layer after layer.
    """
    slots_before = [0] * n_layers
    first_choice = [
        sum(len(layer_sizes) for layer_sizes in sizes_above)
        for sizes_above in _sizes_above(n_partitions, n_layers, n_features)
    ]
    log_weight = 0.0

    def descend(depth, size):
        nonlocal log_weight
        slot = slots_before[depth]
        slots_before[depth] += 1
        own = {name: np.asarray(value[slot]) for name, value in named[depth].items()}
        matrix, shift = np.eye(size), np.zeros(size)
        if "origin" in own:
            matrix, shift = triangle(own, size)
            own = {"logits": own.get("logits")}
        if "angles_in" in own:
            matrix = wall(own["angles_in"], size) @ matrix
        if "log_scale" in own:
            matrix = np.exp(own["log_scale"][:size])[:, None] * matrix
        if "angles_out" in own:
            matrix = wall(own["angles_out"], size) @ matrix
        if "shift" in own:
            shift = own["shift"][:size]
        if depth + 1 == n_layers:
            return matrix, shift
        begin = 0
        rows, shifts = [], []
        for part, part_size in enumerate(split_scope(size, n_partitions)):
            child = choices[first_choice[depth + 1] + slots_before[depth + 1]]
            log_weight += log_softmax(own["logits"][part])[child]
            inner, inner_shift = descend(depth + 1, part_size)
            scope = slice(begin, begin + part_size)
            rows.append(inner @ matrix[scope])
            shifts.append(inner @ shift[scope] + inner_shift)
            begin += part_size
        return np.concatenate(rows), np.concatenate(shifts)

    matrix, shift = descend(0, n_features)
    return matrix, shift, log_weight


def _sizes_above(n_partitions, n_layers, n_features):
    """For each layer, the sizes of all layers above it."""
    layers = [[n_features]]
    for _ in range(n_layers - 1):
        layers.append([part for size in layers[-1] for part in split_scope(size, n_partitions)])
    return [layers[:depth] for depth in range(n_layers)]
