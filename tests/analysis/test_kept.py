"""Shares of full's lead that are kept: by the definition, with its baselines and its unknowns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from synthetic import cells, scores

from efficient_attn.analysis.accuracy import task_scores
from efficient_attn.analysis.kept import Kept, evidence_of, kept
from efficient_attn.analysis.pick import Ranking, Request, pick
from efficient_attn.bench.record import Record


def trained(
    capability: str = "recall", values: dict[str, float] | None = None, **fields: Any
) -> list[Record]:
    """Accuracy records of a task with a capability; chance is 0.1."""
    records = scores(values, spread=0.001, **{"length": 512, **fields})
    for record in records:
        record.request["task"]["capability"] = capability
    return records


def told(records: list[Record], variant: str, reach: float = 1e9, **request) -> Kept:
    return kept(
        variant,
        {},
        reach,
        exact=False,
        pattern="causal_self",
        needs=request.pop("needs", {"recall": 1.0}),
        tolerance=0.95,
        evidence=evidence_of(task_scores(records)),
    )


def test_the_share_is_that_of_the_lead_over_chance() -> None:
    found = told(trained(values={"full": 0.9, "performer": 0.5}), "performer").share
    assert found is not None
    assert found.value == pytest.approx((0.5 - 0.1) / (0.9 - 0.1), abs=0.01)
    assert found.low < found.value < found.high


def test_the_model_without_mixing_replaces_chance() -> None:
    values = {"full": 0.9, "performer": 0.7, "no_mixing": 0.5}
    found = told(trained(values=values), "performer").share
    assert found is not None
    assert found.value == pytest.approx((0.7 - 0.5) / (0.9 - 0.5), abs=0.02)


def test_lower_may_be_better() -> None:
    records = trained(
        values={"full": 2.0, "performer": 3.0},
        higher_is_better=False,
        baselines={"chance": 8.0},
    )
    found = told(records, "performer").share
    assert found is not None
    assert found.value == pytest.approx(5 / 6, abs=0.01)


def test_shares_end_at_none_and_all() -> None:
    records = trained(values={"full": 0.9, "performer": 0.99, "local_window": 0.01})
    assert told(records, "performer").share.value == 1.0  # type: ignore[union-attr]
    assert told(records, "local_window").share.value == 0.0  # type: ignore[union-attr]


def test_a_task_where_full_leads_nobody_says_nothing() -> None:
    assert told(trained(values={"full": 0.1, "performer": 0.1}), "performer").share is None
    assert told(scores(), "performer").share is None  # no capability in these records


def test_weights_weigh_and_one_unknown_makes_all_unknown() -> None:
    records = trained(values={"full": 0.9, "performer": 0.5})
    records += trained("locality", {"full": 0.9, "performer": 0.9}, task="byte_lm")
    both = told(records, "performer", needs={"recall": 1.0, "locality": 3.0})
    assert both.share is not None
    assert both.share.value == pytest.approx((0.5 + 3 * 1.0) / 4, abs=0.01)
    assert not both.enough
    unknown = told(records, "performer", needs={"recall": 1.0, "2d": 1.0})
    assert unknown.share is None
    assert not unknown.enough
    assert [one.note for one in unknown.by_capability if one.share is None] == ["not measured"]


def test_a_larger_knob_in_training_does_not_vouch_for_a_smaller_one() -> None:
    records = trained(values={"full": 0.9, "local_window": 0.9}, options={"window": 16}, length=64)
    assert told(records, "local_window", reach=17).share is not None
    assert told(records, "local_window", reach=16).share is None


def test_a_window_over_the_whole_sequence_says_nothing_of_windows() -> None:
    records = trained(values={"full": 0.9, "local_window": 0.9}, options={"window": 64}, length=64)
    assert told(records, "local_window").share is None


def needing(records: list[Record], **more) -> Ranking:
    needs = more.pop("needs", {"recall": 1.0})
    return pick(records, Request(1024, pattern="causal_self", needs=needs, **more))


def test_those_that_keep_enough_stand_first_and_the_faster_ones_after_them() -> None:
    records = cells() + trained(
        values={"full": 0.9, "performer": 0.89, "local_window": 0.3, "no_mixing": 0.2}
    )
    ranking = needing(records)
    names = [choice.contestant for choice in ranking.choices]
    assert names[:3] == ["performer", "full", "full_naive"]
    assert set(names[3:]) == {"local_window", "shifted_window"}
    assert all(choice.enough for choice in ranking.choices[:3])
    assert not any(choice.tied or choice.enough for choice in ranking.choices[3:])
    assert ranking.verdict.startswith("Take performer")
    assert "local_window (keeps 14%" in ranking.verdict
    assert "shifted_window (was not measured in recall)" in ranking.verdict


def test_full_is_kept_when_nothing_faster_keeps_enough() -> None:
    ranking = needing(cells() + trained(values={"full": 0.9, "performer": 0.5}))
    assert ranking.choices[0].contestant == "full"
    assert ranking.verdict.startswith("Stay with full: nothing faster is shown to keep enough")
    loose = needing(cells() + trained(values={"full": 0.9, "performer": 0.5}), tolerance=0.4)
    assert loose.choices[0].contestant == "performer"


def test_the_baseline_is_never_a_choice() -> None:
    records = cells(contestants=("full", "performer", "no_mixing"))
    names = [choice.contestant for choice in pick(records, Request(1024)).choices]
    assert sorted(names) == ["full", "performer"]


def test_needs_choose_the_smallest_knob_that_evidence_vouches_for() -> None:
    """Windows of 8 to 128 were timed; 16 kept all, 8 did not."""
    records = [one for one in cells() if one.contestant == "full"]
    for width in (8, 16, 64, 128):
        for one in cells(contestants=("local_window",)):
            ms = [sample * (1 + width / 64) for sample in one.result["samples_ms"]]
            result = {**one.result, "samples_ms": ms}
            options = {"window": width, "global_tokens": 0}
            records.append(replace(one, options=options, result=result, key=f"{one.key}{width}"))
    records += trained(values={"full": 0.9})
    for width, value in ((8, 0.3), (16, 0.9)):
        records += trained(values={"local_window": value}, options={"window": width})
    ranking = pick(records, Request(3000, pattern="causal_self", needs={"recall": 1.0}))
    best = ranking.choices[0]
    assert best.variant == "local_window"
    assert best.options["window"] == 16
    assert best.evidence == "extrapolated"
    assert best.kept is not None
    assert best.kept.share is not None
    assert best.kept.share.value > 0.95
    assert "window=16" in best.snippet
    assert "attention.local_window.window=16" in best.overrides


def test_capabilities_are_those_of_the_tasks() -> None:
    from efficient_attn.analysis.request import CAPABILITIES
    from efficient_attn.tasks.task import CAPABILITIES as TASKS

    assert CAPABILITIES == TASKS


@pytest.mark.parametrize(
    ("needs", "words"),
    [({"memory": 1.0}, "not one of recall"), ({"recall": 0.0}, "greater than 0")],
)
def test_needs_must_be_known_and_weigh_something(needs: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Request(64, needs=needs)
