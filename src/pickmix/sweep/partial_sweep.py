"""The sweep for rows seen in part, through blocks of components."""

# Numba infers types in the kernels.
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
from __future__ import annotations

import math

import numpy as np

from pickmix.compiled import kernel, part
from pickmix.selection.kernels import uniform
from pickmix.sweep.lanes import add_moments, evaluate, find_away
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
from pickmix.sweep.partial_workspace import NOTHING, look, prepare

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
    begins,
    ends,
    offset,
    first_block,
    last_block,
    beta,
    key,
    greedy,
    order,
    drawn,
    sums,
    log_sums,
    tops,
    given,
    log_joint,
    squares,
    work,
):
    """`sweep_blocks` for partial rows, sorted by patterns (B,) of missing cells within blocks.

    Block b holds the rows begins[b] - offset .. ends[b] - offset. With weights `given`, nothing is
    evaluated: the components of block b weigh row i by given[tops[b], i], given[tops[b] + 1, i],
    ... If `log_joint` is not empty, log-joints are written to it likewise, squared distances to
    `squares`, and nothing is drawn.
    """
    wanted, wants_log_sums = sums[0].shape[0] > 0, log_sums.shape[0] > 0
    has_weights, only_evaluates = given.shape[0] > 0, log_joint.shape[0] > 0
    C = layout[0].shape[0]
    n_columns = C + layout[3].shape[0] - 1
    n_noise = rows.shape[1] - n_columns
    has_others = model.linear.shape[0] > 0 or n_columns > C
    for b in range(first_block, last_block):
        place, n, top = places[b], places[b + 1] - places[b], tops[b]
        begin, end = begins[b] - offset, ends[b] - offset
        if begin == end:
            continue
        prepare(layout, model, members, place, n, work)
        n_seen, n_hidden, direct = 0, 0, False
        for i in range(begin, end + 1):
            is_new = n_noise > 0 or not begin < i < end or patterns[i] != patterns[i - 1]
            if is_new and i > begin and wanted and n_noise == 0:
                if direct:
                    add_hidden(n_hidden, work)
                else:
                    add_group(layout, n_seen, n_hidden, work)
                end_group(layout, model.tables, rows, i - 1, members, place, n, sums[4], work)
            if i == end:
                break
            if is_new:
                n_seen, n_hidden = look(rows, i, n_columns, work)
                n_alike = 1
                while i + n_alike < end and patterns[i + n_alike] == patterns[i]:
                    n_alike += 1
                direct = n_noise == 0 and max(2 * n_hidden, _ALONE * n_alike) <= n_seen
                if has_weights or only_evaluates:
                    direct = False
                if direct:
                    factorise_hidden(n_seen, n_hidden, work)
                else:
                    factorise(n_seen, work)
            targets = work.seen if direct else work.numbers
            find_away(rows, i, work.seen, n_seen, work.location, targets, work.away)
            scale = row_weights[i]
            if has_weights:
                for g in range(work.values.shape[1]):
                    work.values[0, g] = given[top + g, i] if g < n else 0.0
            else:
                # Of complete rows about their factors, or of places about those of T.
                evaluate(
                    work.plain if direct else work.factor,
                    C,
                    work.first if direct else work.begin,
                    C if direct else n_seen,
                    work.away,
                    work.normaliser,
                    beta,
                    NOTHING,
                    work.squares,
                    work.values,
                )
                if direct and n_hidden:
                    find_hidden(n_hidden, beta, work)
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
                if only_evaluates:
                    for g in range(n):
                        value = work.values[0, g]
                        log_joint[top + g, i] = value if value > NOTHING else -np.inf
                        squares[top + g, i] = work.squares[0, g]
                    continue
                largest, total = exponentiate(work.values)
                u = 0.0 if greedy else total * uniform(key, numbers[i], 0)
                drawn[order[i]] = members[place + _choose(work.values, n, u, greedy)]
                if wants_log_sums:
                    log_sum = largest + math.log(total) if largest > NOTHING else -np.inf
                    log_sums[order[i]] = log_sum
                scale /= total
            if not wanted:
                continue
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
        if wanted:
            if n_noise > 0:
                add_noisy_rows(work)
            add_full_rows(layout, work)
            finish(layout, place, n, sums, work)
