"""What changed between two folders: injected changes are found, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from synthetic import ENVIRONMENT, accuracy, cells, cost, scores

from efficient_attn.analysis.compare import Change, Comparison, compare
from efficient_attn.bench.record import Record, digest

OTHER = {**ENVIRONMENT, "cpu": "Another CPU", "device_name": "Another CPU"}


def rerun(
    records: Iterable[Record],
    slower: dict[str, float] | None = None,
    larger: dict[str, float] | None = None,
    seed: int = 1,
    noise: float = 0.01,
) -> list[Record]:
    """The same questions answered by later code, in cells of their own, with noise of their own."""
    again = []
    for record in records:
        result = dict(record.result)
        if record.measure == "cost" and record.ok:
            rng = np.random.default_rng([seed, *record.key.encode()])
            factor = (slower or {}).get(record.contestant, 1.0)
            factors = factor * np.exp(rng.normal(0, noise, len(result["samples_ms"])))
            result["samples_ms"] = list(np.array(result["samples_ms"]) * factors)
            share = (larger or {}).get(record.contestant, 1.0)
            result["peak_tensor_bytes"] = int(result["peak_tensor_bytes"] * share)
        again.append(
            replace(
                record,
                result=result,
                key=digest(["later", record.key]),
                cell=f"later-{record.cell}",
                created="2026-02-01T00:00:00",
            )
        )
    return again


def before() -> list[Record]:
    return cells((256, 512), noise=0.01)


def found(comparison: Comparison, verdict: str) -> set[tuple[str, str]]:
    return {
        (change.quantity, change.place.contestant)
        for change in comparison.changes
        if change.verdict == verdict
    }


def only(comparison: Comparison, quantity: str) -> Change:
    (change,) = [change for change in comparison.changes if change.quantity == quantity]
    return change


def test_a_folder_beside_itself_is_the_same() -> None:
    records = before() + scores()
    for relative_to in (None, "full"):
        comparison = compare(records, records, relative_to=relative_to)
        assert {change.verdict for change in comparison.changes} == {"same"}
        assert not comparison.worse
        assert comparison.only_in_a == comparison.only_in_b == ()
        assert comparison.notes == ()


def test_injected_changes_of_time_and_memory_are_found() -> None:
    old = before()
    new = rerun(old, slower={"performer": 2.0, "linformer": 0.5}, larger={"shifted_window": 1.2})
    comparison = compare(old, new)
    assert comparison.worse
    assert found(comparison, "worse") == {("time", "performer"), ("memory", "shifted_window")}
    assert found(comparison, "better") == {("time", "linformer")}
    slower = [change for change in comparison.changes if change.place.contestant == "performer"]
    for change in slower:
        if change.quantity == "time":
            assert change.ratio is not None
            assert change.ratio.encloses(2.0)
    assert comparison.changes[0].verdict == "worse"


def test_swapping_the_folders_swaps_the_verdicts() -> None:
    old = before()
    new = rerun(old, slower={"performer": 2.0}, larger={"full": 1.5})
    assert found(compare(old, new), "worse") == found(compare(new, old), "better")


def test_a_change_counts_with_its_whole_interval_only() -> None:
    def taken(samples: list[float], cell: str) -> list[Record]:
        return [cost(samples=samples, cell=cell)]

    wide = [1.0, 1.3, 1.3, 1.3, 1.3, 1.3, 1.6]
    change = only(compare(taken([1.0] * 7, "a"), taken(wide, "b")), "time")
    assert change.ratio is not None
    assert (change.ratio.value, change.verdict) == (pytest.approx(1.3), "unclear")
    narrow = [1.3] * 7
    assert only(compare(taken([1.0] * 7, "a"), taken(narrow, "b")), "time").verdict == "worse"
    tolerant = compare(taken([1.0] * 7, "a"), taken(narrow, "b"), threshold=0.4)
    assert only(tolerant, "time").verdict == "same"
    assert not tolerant.worse


def test_a_slower_machine_cancels_in_ratios_to_a_reference() -> None:
    rng = np.random.default_rng(0)
    drift = np.exp(rng.normal(0, 0.3, 20))

    def side(cell: str, machine: float, performer: float) -> list[Record]:
        return [
            cost(name, noise=0.0, cell=cell, drift=drift * machine * factor)
            for name, factor in (("full", 1.0), ("performer", performer), ("linformer", 1.0))
        ]

    old, new = side("a", 1.0, 1.0), side("b", 3.0, 1.3)
    plain = found(compare(old, new), "worse")
    assert {("time", "full"), ("time", "linformer")} <= plain
    relative = compare(old, new, relative_to="full")
    assert found(relative, "worse") == {("time", "performer")}
    (change,) = [change for change in relative.changes if change.verdict == "worse"]
    assert change.ratio is not None
    assert change.ratio.value == pytest.approx(1.3)
    assert all(
        change.place.contestant != "full"
        for change in relative.changes
        if change.quantity == "time"
    )


def test_without_its_reference_a_time_is_not_comparable() -> None:
    old = [cost("full", cell="a"), cost("performer", cell="a")]
    for new in (
        [cost("full", 512, cell="b"), cost("performer", cell="b")],
        [cost("full", cell="b", status="oom"), cost("performer", cell="b")],
        [cost("full", cell="b", options={"implementation": "naive"}), cost("performer", cell="b")],
    ):
        comparison = compare(old, new, relative_to="full", what=["time"])
        assert ("time", "performer") in found(comparison, "unknown")
    with pytest.raises(ValueError, match="no contestant 'fulll' in A; there are: full, performer"):
        compare(old, old, relative_to="fulll")


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ("ok", "oom", "worse"),
        ("ok", "unsupported", "worse"),
        ("crashed", "ok", "better"),
        ("oom", "timeout", "changed"),
    ],
)
def test_a_status_that_changed_is_told(one: str, other: str, verdict: str) -> None:
    old = [cost(status=one, reason="first")]
    comparison = compare(old, [cost(status=other, reason="second", cell="b")])
    change = only(comparison, "status")
    assert (change.verdict, change.before, change.after) == (verdict, one, other)
    assert ("second" if other != "ok" else "first") in change.note
    assert comparison.worse == (verdict == "worse")
    assert len(comparison.changes) == 1


def test_a_failure_that_leaves_options_open_is_still_the_same_contestant() -> None:
    options = {"k": 64, "share": "heads", "max_len": 1024, "seed": 0}
    asked = {"k": None, "share": "heads", "max_len": None, "seed": 0}
    old = [cost("linformer", options=options)]
    comparison = compare(old, [cost("linformer", options=asked, status="oom", cell="b")])
    assert only(comparison, "status").verdict == "worse"


def test_a_failure_that_fits_two_option_sets_joins_neither() -> None:
    def window(size: int | None, **fields: Any) -> Record:
        return cost("local_window", options={"window": size}, **fields)

    old = [window(None, status="crashed"), window(64, cell="a1"), window(128, cell="a2")]
    comparison = compare(old, [window(64, cell="b1"), window(128, cell="b2")])
    assert comparison.compared == 2
    assert found(comparison, "better") == set()
    assert len(comparison.only_in_a) == 1


def test_the_reference_of_the_same_cell_counts_not_the_newest() -> None:
    def side(cell: str) -> list[Record]:
        return [
            cost("full", median=1.0, noise=0.0, cell=cell, created="2026-01-01"),
            cost("performer", median=2.0, noise=0.0, cell=cell, created="2026-01-01"),
        ]

    new = [*side("b"), cost("full", median=5.0, noise=0.0, cell="c", created="2026-01-02")]
    comparison = compare(side("a"), new, relative_to="full", what=["time"])
    assert only(comparison, "time").verdict == "same"


def test_options_tell_contestants_apart_and_join_their_names() -> None:
    def side(cell: str, slower: float) -> list[Record]:
        return [
            cost(
                "local_window",
                median=size * (slower if size == 128 else 1),
                noise=0.0,
                cell=cell,
                options={"window": size},
            )
            for size in (64, 128)
        ]

    comparison = compare(side("a", 1.0), side("b", 2.0))
    assert found(comparison, "worse") == {("time", "local_window (window=128)")}
    assert comparison.compared == 2
    lone = compare(side("a", 1.0), side("b", 1.0)[:1])
    assert [place.contestant for place in lone.only_in_a] == ["local_window (window=128)"]


def test_an_option_that_older_code_did_not_have_parts_nothing() -> None:
    old = [cost("performer", options={"num_features": 64})]
    new = [cost("performer", options={"num_features": 64, "orthogonal": True}, cell="b")]
    assert compare(old, new).compared == 1


def test_the_newest_record_of_each_side_counts() -> None:
    old = [
        cost(median=1.0, noise=0, created="2026-01-02"),
        cost(median=9.0, noise=0, created="2026-01-01"),
    ]
    new = [
        cost(median=1.0, noise=0, created="2026-01-02", cell="b"),
        cost(created="2026-01-01", cell="b", status="oom"),
    ]
    assert found(compare(old, new), "same") == {("time", "full"), ("memory", "full")}


def test_other_machines_are_compared_and_named_loudly() -> None:
    comparison = compare([cost()], [cost(environment=OTHER, cell="b")])
    assert comparison.compared == 1
    assert "the machines differ: Example CPU in A, Another CPU in B" in comparison.notes[0]


def test_machines_that_both_sides_know_are_kept_apart() -> None:
    old = [cost(median=1.0, noise=0), cost(median=5.0, noise=0, environment=OTHER, cell="a2")]
    new = [
        cost(median=1.0, noise=0, cell="b"),
        cost(median=5.0, noise=0, environment=OTHER, cell="b2"),
    ]
    comparison = compare(old, new)
    assert comparison.compared == 2
    assert {change.verdict for change in comparison.changes} == {"same"}
    lone = compare(old, new[:1])
    assert (lone.compared, len(lone.only_in_a)) == (1, 1)


@pytest.mark.parametrize("fact", ["torch", "cores", "python"])
def test_other_circumstances_are_notes(fact: str) -> None:
    new = cost(cell="b", environment={**ENVIRONMENT, fact: "99"})
    (note,) = compare([cost()], [new]).notes
    assert note.startswith(f"{fact} differs")
    assert "99 in B" in note


def test_memory_of_unknown_or_other_origin_is_not_judged() -> None:
    other = cost(cell="b")
    other = replace(other, result={**other.result, "peak_method": "cuda_allocator"})
    for new in (cost(cell="b", peak=None), other):
        comparison = compare([cost()], [new], what=["memory"])
        assert only(comparison, "memory").verdict == "unknown"
        assert not comparison.worse


def test_memory_where_there_was_none_is_more() -> None:
    assert (
        only(compare([cost(peak=0)], [cost(peak=8)], what=["memory"]), "memory").verdict == "worse"
    )
    assert (
        only(compare([cost(peak=0)], [cost(peak=0)], what=["memory"]), "memory").verdict == "same"
    )
    json.dumps(compare([cost(peak=0)], [cost(peak=8)]).to_dict(), allow_nan=False)


def trained(values: list[float], first_seed: int = 0, **fields: Any) -> list[Record]:
    return [
        accuracy(seed=first_seed + index, value=value, **fields)
        for index, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("new", "fields", "verdict"),
    [
        ([0.50, 0.51, 0.49], {}, "worse"),
        ([0.90, 0.91, 0.89], {}, "same"),
        ([1.20, 1.21, 1.19], {}, "better"),
        ([0.10, 0.99, 0.50], {}, "unclear"),
        ([0.50, 0.51, 0.49], {"higher_is_better": False, "metric": "loss"}, "better"),
        ([1.80, 1.81, 1.79], {"higher_is_better": False, "metric": "loss"}, "worse"),
        ([0.50], {}, "unclear"),
    ],
)
def test_accuracy_is_compared_over_seeds(
    new: list[float], fields: dict[str, Any], verdict: str
) -> None:
    change = only(compare(trained([0.9, 0.91, 0.89], **fields), trained(new, **fields)), "accuracy")
    assert change.verdict == verdict


def test_shared_seeds_are_paired() -> None:
    old, new = [0.2, 0.5, 0.9, 0.6], [0.1, 0.4, 0.8, 0.5]
    assert only(compare(trained(old), trained(new)), "accuracy").verdict == "worse"
    apart = compare(trained(old), trained(new, first_seed=10))
    assert only(apart, "accuracy").verdict == "unclear"
    more = only(
        compare([*trained([0.5, 0.7]), *trained([9.0], 5)], trained([0.6, 0.6])), "accuracy"
    )
    assert more.ratio is not None
    assert more.ratio.value == pytest.approx(1.0), "a seed of one side only does not count"


def test_a_seed_that_fails_now_is_worse() -> None:
    old = trained([0.9, 0.9, 0.9])
    new = [*trained([0.9, 0.9]), accuracy(seed=2, status="diverged", reason="loss is NaN")]
    change = only(compare(old, new), "status")
    assert change.verdict == "worse"
    assert change.note == "seed 2: loss is NaN"
    other_seed = [accuracy(seed=7, status="diverged", reason="loss is NaN")]
    assert only(compare(old, other_seed), "status").verdict == "worse"


def test_an_accuracy_of_zero_has_no_ratio() -> None:
    change = only(compare(trained([0.0, 0.0]), trained([0.1, 0.1])), "accuracy")
    assert (change.verdict, change.ratio) == ("unknown", None)


def test_only_the_quantities_asked_for_are_looked_at() -> None:
    records = before() + scores()
    for what in ("time", "memory", "accuracy"):
        comparison = compare(records, records, what=[what])  # type: ignore[list-item]
        assert {change.quantity for change in comparison.changes} == {what}


def test_what_one_side_lacks_is_listed() -> None:
    records = before()
    less = [record for record in records if record.contestant != "performer"]
    comparison = compare(records, less)
    assert {place.contestant for place in comparison.only_in_a} == {"performer"}
    assert compare(less, records).only_in_b == comparison.only_in_a


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compare([cost()], [cost(batch=2)]), "nothing to compare: 1 and 1 records"),
        (lambda: compare([], []), "nothing to compare"),
        (lambda: compare([cost()], [cost()], threshold=-0.1), "threshold=-0.1"),
        (lambda: compare([cost()], [cost()], threshold=float("nan")), "threshold=nan"),
        (lambda: compare([cost()], [cost()], what=["speed"]), "speed: choose from time, memory"),
        (lambda: compare([cost()], [cost()], what=[]), "none: choose from"),
    ],
)
def test_wrong_requests_are_refused(call: Callable[[], Comparison], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_answer_is_plain_data() -> None:
    old = before() + scores()
    new = rerun(before(), slower={"full": 2.0})[1:] + trained([0.5])
    text = json.dumps(compare(old, new).to_dict(), allow_nan=False)
    answer = json.loads(text)
    assert answer["worse"] is True
    assert sum(answer["counts"]["time"].values()) == sum(
        change["quantity"] == "time" for change in answer["changes"]
    )
    assert {"low", "high", "value"} <= set(answer["changes"][0]["ratio"])


def test_equal_code_is_rarely_called_worse() -> None:
    """The same contestants measured twice: no verdict at a threshold of 2 %."""
    old = cells((256, 512, 1024), noise=0.01)
    wrong = 0
    for seed in range(5):
        comparison = compare(old, rerun(old, seed=seed, noise=0.01), threshold=0.02)
        wrong += sum(change.verdict in ("worse", "better") for change in comparison.changes)
    assert wrong == 0
