"""The sweep for rows seen in part, through blocks of components."""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.kernels import uniform
from pickmix.sweep.multiply import add_moments, evaluate, find_away
from pickmix.sweep.partial_kernels import (
    add_completed_row,
    add_full_rows,
    add_group,
    add_hidden,
    add_levels,
    add_noisy_row,
    add_noisy_rows,
    add_other_columns,
    end_group,
    exponentiate,
    factorise,
    factorise_hidden,
    find_hidden,
    finish,
)
from pickmix.sweep.partial_workspace import NOTHING, look, make_workspace, prepare

# Factors of T serve all rows of a group. Where a group has few rows, of which much was seen, these
# are evaluated as complete rows are, and what is missing is then taken off: if places are so many
# times as many as rows.
_ALONE = 6
TOGETHER = 32  # Components evaluated together in dense E-steps.


@part()
def _choose(values, n, u, greedy):
    """The first component at which the running sum passes u; or the best one."""
    best = 0
    if greedy:
        for g in range(1, n):
            best = g if values[0, g] > values[0, best] else best
        return best
    running = values[0, 0]
    while best < n - 1 and running <= u:
        best += 1
        running += values[0, best]
    return best


@part()
def _end_group(
    layout, tables, rows, i, members, place, n, n_seen, n_hidden, direct, counts, work
) -> None:
    """Add what a group of rows like row i brings to the sums of the block."""
    if direct:
        add_hidden(n_hidden, work)
    else:
        add_group(layout, n_seen, n_hidden, work)
    end_group(layout, tables, rows, i, members, place, n, counts, work)


@kernel()
def sweep_partial_blocks(
    layout,
    model,
    rows,
    row_weights,
    numbers,
    patterns,
    members,
    places,
    ends,
    first_block,
    last_block,
    beta,
    key,
    greedy,
    order,
    drawn,
    sums,
    log_sums,
):
    """`sweep_blocks` for partial rows, sorted by patterns (B,) of missing cells within blocks."""
    wanted, wants_log_sums = sums[0].shape[0] > 0, log_sums.shape[0] > 0
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    has_others = model.linear.shape[0] > 0 or n_columns > C
    block_size = 1
    for b in range(first_block, last_block):
        block_size = max(block_size, places[b + 1] - places[b])
    work = make_workspace(layout, n_noise, block_size)
    for b in range(first_block, last_block):
        place, n = places[b], places[b + 1] - places[b]
        begin, end = ends[b] - ends[first_block], ends[b + 1] - ends[first_block]
        if begin == end:
            continue
        prepare(layout, model, members, place, n, work)
        n_seen, n_hidden, direct = 0, 0, False
        for i in range(begin, end):
            if i == begin or n_noise > 0 or patterns[i] != patterns[i - 1]:
                if i > begin and wanted and n_noise == 0:
                    _end_group(
                        layout,
                        model.tables,
                        rows,
                        i - 1,
                        members,
                        place,
                        n,
                        n_seen,
                        n_hidden,
                        direct,
                        sums[4],
                        work,
                    )
                n_seen, n_hidden = look(rows, i, n_columns, work)
                n_alike = 1
                while i + n_alike < end and patterns[i + n_alike] == patterns[i]:
                    n_alike += 1
                direct = n_noise == 0 and max(2 * n_hidden, _ALONE * n_alike) <= n_seen
                if direct:
                    factorise_hidden(n_seen, n_hidden, work)
                else:
                    factorise(n_seen, work)
            targets = work.seen if direct else work.numbers
            find_away(rows, i, work.seen, n_seen, work.location, targets, work.away)
            if direct:
                evaluate(
                    work.plain,
                    C,
                    work.first,
                    C,
                    work.away,
                    work.normaliser,
                    beta,
                    NOTHING,
                    work.squares,
                    work.values,
                )
                if n_hidden:
                    find_hidden(n_hidden, beta, work)
            else:
                evaluate(
                    work.factor,
                    C,
                    work.begin,
                    n_seen,
                    work.away,
                    work.normaliser,
                    beta,
                    NOTHING,
                    work.squares,
                    work.values,
                )
            if has_others:
                add_other_columns(
                    rows,
                    i,
                    beta,
                    members,
                    place,
                    n,
                    n_seen,
                    work.first,
                    work.seen,
                    work.linear,
                    targets,
                    work.away,
                    layout[3],
                    model.tables,
                    work.values,
                )
            largest, total = exponentiate(work.values)
            u = 0.0 if greedy else total * uniform(key, numbers[i], 0)
            drawn[order[i]] = members[place + _choose(work.values, n, u, greedy)]
            if wants_log_sums:
                log_sum = largest + math.log(total) if largest > NOTHING else -np.inf
                log_sums[order[i]] = log_sum
            if not wanted:
                continue
            scale = row_weights[i] / total
            if n_noise > 0:
                add_noisy_row(n_seen, n_hidden, scale, work)
            elif direct:
                add_completed_row(n_hidden, scale, work)
            else:
                add_moments(
                    work.values,
                    scale,
                    work.away,
                    C,
                    work.begin,
                    n_seen,
                    work.mass,
                    work.total_squares,
                    work.means,
                    work.products,
                )
            if n_columns > C:
                add_levels(rows, i, C, n, place, layout[3], work.values, sums[4])
        if wanted and n_noise > 0:
            add_noisy_rows(layout, work)
        elif wanted:
            _end_group(
                layout,
                model.tables,
                rows,
                end - 1,
                members,
                place,
                n,
                n_seen,
                n_hidden,
                direct,
                sums[4],
                work,
            )
            add_full_rows(layout, work)
        if wanted:
            finish(layout, place, n, sums, work)


@kernel()
def evaluate_partial(layout, model, rows, patterns, out, start, stop):
    """out[k, i] = log p(x_i, k) for chunks start..stop of TOGETHER components."""
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    has_others = model.linear.shape[0] > 0 or n_columns > C
    K = out.shape[0]
    members = np.arange(K)
    work = make_workspace(layout, n_noise, TOGETHER)
    for chunk in range(start, stop):
        place = chunk * TOGETHER
        n = min(TOGETHER, K - place)
        prepare(layout, model, members, place, n, work)
        n_seen = 0
        for i in range(rows.shape[0]):
            if i == 0 or n_noise > 0 or patterns[i] != patterns[i - 1]:
                n_seen = look(rows, i, n_columns, work)[0]
                factorise(n_seen, work)
            find_away(rows, i, work.seen, n_seen, work.location, work.numbers, work.away)
            evaluate(
                work.factor,
                C,
                work.begin,
                n_seen,
                work.away,
                work.normaliser,
                1.0,
                NOTHING,
                work.squares,
                work.values,
            )
            if has_others:
                add_other_columns(
                    rows,
                    i,
                    1.0,
                    members,
                    place,
                    n,
                    n_seen,
                    work.first,
                    work.seen,
                    work.linear,
                    work.numbers,
                    work.away,
                    layout[3],
                    model.tables,
                    work.values,
                )
            for g in range(n):
                value = work.values[0, g]
                out[place + g, i] = value if value > NOTHING else -np.inf


@kernel()
def add_partial(layout, model, rows, patterns, weights, responsibilities, sums, start, stop):
    """Sums of all rows under responsibilities (K, B), for chunks start..stop of components."""
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    K, B = responsibilities.shape
    members = np.arange(K)
    work = make_workspace(layout, n_noise, TOGETHER)
    for chunk in range(start, stop):
        place = chunk * TOGETHER
        n = min(TOGETHER, K - place)
        prepare(layout, model, members, place, n, work)
        n_seen, n_hidden = 0, 0
        for i in range(B + 1):
            fresh = i == 0 or i == B or n_noise > 0 or patterns[i] != patterns[i - 1]
            if fresh and i > 0 and n_noise == 0:
                add_group(layout, n_seen, n_hidden, work)
                end_group(layout, model.tables, rows, i - 1, members, place, n, sums[4], work)
            if i == B:
                break
            if fresh:
                n_seen, n_hidden = look(rows, i, n_columns, work)
                factorise(n_seen, work)
            find_away(rows, i, work.seen, n_seen, work.location, work.numbers, work.away)
            work.values[:] = 0.0
            for g in range(n):
                work.values[0, g] = responsibilities[place + g, i]
            if n_noise > 0:
                add_noisy_row(n_seen, n_hidden, weights[i], work)
                continue
            add_moments(
                work.values,
                weights[i],
                work.away,
                C,
                work.begin,
                n_seen,
                work.mass,
                work.total_squares,
                work.means,
                work.products,
            )
            if n_columns > C:
                add_levels(rows, i, C, n, place, layout[3], work.values, sums[4])
        if n_noise > 0:
            add_noisy_rows(layout, work)
        finish(layout, place, n, sums, work)


@kernel()
def evaluate_partial_pairs(
    layout, model, rows, patterns, order, candidates, log_joint, squares, start, stop
):
    """Log-joints and squared distances of the rows order[start:stop] and their candidates."""
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    has_others = model.linear.shape[0] > 0 or n_columns > C
    W = candidates.shape[1]
    work = make_workspace(layout, n_noise, max(W, 1))
    members, places = np.empty(W, dtype=np.int64), np.empty(W, dtype=np.int64)
    n, n_seen = 0, 0
    for number in range(start, stop):
        i, before = order[number], order[max(number - 1, start)]
        same = number > start
        for j in range(W if same else 0):
            same = same and candidates[i, j] == candidates[before, j]
        if not same:
            n = 0
            for j in range(W):
                if candidates[i, j] >= 0:
                    members[n], places[n] = candidates[i, j], j
                    n += 1
            if n:
                prepare(layout, model, members, 0, n, work)
        for j in range(W):
            log_joint[i, j] = -np.inf
            squares[i, j] = 0.0
        if not n:
            continue
        if not same or n_noise > 0 or patterns[i] != patterns[before]:
            n_seen = look(rows, i, n_columns, work)[0]
            factorise(n_seen, work)
        find_away(rows, i, work.seen, n_seen, work.location, work.numbers, work.away)
        evaluate(
            work.factor,
            C,
            work.begin,
            n_seen,
            work.away,
            work.normaliser,
            1.0,
            NOTHING,
            work.squares,
            work.values,
        )
        if has_others:
            add_other_columns(
                rows,
                i,
                1.0,
                members,
                0,
                n,
                n_seen,
                work.first,
                work.seen,
                work.linear,
                work.numbers,
                work.away,
                layout[3],
                model.tables,
                work.values,
            )
        for g in range(n):
            value = work.values[0, g]
            log_joint[i, places[g]] = value if value > NOTHING else -np.inf
            squares[i, places[g]] = work.squares[0, g]


@kernel()
def add_partial_pairs(layout, model, rows, members, offsets, pairs, weights, sums, start, stop):
    """Sums of the pairs of slots start..stop, whose rows are pairs[offsets[slot]], ..."""
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    work = make_workspace(layout, n_noise, 1)
    for slot in range(start, stop):
        prepare(layout, model, members, slot, 1, work)
        for p in range(offsets[slot], offsets[slot + 1]):
            i = pairs[p]
            n_seen, n_hidden = look(rows, i, n_columns, work)
            factorise(n_seen, work)
            find_away(rows, i, work.seen, n_seen, work.location, work.numbers, work.away)
            work.values[:] = 0.0
            work.values[0, 0] = 1.0
            if n_noise > 0:
                add_noisy_row(n_seen, n_hidden, weights[p], work)
                continue
            add_moments(
                work.values,
                weights[p],
                work.away,
                C,
                work.begin,
                n_seen,
                work.mass,
                work.total_squares,
                work.means,
                work.products,
            )
            if n_columns > C:
                add_levels(rows, i, C, 1, slot, layout[3], work.values, sums[4])
            add_group(layout, n_seen, n_hidden, work)
            end_group(layout, model.tables, rows, i, members, slot, 1, sums[4], work)
        if n_noise > 0:
            add_noisy_rows(layout, work)
        finish(layout, slot, 1, sums, work)
