"""Is the fit any good, how did it end, and what to try next: sentences that follow from numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pickmix.diagnostics.calibration import Calibration
from pickmix.diagnostics.component_table import ComponentTable
from pickmix.diagnostics.evidence import Evidence, gather
from pickmix.estimators.path import ComponentPath

# Differences of log-likelihoods, in nats per row, that are worth a word.
_WORTH = 0.05
# Distances between distributions that are worth a word, however many rows show them.
_FAR_OFF = 0.03
# Shares of components that are worth a word.
_MANY = 0.2
# Fewer rows say nothing about a fit.
_FEW_ROWS = 30
# The share of components that may be too many where the path over K is said to end too early.
_FEW_LEFT = 0.02
_ENDINGS = {
    "max_iter": "limit of passes",
    "max_steps": "limit of steps",
    "max_time": "limit of time",
    "singular_covariance": "singular covariance",
    "non_finite": "not finite",
}


@dataclass(frozen=True)
class Finding:
    """One thing that the numbers say.

    Attributes
    ----------
    kind : {"good", "note", "act"}
        Whether all is well, it is good to know, or there is something to try.
    about : str
        A word or two.
    text : str
        What was found, with its numbers.
    advice : str
        What to try; empty if nothing.
    """

    kind: str
    about: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the numbers say of a fit.

    Attributes
    ----------
    headline : str
        A sentence or two.
    next : str
        What to try next.
    facts : tuple of (str, str, str)
        A name, a number and what it means.
    findings : tuple of Finding
        What there is to do comes first.
    """

    headline: str
    next: str
    facts: tuple[tuple[str, str, str], ...]
    findings: tuple[Finding, ...]


def verdict(
    model: Any,
    table: ComponentTable,
    *,
    calibration: Calibration | None = None,
    costs: np.ndarray | None = None,
    path: ComponentPath | None = None,
    held_out: bool | None = None,
    n_rows: int | None = None,
) -> Verdict:
    """Judge a fitted mixture by rows that were looked at.

    Parameters
    ----------
    model : fitted estimator of pickmix
    table : ComponentTable
        Its components, by N rows.
    calibration : Calibration, default=None
    costs : (K - 1,) array, default=None
        Nats per row that merges cost at most, as `merge_tree().costs`.
    path : ComponentPath, default=None
        How held-out rows score by the number of components.
    held_out : bool, default=None
        Whether the fit has not seen the rows. None: it has if there are as many as it had.
    n_rows : int, default=None
        How many rows there are, if those looked at are a sample.

    Returns
    -------
    verdict : Verdict

    Examples
    --------
    >>> import numpy as np
    >>> from pickmix import GaussianMixture
    >>> from pickmix.diagnostics.component_table import component_table
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> mixture = GaussianMixture(2, random_state=0).fit(X)
    >>> found = verdict(mixture, component_table(mixture, X))
    >>> found.headline.startswith("2 of 2 components are live")
    True
    """
    evidence = gather(
        model,
        table,
        calibration=calibration,
        costs=costs,
        path=path,
        held_out=held_out,
        n_rows=n_rows,
    )
    return judge(evidence)


def judge(evidence: Evidence) -> Verdict:
    """Put numbers into words."""
    found = [
        finding
        for rule in (_ending, _gain, _gap, _components, _calibration, _number, _start)
        if (finding := rule(evidence)) is not None
    ]
    order = {"act": 0, "note": 1, "good": 2}
    found.sort(key=lambda finding: order[finding.kind])
    advice = next((finding.advice for finding in found if finding.advice), "")
    return Verdict(
        headline=_headline(evidence),
        next=advice or "Nothing in these numbers calls for another fit.",
        facts=_facts(evidence),
        findings=tuple(found),
    )


def _headline(evidence: Evidence) -> str:
    gain = evidence.gain
    side = "above" if gain >= 0.0 else "below"
    rows = {True: "rows that the fit has not seen", False: "the rows of the fit"}.get(
        evidence.held_out,  # type: ignore[arg-type]
        "these rows",
    )
    return (
        f"{evidence.n_live:,} of {evidence.n_components:,} components are live. On {rows} the "
        f"mixture scores {evidence.score:.3f} nats per row, {abs(gain):.2f} {side} what the "
        f"columns score on their own. {_how_it_ended(evidence)}"
    )


def _how_it_ended(evidence: Evidence) -> str:
    passes = "" if math.isnan(evidence.passes) else f" after {_passes(evidence.passes)}"
    said = {
        "converged": f"The fit converged{passes}.",
        "max_iter": f"The fit ended at its limit of passes{passes}.",
        "max_steps": f"The fit ended at its limit of steps{passes}.",
        "max_time": f"The fit ended at its time limit{passes}.",
        "callback": f"A callback ended the fit{passes}.",
        "interrupted": f"The fit was interrupted{passes}.",
        "singular_covariance": f"The fit ended at a singular covariance{passes}.",
        "non_finite": f"The fit ended at a value that is not finite{passes}.",
    }
    return said.get(evidence.outcome, "How the fit ended is not known.")


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
        rise = ""
        if not math.isnan(evidence.rise):
            way = "rose" if evidence.rise >= 0.0 else "fell"
            rise = f"{way} by {abs(evidence.rise):.2g} per pass in its last quarter"
        shown = _ENDINGS.get(evidence.outcome, evidence.outcome)
        if not math.isnan(evidence.passes):
            rise = f"{_passes(evidence.passes)}{'; ' + rise if rise else ''}"
        facts.append(("how it ended", shown, rise))
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
    if outcome == "singular_covariance":
        return Finding("act", "ending", how, "Fit again with a larger reg_covar.")
    if outcome == "non_finite":
        return Finding(
            "act", "ending", how, "Look for huge values in the data; rescale or clip them."
        )
    if outcome == "converged":
        return Finding("good", "ending", how)
    more = {
        "max_iter": "more passes (a larger max_iter)",
        "max_steps": "more steps (a larger max_steps)",
        "max_time": "more time (a larger max_time)",
    }.get(outcome, "a fit that runs to its end")
    if not math.isnan(rise) and rise > evidence.tol:
        text = f"{how} It still rose by {rise:.2g} nats per pass, more than tol = {evidence.tol:g}."
        return Finding("act", "ending", text, f"Give it {more}: the curve still rose.")
    if outcome == "interrupted":
        return Finding("act", "ending", how, "Let the fit run to its end.")
    flat = "" if math.isnan(rise) else f" The curve rose by {rise:.2g} nats per pass at the end."
    return Finding("good" if flat else "note", "ending", how + flat)


def _gain(evidence: Evidence) -> Finding | None:
    if evidence.n_looked_at < _FEW_ROWS or evidence.gain > _WORTH or evidence.n_components == 1:
        return None
    return Finding(
        "act",
        "gain",
        f"The mixture scores {evidence.gain:+.2f} nats per row compared with columns on their own.",
        "Try one component: these columns seem to have little to do with each other.",
    )


def _gap(evidence: Evidence) -> Finding | None:
    if evidence.held_out is False:
        return Finding(
            "note",
            "score",
            "These are the rows of the fit, so the score is too good by an unknown amount.",
            "Score rows that were kept apart: pickmix report MODEL OTHER_ROWS --held-out.",
        )
    if math.isnan(evidence.gap):
        return None
    if evidence.n_looked_at < _FEW_ROWS:
        rows = "1 row is" if evidence.n_looked_at == 1 else f"{evidence.n_looked_at} rows are"
        return Finding("note", "score", f"{rows} too few to compare with the rows of the fit.")
    numbers = (
        f"Rows of the fit scored {evidence.fitted_score:.3f} nats per row at its end, these "
        f"{evidence.fitted_score - evidence.gap:.3f} (give or take {evidence.gap_error:.3f})"
    )
    if evidence.gap > max(_WORTH, 3.0 * evidence.gap_error):
        return Finding(
            "act",
            "overfit",
            f"{numbers}: {evidence.gap:.3f} lower. {evidence.n_parameters:,} parameters stand "
            f"against {evidence.n_rows_fit:,.0f} rows.",
            f"Try fewer components than {evidence.n_components:,}, simpler covariances, or more "
            "rows: it scores worse on these rows than on its own.",
        )
    lower = "no lower" if evidence.gap <= 0.0 else f"lower by {evidence.gap:.3f}, as chance may do"
    return Finding("good", "overfit", f"{numbers}: {lower}.")


def _components(evidence: Evidence) -> Finding | None:
    n, K = evidence.n_thin, evidence.n_components
    if n > _MANY * K:
        return Finding(
            "act",
            "components",
            f"{n:,} of {K:,} components have a weight of fewer than {evidence.thin_below:g} rows "
            "of the fit, too few for the columns they describe.",
            f"Try about {max(1, K - n):,} components instead of {K:,}: the others have hardly a "
            "row.",
        )
    if evidence.n_live < K:
        n_dead = K - evidence.n_live
        text = f"{n_dead:,} of {K:,} components explain{'s' if n_dead == 1 else ''} no rows."
        return Finding("note", "components", text)
    text = f"All {K:,} components explain rows"
    if n:
        text += f"; {n:,} of them fewer than {evidence.thin_below:g}"
    return Finding("good", "components", text + ".") if K > 1 else None


def _calibration(evidence: Evidence) -> Finding | None:
    distance, chance = evidence.worst_distance, evidence.chance_distance
    if math.isnan(distance):
        return None
    column = evidence.worst_column
    if distance > max(_FAR_OFF, chance):
        others = evidence.n_off - 1
        also = ""
        if others > 0:
            also = f", and {others:,} more column{' is' if others == 1 else 's are'} off"
        return Finding(
            "act",
            "columns",
            f"Column {column} is not spread as the mixture says: off by "
            f"{distance:.3f} where chance stays below {chance:.3f}{also}.",
            f"Try more components, or another kind or scale for column {column} (logarithms, "
            "counts, categories).",
        )
    text = (
        f"All columns are spread as the mixture says, to within {distance:.3f} "
        f"({column}); chance stays below {chance:.3f}."
    )
    return Finding("good", "columns", text)


def _number(evidence: Evidence) -> Finding | None:
    """How many components there should be: by held-out rows, or else by what merges cost."""
    enough, K = evidence.n_enough, evidence.n_components
    if enough is None:
        return _merges(evidence)
    text = (
        f"Held-out rows score {evidence.enough_score:.3f} nats per row with {enough:,} components "
        f"of the merge tree, and {evidence.path_score:.3f} with all {K:,}."
    )
    if enough > (1.0 - _FEW_LEFT) * K:
        return Finding(
            "act",
            "number",
            f"{text} The best number is where the path ends.",
            f"Try more than {K:,} components: held-out rows ask for as many as there are.",
        )
    if enough < (1.0 - _MANY) * K:
        advice = f"Try {enough:,} components: model.reduce({enough}, rows), with rows of the fit."
        return Finding("act", "number", text, advice)
    return Finding("good", "number", text)


def _merges(evidence: Evidence) -> Finding | None:
    fewer = evidence.n_after_merges
    if fewer is None or fewer >= evidence.n_components:
        return None
    text = (
        f"By the merge tree, {fewer:,} components would do: the merges cost at most "
        f"{evidence.merge_cost:.2g} nats per row in all."
    )
    if evidence.n_components - fewer <= _MANY * evidence.n_components:
        return Finding("note", "merges", text)
    advice = (
        f"See whether {fewer:,} components do as well: model.reduce({fewer}), or "
        "pickmix.choose_n_components(model, held_out_rows)."
    )
    return Finding("act", "merges", text, advice)


def _start(evidence: Evidence) -> Finding | None:
    gain = evidence.validation_gain
    if math.isnan(gain):
        return None
    if gain <= 0.0:
        return Finding(
            "act",
            "depth",
            "The validation rows score no better than at the Gaussian start "
            f"({evidence.validation:.3f} nats per row).",
            "A GaussianMixture does as well here, and answers more questions.",
        )
    return Finding(
        "good",
        "depth",
        f"Validation rows score {evidence.validation:.3f} nats per row, {gain:.3f} above the "
        "start.",
    )
