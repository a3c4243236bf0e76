"""A ranking in a few sentences: what to take, how sure that is, and what it costs in accuracy."""

from __future__ import annotations

from efficient_attn.analysis.choice import AccuracyEvidence, Choice, Rejection, advised
from efficient_attn.analysis.ratios import Ratio
from efficient_attn.analysis.request import Request
from efficient_attn.analysis.terminal import number
from efficient_attn.bench.intervals import Interval


def verdict(ranked: list[Choice], rejections: list[Rejection], request: Request) -> str:
    """Says "Stay with full" whenever nothing ranked is shown to be faster than full."""
    if not ranked:
        reasons = "; ".join(f"{item.contestant} {item.reason}" for item in rejections)
        return f"Nothing fits: {reasons}."
    best = ranked[0]
    sentences = [_lead(best, ranked, rejections)]
    if request.needs:
        sentences += _needs(best, ranked, request)
    stay = advised(ranked)
    tied = [choice.contestant for choice in ranked if choice.tied and choice is not stay]
    if tied:
        sentences.append(
            f"{best.contestant} ties with {_listed(tied)}: "
            f"{'that ratio does' if len(tied) == 1 else 'those ratios do'} not exclude 1."
        )
    if stay is best and best.variant != "full":
        sentences += _prices(best)
        if _loses(best):
            sentences.append(_lossless(ranked))
    if not best.measured:
        sentences.append(f"This is {best.evidence} ({best.fit}), not measured.")
    return " ".join(sentences)


def _lead(best: Choice, ranked: list[Choice], rejections: list[Rejection]) -> str:
    full = next((choice for choice in ranked if choice.contestant == "full"), None)
    if best.variant == "full":
        name = "" if best.contestant == "full" else f" (entered as {best.contestant})"
        if len(ranked) == 1:
            return f"Stay with full{name}: nothing else fits."
        if any(not choice.enough for choice in ranked):
            return f"Stay with full{name}: nothing faster is shown to keep enough of what matters."
        return f"Stay with full{name}: nothing ranked here is faster."
    if full is None or best.to_full is None:
        out = next((item.reason for item in rejections if item.contestant == "full"), None)
        why = f"full is ruled out: it {out}" if out else "there is no evidence on full"
        return f"Take {best.contestant}: the fastest that fits; {why}."
    if advised(ranked) is full:
        return (
            f"Stay with full: {best.contestant} comes first with {_times(best.to_full)} its time, "
            "which does not exclude equal speed."
        )
    if full.tied:
        return (
            f"Take {best.contestant}: it is predicted to need {_times(best.to_full)} the time of "
            "full, which is likely but not certain (--measure tells)."
        )
    return f"Take {best.contestant}: it needs {_times(best.to_full)} the time of full."


def _needs(best: Choice, ranked: list[Choice], request: Request) -> list[str]:
    """What the first choice keeps, and what the faster ones do that do not keep enough."""
    listed = _listed(list(request.needs))
    if not best.enough:
        sentences = [f"Nothing that fits is shown to keep {request.tolerance:.0%} in {listed}."]
        return [*sentences, f"{best.contestant} {_keeps(best)}."]
    sentences = [] if best.exact else [f"Of full's lead in {listed} it {_keeps(best)}."]
    faster = [
        f"{choice.contestant} ({_keeps(choice)})"
        for choice in ranked
        if not choice.enough and choice.to_best is not None and choice.to_best.high < 1
    ]
    if faster:
        sentences.append(f"Faster, but not shown to keep enough: {_listed(faster)}.")
    return sentences


def _keeps(choice: Choice) -> str:
    if choice.kept is None:
        return "was not asked what it keeps"
    if choice.kept.share is None:
        unknown = [one.capability for one in choice.kept.by_capability if one.share is None]
        return f"was not measured in {_listed(unknown)}"
    share = choice.kept.share
    return f"keeps {share.value:.0%} ({share.low:.0%}–{share.high:.0%})"


def _loses(choice: Choice) -> bool:
    prices = [evidence.score.price for evidence in choice.accuracy]
    return any(price is not None and price.known and price.low > 0 for price in prices)


def _lossless(ranked: list[Choice]) -> str:
    """The fastest choice above full whose accuracy was compared and showed no loss."""
    for choice in ranked:
        if choice.variant == "full":
            break
        prices = [evidence.score.price for evidence in choice.accuracy]
        if prices and all(price and price.known and price.low <= 0 for price in prices):
            times = f" with {_times(choice.to_full)} the time of full" if choice.to_full else ""
            return f"The fastest without a shown loss is {choice.contestant}{times}."
    return "Nothing faster than full comes without a loss or an untested accuracy."


def _prices(choice: Choice) -> list[str]:
    if not choice.accuracy:
        return ["Its accuracy was not measured."]
    return [_price(evidence) for evidence in choice.accuracy]


def _price(evidence: AccuracyEvidence) -> str:
    score, note = evidence.score, f" ({evidence.note})" if evidence.note else ""
    if score.value is None:
        return f"On {evidence.task} it gave no score: {score.status}."
    if score.price is None:
        reached = f"{evidence.metric} {score.value.value:.3g}"
        return f"On {evidence.task} it reached {reached}{note}; full has no score there."
    price, metric = score.price, evidence.metric
    if not price.known:
        word = "worse" if price.value > 0 else "better"
        amount = f"{abs(price.value):.3g}"
        return f"On {evidence.task} its {metric} is {amount} {word} than full's{note}."
    if price.low > 0:
        return f"Price on {evidence.task}: {metric} worse than full's by {_span(price)}{note}."
    if price.high < 0:
        gain = Interval(-price.value, -price.high, -price.low, price.n, price.confidence)
        return f"On {evidence.task} its {metric} is better than full's by {_span(gain)}{note}."
    return (
        f"On {evidence.task} no difference from full is shown "
        f"({metric} worse by {_span(price)}){note}."
    )


def _times(ratio: Ratio) -> str:
    ends = f" ({number(ratio.low)}–{number(ratio.high)})" if ratio.known else ""
    return f"{number(ratio.value)}×{ends}"


def _span(interval: Interval) -> str:
    return f"{interval.value:.3g} ({interval.low:.3g} to {interval.high:.3g})"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
