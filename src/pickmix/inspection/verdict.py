"""Is the fit any good, how did it end, and what to try next: sentences that follow from numbers.

`gather` collects the numbers, a table of rules chooses sentences, and `judge` fills them in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.families.base import Part
from pickmix.inspection.columns import Calibration
from pickmix.inspection.components import ComponentTable
from pickmix.inspection.view import RowScores, view_of
from pickmix.model.path import ComponentPath

# Differences of log-likelihoods, in nats per row, that are worth a word; and those that two
# standard errors must exclude before a fit is said not to overfit.
_WORTH, _LARGE = 0.05, 0.25
# Distances between distributions that are worth a word, however many rows show them.
_FAR_OFF = 0.03
# Shares of components that are worth a word; that may be too many where the path over K is said to
# end too early.
_MANY, _FEW_LEFT = 0.2, 0.02
# Fewer rows say nothing about a fit.
_FEW_ROWS = 30
# Total cost of merges, in nats per row, below which they are called free.
_FREE_MERGES = 0.01
# The record of a fit comes from a sample of its rows, seldom fewer than these.
_FEW_RECORDED = 500.0


@dataclass(frozen=True)
class Evidence:
    """Numbers about a fit and about rows; NaN where one is not known."""

    n_components: int
    #: Components with rows at the end of the fit's record; without one, those that have rows here.
    n_live: int
    n_parameters: int
    #: Components whose weight stands for fewer rows of the fit than `thin_below`.
    n_thin: int
    thin_below: int
    #: Rows of the data, those that were scored, and those of the fit.
    n_rows: int
    n_scored: int
    n_rows_fit: float
    #: Whether the fit has not seen the rows; None if that is not known.
    held_out: bool | None
    #: Mean log-density per row, and its standard error.
    score: float
    standard_error: float
    #: The same above independent columns: one normal distribution, Poisson distribution or list of
    #: shares for each, fitted to these very rows.
    gain: float
    #: How far these rows score below rows of the fit, the standard error, and whether rows of the
    #: fit were scored for it; else it comes from the fit's record.
    gap: float = math.nan
    gap_error: float = math.nan
    is_gap_scored: bool = False
    #: How the fit ended; empty if not known.
    outcome: str = ""
    #: Passes, nats per row that the last of them brought each, and what is a plateau.
    passes: float = math.nan
    rise: float = math.nan
    tol: float = math.nan
    #: The column that differs most from the mixture, by how much, and how much chance does.
    worst_column: str = ""
    worst_distance: float = math.nan
    chance_distance: float = math.nan
    #: Columns that are off by more than chance.
    n_off: int = 0
    #: Components that are left if merges may cost `merge_cost` nats per row in all.
    n_after_merges: int | None = None
    merge_cost: float = math.nan
    #: Components that are enough for held-out rows, by the path over K; scores of the path's rows
    #: with so many, and with all.
    n_enough: int | None = None
    enough_score: float = math.nan
    path_score: float = math.nan
    #: Of deep mixtures: the validation log-likelihood, and how far it is above the start's.
    validation: float = math.nan
    validation_gain: float = math.nan

    @property
    def gains_nothing(self) -> bool:
        return self.n_scored >= _FEW_ROWS and self.n_components > 1 and self.gain <= _WORTH

    @property
    def overfits(self) -> bool:
        """Whether these rows score worse than rows of the fit by more than chance does."""
        return self.n_scored >= _FEW_ROWS and self.gap > max(_WORTH, 3.0 * self.gap_error)

    @property
    def is_thin(self) -> bool:
        return self.n_thin > _MANY * self.n_components

    @property
    def direction(self) -> str:
        """Which number of components is advised: "one", "more", "fewer", "as many", or none ("").

        Held-out rows decide if there are any, then merges that cost nothing. All advice follows
        this, so that no two findings contradict each other.
        """
        K, enough, fewer = self.n_components, self.n_enough, self.n_after_merges
        if self.gains_nothing:
            return "one"
        if enough is not None:
            if enough > (1.0 - _FEW_LEFT) * K:
                return "more"
            return "fewer" if enough < (1.0 - _MANY) * K else "as many"
        return "fewer" if fewer is not None and K - fewer > _MANY * K else ""


def gather(
    model: Any,
    table: ComponentTable,
    *,
    calibration: Calibration | None = None,
    costs: np.ndarray | None = None,
    path: ComponentPath | None = None,
    held_out: bool | None = None,
    n_rows: int | None = None,
    fitted: RowScores | None = None,
) -> Evidence:
    """Collect the numbers about a fitted mixture from rows that were scored.

    `costs` are nats per row that merges cost at most, as `merge_tree().costs`; `path` is how
    held-out rows score by the number of components. `held_out` says whether the fit has not seen
    the rows; None: it has if there are as many as it had. There are `n_rows` rows, if those scored
    are a sample. `fitted` are rows of the fit.
    """
    view = view_of(model)
    estimator, scores, K = view.estimator, table.scores, len(table)
    n_scored = scores.component.shape[0]
    n_rows = n_scored if n_rows is None else n_rows
    n_rows_fit = float(getattr(estimator, "n_rows_seen_", math.nan))
    if held_out is None and n_rows == n_rows_fit:
        held_out = False
    # A component is thin if it has no more rows than columns to describe.
    thin_below = table.centre.shape[1] + 1
    known = n_rows_fit if math.isfinite(n_rows_fit) else float(n_rows)
    encoded = scores.log_density - scores.log_units
    n_live, more = int(np.count_nonzero(table.rows)), dict[str, Any]()
    trace: Any = getattr(estimator, "trace_", ())
    if len(trace):
        n_live = int(trace["live_components"][-1])
        more |= {"passes": float(trace["epoch"][-1]), "rise": _rise(trace)}
    if held_out is not False and fitted is not None:
        samples = fitted.log_density, scores.log_density
        variance = sum(float(sample.var()) / sample.shape[0] for sample in samples)
        more["gap"] = float(samples[0].mean() - samples[1].mean())
        more["gap_error"] = math.sqrt(variance)
    elif held_out is not False and len(trace):
        # The record is in the coordinates of the mixture.
        more["gap"] = float(trace["log_likelihood"][-1] - encoded.mean())
        share = 1.0 / n_scored + 1.0 / min(known, _FEW_RECORDED)
        more["gap_error"] = float(encoded.std()) * math.sqrt(share)
    if calibration is not None and np.isfinite(calibration.distances).any():
        limits, worst = calibration.limit(), int(np.nanargmax(calibration.distances))
        more["worst_column"] = calibration.names[worst]
        more["worst_distance"] = float(calibration.distances[worst])
        more["chance_distance"] = float(limits[worst])
        more["n_off"] = int(np.count_nonzero(calibration.distances > limits))
    if costs is not None and costs.size:
        totals = np.cumsum(np.maximum(costs, 0.0))
        n_merges = int(np.searchsorted(totals, _FREE_MERGES, side="right"))
        more["n_after_merges"] = K - n_merges
        more["merge_cost"] = float(totals[n_merges - 1]) if n_merges else 0.0
    if path is not None:
        more["n_enough"] = enough = path.choose()
        at = int(np.searchsorted(path.n_components, enough))
        more["enough_score"] = float(path.log_likelihood[at])
        more["path_score"] = float(path.log_likelihood[-1])
    validation = float(getattr(estimator, "best_validation_", math.nan))
    return Evidence(
        n_components=K,
        n_live=min(n_live, K),
        n_parameters=int(view.model.n_parameters),
        n_thin=int(np.count_nonzero(table.weight * known < thin_below)),
        thin_below=thin_below,
        n_rows=n_rows,
        n_scored=n_scored,
        n_rows_fit=n_rows_fit,
        held_out=held_out,
        score=float(scores.log_density.mean()),
        standard_error=float(scores.log_density.std() / math.sqrt(n_scored)),
        gain=float(encoded.mean()) - independent_score(view, scores),
        is_gap_scored=fitted is not None,
        outcome=str(getattr(estimator, "outcome_", "")),
        tol=float(getattr(estimator, "tol", math.nan)),
        validation=validation,
        validation_gain=validation - float(getattr(estimator, "start_validation_", math.nan)),
        **more,
    )


def _rise(trace: np.ndarray) -> float:
    """Nats per row and pass by which the last quarter of the record is above the one before."""
    values, passes = trace["log_likelihood"], trace["epoch"]
    n = values.shape[0] // 4
    if n < 1 or not np.isfinite(values[-2 * n :]).all():
        return math.nan
    between = passes[-n:].mean() - passes[-2 * n : -n].mean()
    rise = values[-n:].mean() - values[-2 * n : -n].mean()
    return float(rise / between) if between > 0.0 else math.nan


def independent_score(model: Any, scores: RowScores) -> float:
    """Mean log-density per row of independent columns.

    Each has one distribution, fitted to its cells: normal, Poisson, or shares of levels.
    """
    baselines = {column: part.baseline for part in view_of(model).parts for column in part.columns}
    total = 0.0
    for column, values in enumerate(scores.rows.T):
        seen = values[~np.isnan(values)]
        if seen.size:
            total += baselines.get(column, Part.baseline)(seen)
    return total / len(scores.rows)


@dataclass(frozen=True)
class Finding:
    """One statement about a fit."""

    #: "good": all is well; "note": good to know; "act": there is something to try.
    kind: str
    #: A word or two.
    about: str
    #: The statement, with its numbers.
    text: str
    #: What to try; empty if nothing.
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """All statements about a fit."""

    #: A sentence or two.
    headline: str
    #: What to try next.
    next: str
    #: Names, numbers and what they mean.
    facts: tuple[tuple[str, str, str], ...]
    #: What there is to do comes first.
    findings: tuple[Finding, ...]


#: How a fit ended: a word, a sentence with the passes behind it, and what to give it more of.
_ENDINGS = """
converged | converged | The fit converged{}. |
max_iter|limit of passes|The fit ended at its limit of passes{}. | more passes (a larger max_iter)
max_steps|limit of steps|The fit ended at its limit of steps{}. | more steps (a larger max_steps)
max_time | limit of time | The fit ended at its time limit{}. | more time (a larger max_time)
callback | callback | A callback ended the fit{}. | a fit that runs to its end
interrupted | interrupted | The fit was interrupted{}. | a fit that runs to its end
singular_covariance | singular covariance | The fit ended at a singular covariance{}. |
non_finite | not finite | The fit ended at a value that is not finite{}. |
"""
_NOT_KNOWN = ["", "How the fit ended is not known.", "a fit that runs to its end"]

#: Sentences by case. A paragraph has the case, the kind and the subject; the finding; and what to
#: try, if there is anything. Fields are those of `Evidence` and of `_words`.
_TABLE = """
singular_covariance: act, ending
{how}
Fit again with a larger reg_covar.

non_finite: act, ending
{how}
Look for huge values in the data; rescale or clip them.

converged: good, ending
{how}

rising: act, ending
{how} It still rose by {rise:.2g} nats per pass, more than tol = {tol:g}.
Give it {more_of_it}: the curve still rose.

interrupted: act, ending
{how}
Let the fit run to its end.

flat: good, ending
{how} The curve rose by {rise:.2g} nats per pass at the end.

ended: note, ending
{how}

no gain: act, gain
The mixture scores {gain:+.2f} nats per row compared with independent columns.
Try one component: these columns seem to have little to do with each other.

fitted rows: note, score
These are the rows of the fit, so the score is too good by an unknown amount.
Score rows that were kept apart: pickmix report MODEL OTHER_ROWS --held-out.

few rows: note, score
{rows} too few to compare with the rows of the fit.

overfit: act, overfit
{scores}: {gap:.3f} lower. {n_parameters:,} parameters stand against {n_rows_fit:,.0f} rows.
Try {remedies}: it scores worse on these rows than on those of the fit.

some overfit: note, overfit
{scores}: lower by {gap:.3f}, which is more than chance usually does.

gap not known: note, overfit
{scores}: whether the mixture overfits cannot be told from so few rows.
{score_fit}

no overfit: good, overfit
{scores}: {lower}.

thin: note, components
{n_thin:,} of {n_components:,} components have a weight of fewer than {thin_below:g} rows of the \
fit, too few for the columns they describe.

too many thin: act, components
{n_thin:,} of {n_components:,} components have a weight of fewer than {thin_below:g} rows of the \
fit, too few for the columns they describe.
Try about {n_thick:,} components instead of {n_components:,}: the others explain too few rows.

dead: note, components
{n_dead:,} of {n_components:,} components {explain} no rows.

all live: good, components
All {n_components:,} components explain rows{few}.

off: act, columns
Column {worst_column} is not spread as the mixture says: off by {worst_distance:.3f} where \
chance stays below {chance_distance:.3f}{also}.
Try {more}another kind or scale for column {worst_column} (logarithms, counts, categories).

calibrated: good, columns
All columns are spread as the mixture says, to within {worst_distance:.3f} ({worst_column}); \
chance stays below {chance_distance:.3f}.

more: act, number
Held-out rows score {enough_score:.3f} nats per row with {n_enough:,} components of the merge \
tree, and {path_score:.3f} with all {n_components:,}. The best number is where the path ends.
Try more than {n_components:,} components: held-out rows are best explained by all of them.

fewer: act, number
Held-out rows score {enough_score:.3f} nats per row with {n_enough:,} components of the merge \
tree, and {path_score:.3f} with all {n_components:,}.
Try {n_enough:,} components: model.reduce({n_enough}, rows), with rows of the fit.

enough: good, number
Held-out rows score {enough_score:.3f} nats per row with {n_enough:,} components of the merge \
tree, and {path_score:.3f} with all {n_components:,}.

merges: act, merges
By the merge tree, {n_after_merges:,} components would do: the merges cost at most \
{merge_cost:.2g} nats per row in all.
See whether {n_after_merges:,} components do as well: model.reduce({n_after_merges}), or \
pickmix.choose_n_components(model, held_out_rows).

few merges: note, merges
By the merge tree, {n_after_merges:,} components would do: the merges cost at most \
{merge_cost:.2g} nats per row in all.

no deeper: act, depth
The validation rows score no better than at the Gaussian start ({validation:.3f} nats per row).
A GaussianMixture does as well here, and answers more questions.

deeper: good, depth
Validation rows score {validation:.3f} nats per row, {validation_gain:.3f} above the start.
"""


_HEADLINE = (
    "{n_live:,} of {n_components:,} components are live. On {which_rows} the mixture scores "
    "{score:.3f} nats per row, {size_of_gain:.2f} {side} the score of independent columns. {how}"
)
_FINDINGS: dict[str, list[str]] = {
    case: [*about.split(", "), *sentences]
    for heading, *sentences in (text.split("\n") for text in _TABLE.strip().split("\n\n"))
    for case, about in [heading.split(": ")]
}
_BY_OUTCOME = {
    outcome.strip(): [cell.strip() for cell in cells]
    for outcome, *cells in (line.split("|") for line in _ENDINGS.strip().split("\n"))
}

# When a case holds. Of each group the first one that does speaks; "" says nothing. Comparisons with
# NaN are false.
_CASES: tuple[dict[str, Callable[[Evidence], bool]], ...] = (
    {
        "singular_covariance": lambda e: e.outcome == "singular_covariance",
        "non_finite": lambda e: e.outcome == "non_finite",
        "converged": lambda e: e.outcome == "converged",
        "": lambda e: not e.outcome,
        "rising": lambda e: e.rise > e.tol,
        "interrupted": lambda e: e.outcome == "interrupted",
        "ended": lambda e: math.isnan(e.rise),
        "flat": lambda e: True,
    },
    {"no gain": lambda e: e.gains_nothing},
    {
        "fitted rows": lambda e: e.held_out is False,
        "": lambda e: math.isnan(e.gap),
        "few rows": lambda e: e.n_scored < _FEW_ROWS,
        "overfit": lambda e: e.overfits,
        "some overfit": lambda e: e.gap > 2.0 * e.gap_error,
        "gap not known": lambda e: e.gap + 2.0 * e.gap_error > _LARGE,
        "no overfit": lambda e: True,
    },
    {
        "thin": lambda e: e.is_thin and (bool(e.direction) or e.overfits),
        "too many thin": lambda e: e.is_thin,
        "dead": lambda e: e.n_live < e.n_components,
        "all live": lambda e: e.n_components > 1,
    },
    {
        "calibrated": lambda e: e.worst_distance <= max(_FAR_OFF, e.chance_distance),
        "off": lambda e: not math.isnan(e.worst_distance),
    },
    {
        "more": lambda e: e.direction == "more",
        "fewer": lambda e: e.direction == "fewer" and e.n_enough is not None,
        "enough": lambda e: e.direction == "as many",
        "merges": lambda e: e.direction == "fewer",
        "": lambda e: e.direction == "one" or e.n_after_merges in (None, e.n_components),
        "few merges": lambda e: True,
    },
    {
        "deeper": lambda e: e.validation_gain > 0.0,
        "no deeper": lambda e: not math.isnan(e.validation_gain),
    },
)


def judge(evidence: Evidence) -> Verdict:
    """Put numbers into words.

    >>> from pickmix import GaussianMixture
    >>> from pickmix.inspection.components import component_table
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> mixture = GaussianMixture(2, random_state=0).fit(X)
    >>> judge(gather(mixture, component_table(mixture, X))).headline[:27]
    '2 of 2 components are live.'
    """
    words, findings = _words(evidence), []
    for group in _CASES:
        case = next((case for case, holds in group.items() if holds(evidence)), "")
        if case:
            kind, about, text, *advice = _FINDINGS[case]
            sentences = [sentence.format(**words) for sentence in (text, *advice)]
            findings.append(Finding(kind, about, *sentences))
    findings.sort(key=lambda finding: ("act", "note", "good").index(finding.kind))
    advised = [finding.advice for finding in findings if finding.advice]
    return Verdict(
        headline=_HEADLINE.format(**words),
        next=[*advised, "Nothing in these numbers calls for another fit."][0],
        facts=_facts(evidence),
        findings=tuple(findings),
    )


def _words(e: Evidence) -> dict[str, Any]:
    """Fields of sentences: those of the evidence, and what depends on them."""
    K = e.n_components
    _, how, more_of_it = _BY_OUTCOME.get(e.outcome, _NOT_KNOWN)
    n_dead, others = K - e.n_live, e.n_off - 1
    also = f", and {others:,} more column{' is' if others == 1 else 's are'} off"
    direction = e.direction
    lacks_components = direction == "more" or not (direction or e.overfits or e.is_thin)
    when = "" if e.is_gap_scored else " at its end"
    score_fit = "Score rows of the fit as well: report(X_fit=...)."
    remedies = "simpler covariances, or more rows"
    which_rows = {True: "rows that the fit has not seen", False: "the rows of the fit"}
    return vars(e) | {
        "which_rows": "these rows" if e.held_out is None else which_rows[e.held_out],
        "size_of_gain": abs(e.gain),
        "side": "above" if e.gain >= 0.0 else "below",
        "how": how.format("" if math.isnan(e.passes) else f" after {_passes(e.passes)}"),
        "more_of_it": more_of_it,
        "rows": "1 row is" if e.n_scored == 1 else f"{e.n_scored} rows are",
        "scores": f"Rows of the fit scored {e.score + e.gap:.3f} nats per row{when}, these "
        f"{e.score:.3f} (give or take {e.gap_error:.3f})",
        "remedies": remedies if direction else f"fewer components than {K:,}, {remedies}",
        "score_fit": "" if e.is_gap_scored else score_fit,
        "lower": "no lower" if e.gap <= 0.0 else f"lower by {e.gap:.3f}, as chance may do",
        "n_thick": max(1, K - e.n_thin),
        "n_dead": n_dead,
        "explain": "explains" if n_dead == 1 else "explain",
        "few": f"; {e.n_thin:,} of them fewer than {e.thin_below:g}" if e.n_thin else "",
        "also": also if others > 0 else "",
        "more": "more components, or " if lacks_components else "",
    }


def _passes(number: float) -> str:
    shown = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
    return f"{shown} pass" if shown == "1" else f"{shown} passes"


def _facts(e: Evidence) -> tuple[tuple[str, str, str], ...]:
    held_out = {True: "held out", False: "rows of the fit", None: "not known if held out"}
    rows = f"{e.n_scored:,} row{'' if e.n_scored == 1 else 's'}"
    if e.n_scored < e.n_rows:
        rows = f"{e.n_scored:,} of {e.n_rows:,} rows"
    score = f"± {e.standard_error:.3f}; {rows}, {held_out[e.held_out]}"
    live = f"of {e.n_components:,}; {e.n_parameters:,} parameters"
    facts = [
        ("score, nats per row", f"{e.score:.3f}", score),
        ("gain, nats per row", f"{e.gain:+.2f}", "over independent columns"),
        ("live components", f"{e.n_live:,}", live),
    ]
    if e.outcome:
        course = [] if math.isnan(e.passes) else [_passes(e.passes)]
        if not math.isnan(e.rise):
            verb = "rose" if e.rise >= 0.0 else "fell"
            course.append(f"{verb} by {abs(e.rise):.2g} per pass in its last quarter")
        word = _BY_OUTCOME.get(e.outcome, [e.outcome])[0]
        facts.append(("how it ended", word, "; ".join(course)))
    if not math.isnan(e.worst_distance):
        chance = f"chance stays below {e.chance_distance:.3f}"
        distance = f"{e.worst_column}: distance from the rows; {chance}"
        facts.append(("worst column", f"{e.worst_distance:.3f}", distance))
    return tuple(facts)
