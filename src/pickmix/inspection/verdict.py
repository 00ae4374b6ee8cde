"""Is the fit any good, how did it end, and what to try next: sentences that follow from numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pickmix.inspection.evidence import Evidence

# Differences of log-likelihoods, in nats per row, that are worth a word; and those that two
# standard errors must exclude before a fit is said not to overfit.
_WORTH, _LARGE = 0.05, 0.25
# Distances between distributions that are worth a word, however many rows show them.
_FAR_OFF = 0.03
# Shares of components that are worth a word.
_MANY = 0.2
# Fewer rows say nothing about a fit.
_FEW_ROWS = 30
# The share of components that may be too many where the path over K is said to end too early.
_FEW_LEFT = 0.02

#: How a fit ended: a sentence with the passes behind it, and what to give it more of.
_ENDINGS = {
    "converged": ("The fit converged{}.", ""),
    "max_iter": ("The fit ended at its limit of passes{}.", "more passes (a larger max_iter)"),
    "max_steps": ("The fit ended at its limit of steps{}.", "more steps (a larger max_steps)"),
    "max_time": ("The fit ended at its time limit{}.", "more time (a larger max_time)"),
    "callback": ("A callback ended the fit{}.", "a fit that runs to its end"),
    "interrupted": ("The fit was interrupted{}.", "a fit that runs to its end"),
    "singular_covariance": ("The fit ended at a singular covariance{}.", ""),
    "non_finite": ("The fit ended at a value that is not finite{}.", ""),
}
_ENDING_WORDS = {
    "max_iter": "limit of passes",
    "max_steps": "limit of steps",
    "max_time": "limit of time",
    "singular_covariance": "singular covariance",
    "non_finite": "not finite",
}

#: Findings by rule. A paragraph has the rule, the kind and the subject; what was found; and what to
#: try, if there is anything. Fields are those of `Evidence`, and what the rule adds.
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
Give it {more}: the curve still rose.

interrupted: act, ending
{how}
Let the fit run to its end.

flat: good, ending
{how} The curve rose by {rise:.2g} nats per pass at the end.

ended: note, ending
{how}

no gain: act, gain
The mixture scores {gain:+.2f} nats per row compared with columns on their own.
Try one component: these columns seem to have little to do with each other.

fitted rows: note, score
These are the rows of the fit, so the score is too good by an unknown amount.
Score rows that were kept apart: pickmix report MODEL OTHER_ROWS --held-out.

few rows: note, score
{rows} too few to compare with the rows of the fit.

overfit: act, overfit
{scores}: {gap:.3f} lower. {n_parameters:,} parameters stand against {n_rows_fit:,.0f} rows.
Try {remedies}: it scores worse on these rows than on its own.

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
Try about {n_thick:,} components instead of {n_components:,}: the others have hardly a row.

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
{path} The best number is where the path ends.
Try more than {n_components:,} components: held-out rows ask for as many as there are.

fewer: act, number
{path}
Try {n_enough:,} components: model.reduce({n_enough}, rows), with rows of the fit.

enough: good, number
{path}

merges: act, merges
{merges}
See whether {n_after_merges:,} components do as well: model.reduce({n_after_merges}), or \
pickmix.choose_n_components(model, held_out_rows).

few merges: note, merges
{merges}

no deeper: act, depth
The validation rows score no better than at the Gaussian start ({validation:.3f} nats per row).
A GaussianMixture does as well here, and answers more questions.

deeper: good, depth
Validation rows score {validation:.3f} nats per row, {validation_gain:.3f} above the start.
"""


@dataclass(frozen=True)
class Finding:
    """One thing that the numbers say."""

    #: "good": all is well; "note": good to know; "act": there is something to try.
    kind: str
    #: A word or two.
    about: str
    #: What was found, with its numbers.
    text: str
    #: What to try; empty if nothing.
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a fit."""

    #: A sentence or two.
    headline: str
    #: What to try next.
    next: str
    #: Names, numbers and what they mean.
    facts: tuple[tuple[str, str, str], ...]
    #: What there is to do comes first.
    findings: tuple[Finding, ...]


def judge(evidence: Evidence) -> Verdict:
    """Put numbers into words.

    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.inspection.components import component_table
    >>> from pickmix.inspection.evidence import gather
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> mixture = GaussianMixture(2, random_state=0).fit(X)
    >>> judge(gather(mixture, component_table(mixture, X))).headline[:27]
    '2 of 2 components are live.'
    """
    rules = (_ending, _gain, _gap, _components, _calibration, _number, _start)
    findings = [finding for rule in rules if (finding := rule(evidence)) is not None]
    findings.sort(key=lambda finding: ("act", "note", "good").index(finding.kind))
    advice = next((finding.advice for finding in findings if finding.advice), "")
    return Verdict(
        headline=_headline(evidence),
        next=advice or "Nothing in these numbers calls for another fit.",
        facts=_facts(evidence),
        findings=tuple(findings),
    )


def _read_table(table: str) -> dict[str, Finding]:
    templates = {}
    for paragraph in table.strip().split("\n\n"):
        heading, text, *advice = paragraph.split("\n")
        rule, _, rest = heading.partition(": ")
        kind, about = rest.split(", ")
        templates[rule] = Finding(kind, about, text, *advice)
    return templates


_FINDINGS = _read_table(_TABLE)


def _finding(rule: str, evidence: Evidence, **more: Any) -> Finding:
    template, fields = _FINDINGS[rule], vars(evidence) | more
    text, advice = template.text.format(**fields), template.advice.format(**fields)
    return Finding(template.kind, template.about, text, advice)


def _headline(evidence: Evidence) -> str:
    gain = evidence.gain
    side = "above" if gain >= 0.0 else "below"
    rows = "these rows"
    if evidence.held_out is not None:
        rows = "rows that the fit has not seen" if evidence.held_out else "the rows of the fit"
    return (
        f"{evidence.n_live:,} of {evidence.n_components:,} components are live. On {rows} the "
        f"mixture scores {evidence.score:.3f} nats per row, {abs(gain):.2f} {side} what the "
        f"columns score on their own. {_how_it_ended(evidence)}"
    )


def _how_it_ended(evidence: Evidence) -> str:
    passes = "" if math.isnan(evidence.passes) else f" after {_passes(evidence.passes)}"
    if evidence.outcome not in _ENDINGS:
        return "How the fit ended is not known."
    return _ENDINGS[evidence.outcome][0].format(passes)


def _passes(number: float) -> str:
    shown = f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"
    return f"{shown} pass" if shown == "1" else f"{shown} passes"


def _facts(evidence: Evidence) -> tuple[tuple[str, str, str], ...]:
    seen = {True: "held out", False: "rows of the fit", None: "not known if held out"}
    looked = f"{evidence.n_looked_at:,} row{'' if evidence.n_looked_at == 1 else 's'}"
    if evidence.n_looked_at < evidence.n_rows:
        looked = f"{evidence.n_looked_at:,} of {evidence.n_rows:,} rows"
    facts = [
        (
            "score, nats per row",
            f"{evidence.score:.3f}",
            f"± {evidence.standard_error:.3f}; {looked}, {seen[evidence.held_out]}",
        ),
        ("gain, nats per row", f"{evidence.gain:+.2f}", "over columns on their own"),
        (
            "live components",
            f"{evidence.n_live:,}",
            f"of {evidence.n_components:,}; {evidence.n_parameters:,} parameters",
        ),
    ]
    if evidence.outcome:
        course = [] if math.isnan(evidence.passes) else [_passes(evidence.passes)]
        if not math.isnan(evidence.rise):
            way = "rose" if evidence.rise >= 0.0 else "fell"
            course.append(f"{way} by {abs(evidence.rise):.2g} per pass in its last quarter")
        word = _ENDING_WORDS.get(evidence.outcome, evidence.outcome)
        facts.append(("how it ended", word, "; ".join(course)))
    if not math.isnan(evidence.worst_distance):
        facts.append(
            (
                "worst column",
                f"{evidence.worst_distance:.3f}",
                f"{evidence.worst_column}: distance from the rows; chance stays below "
                f"{evidence.chance_distance:.3f}",
            )
        )
    return tuple(facts)


def _ending(evidence: Evidence) -> Finding | None:
    outcome, rise = evidence.outcome, evidence.rise
    if not outcome:
        return None
    how = _how_it_ended(evidence)
    if outcome in ("singular_covariance", "non_finite", "converged"):
        return _finding(outcome, evidence, how=how)
    if not math.isnan(rise) and rise > evidence.tol:
        more = _ENDINGS[outcome][1] if outcome in _ENDINGS else "a fit that runs to its end"
        return _finding("rising", evidence, how=how, more=more)
    if outcome == "interrupted":
        return _finding("interrupted", evidence, how=how)
    return _finding("ended" if math.isnan(rise) else "flat", evidence, how=how)


def _gains_nothing(evidence: Evidence) -> bool:
    enough = evidence.n_looked_at >= _FEW_ROWS and evidence.n_components > 1
    return enough and evidence.gain <= _WORTH


def _gain(evidence: Evidence) -> Finding | None:
    return _finding("no gain", evidence) if _gains_nothing(evidence) else None


def _overfits(evidence: Evidence) -> bool:
    """Whether these rows score worse than rows of the fit by more than chance does."""
    if evidence.n_looked_at < _FEW_ROWS or math.isnan(evidence.gap):
        return False
    return evidence.gap > max(_WORTH, 3.0 * evidence.gap_error)


def _gap(evidence: Evidence) -> Finding | None:
    if evidence.held_out is False:
        return _finding("fitted rows", evidence)
    gap, error = evidence.gap, evidence.gap_error
    if math.isnan(gap):
        return None
    if evidence.n_looked_at < _FEW_ROWS:
        rows = "1 row is" if evidence.n_looked_at == 1 else f"{evidence.n_looked_at} rows are"
        return _finding("few rows", evidence, rows=rows)
    when = "" if evidence.is_gap_scored else " at its end"
    scores = (
        f"Rows of the fit scored {evidence.score + gap:.3f} nats per row{when}, these "
        f"{evidence.score:.3f} (give or take {error:.3f})"
    )
    if _overfits(evidence):
        remedies = "simpler covariances, or more rows"
        if _direction(evidence) == "":
            remedies = f"fewer components than {evidence.n_components:,}, {remedies}"
        return _finding("overfit", evidence, scores=scores, remedies=remedies)
    if gap > 2.0 * error:
        return _finding("some overfit", evidence, scores=scores)
    if gap + 2.0 * error > _LARGE:
        advice = (
            "" if evidence.is_gap_scored else "Score rows of the fit as well: report(X_fit=...)."
        )
        return _finding("gap not known", evidence, scores=scores, score_fit=advice)
    lower = "no lower" if gap <= 0.0 else f"lower by {gap:.3f}, as chance may do"
    return _finding("no overfit", evidence, scores=scores, lower=lower)


def _direction(evidence: Evidence) -> str:
    """Which number of components is advised: "one", "more", "fewer", "as many", or none ("").

    Held-out rows decide if there are any, then merges that cost nothing. All advice follows this,
    so that no two findings contradict each other.
    """
    K, enough, fewer = evidence.n_components, evidence.n_enough, evidence.n_after_merges
    if _gains_nothing(evidence):
        return "one"
    if enough is not None:
        if enough > (1.0 - _FEW_LEFT) * K:
            return "more"
        return "fewer" if enough < (1.0 - _MANY) * K else "as many"
    return "fewer" if fewer is not None and K - fewer > _MANY * K else ""


def _components(evidence: Evidence) -> Finding | None:
    n, K = evidence.n_thin, evidence.n_components
    if n > _MANY * K:
        decided = _direction(evidence) != "" or _overfits(evidence)
        rule = "thin" if decided else "too many thin"
        return _finding(rule, evidence, n_thick=max(1, K - n))
    if evidence.n_live < K:
        n_dead = K - evidence.n_live
        return _finding(
            "dead", evidence, n_dead=n_dead, explain="explains" if n_dead == 1 else "explain"
        )
    few = f"; {n:,} of them fewer than {evidence.thin_below:g}" if n else ""
    return _finding("all live", evidence, few=few) if K > 1 else None


def _calibration(evidence: Evidence) -> Finding | None:
    distance = evidence.worst_distance
    if math.isnan(distance):
        return None
    if distance <= max(_FAR_OFF, evidence.chance_distance):
        return _finding("calibrated", evidence)
    others = evidence.n_off - 1
    also = f", and {others:,} more column{' is' if others == 1 else 's are'} off"
    too_thin = evidence.n_thin > _MANY * evidence.n_components
    undecided = _direction(evidence) == "" and not _overfits(evidence) and not too_thin
    more = "more components, or " if undecided or _direction(evidence) == "more" else ""
    return _finding("off", evidence, also=also if others > 0 else "", more=more)


def _number(evidence: Evidence) -> Finding | None:
    """How many components there should be: by held-out rows, or else by what merges cost."""
    direction, fewer, K = _direction(evidence), evidence.n_after_merges, evidence.n_components
    if direction == "one":
        return None
    if evidence.n_enough is not None:
        path = (
            f"Held-out rows score {evidence.enough_score:.3f} nats per row with "
            f"{evidence.n_enough:,} components of the merge tree, and {evidence.path_score:.3f} "
            f"with all {K:,}."
        )
        rule = {"more": "more", "fewer": "fewer", "as many": "enough"}[direction]
        return _finding(rule, evidence, path=path)
    if fewer is None or fewer >= K:
        return None
    merges = (
        f"By the merge tree, {fewer:,} components would do: the merges cost at most "
        f"{evidence.merge_cost:.2g} nats per row in all."
    )
    return _finding("merges" if direction == "fewer" else "few merges", evidence, merges=merges)


def _start(evidence: Evidence) -> Finding | None:
    if math.isnan(evidence.validation_gain):
        return None
    return _finding("deeper" if evidence.validation_gain > 0.0 else "no deeper", evidence)
