"""What a variant declares is what is observed; and what is broken is found broken."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from shipped import SHIPPED

from efficient_attn.attention import AttentionVariant, Capabilities, unregister_variant
from efficient_attn.attention.conformance import Observation, observe
from efficient_attn.commands import check

from . import broken
from .conftest import CASES, Case

OWN = """
from dataclasses import dataclass

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant, Capabilities


@dataclass(frozen=True)
class Options:
    gain: float = 1.0


@ea.register_variant("toy_mean")
class Mean(AttentionVariant):
    Options = Options
    capabilities = Capabilities(causal_self=CAUSAL)

    def forward(self, q, k, v, mask, dropout_p=0.0):
        mean = v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])
        return self.options.gain * mean
"""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_observed_is_declared(case: Case, record_property: Callable[[str, object], None]) -> None:
    observation = observe(case.variant, case.options)
    assert observation.differences == []
    counts = Counter(finding.status for finding in observation.observed.values())
    record_property("observed", dict(counts))  # workers send plain types only


@pytest.mark.parametrize("name", SHIPPED)
def test_observed_is_declared_with_default_options(name: str) -> None:
    assert observe(name).differences == []


def test_every_capability_is_probed() -> None:
    observation = observe("shifted_window", {"window": 2, "grid": (2, 2)})
    assert set(observation.observed) == {field.name for field in fields(Capabilities)}
    assert not {f.status for f in observation.observed.values()} - {"honoured", "refused"}


def test_what_a_configuration_cannot_do_is_declared_for_it() -> None:
    """On a grid there is no order, which the class alone does not say."""
    on_grid = observe("shifted_window", {"window": 2, "grid": (3, 3)})
    assert on_grid.observed["causal_self"].status == "refused"
    assert observe("shifted_window", {"window": 2}).observed["causal_self"].status == "honoured"


def test_a_property_without_meaning_is_skipped_with_the_reason() -> None:
    finding = observe("linformer", {"k": 4}).general["values of one give one"]
    assert finding.status == "skipped"
    assert "linformer" in finding.evidence
    assert "sum to one" in finding.evidence


def test_observing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    observe("linformer", {"k": 4})
    assert torch.equal(torch.rand(3), want)


def test_only_what_is_wanted_is_asked() -> None:
    observation = observe("linformer", {"k": 4}, only=["key_padding", "determinism"])
    assert list(observation.observed) == ["key_padding"]
    assert list(observation.general) == ["determinism"]
    with pytest.raises(ValueError, match=r"paddding.*key_padding"):
        observe("linformer", {"k": 4}, only=["paddding"])


def seen(variant: type[AttentionVariant], *questions: str) -> Observation:
    with broken.registered(variant) as name:
        return observe(name, only=questions or None)


@pytest.mark.parametrize("right", [broken.Right, broken.Kernel])
def test_what_is_right_raises_no_alarm(right: type[AttentionVariant]) -> None:
    assert seen(right).differences == []


FAULTS = [
    (broken.IgnoresCausal, "causal_self", "token 1 grows"),
    (broken.LooksOneAhead, "causal_self", "N=2"),
    (broken.LeaksByMaximum, "causal_self", "thirtyfold"),
    (broken.AlignsTopLeft, "causal_cross", "1 queries meet 5 keys"),
    (broken.DropsPadding, "key_padding", "padded"),
    (broken.SkipsPaddingOfOneSample, "key_padding", "batch of one"),
    (broken.PadsValuesOnly, "key_padding", "padded"),
    (broken.NaNWhereNothingIsSeen, "key_padding", "zeros and finite gradients"),
    (broken.DropsPairwise, "pairwise_mask", "N=3"),
    (broken.ReadsFloatsAsBool, "pairwise_mask", "added to the scores"),
    (broken.NaNWhereNothingIsSeen, "pairwise_mask", "masked whole"),
    (broken.WeightsWithoutTheMask, "weights", "padded"),
    (broken.ForgetsWhileDecoding, "decode", "N=5"),
    (broken.SeesAllOfAPrefill, "decode", "remaining tokens"),
    (broken.SelectsTheFirstSample, "decode", "select"),
    (broken.CannotDecode, "decode", "does not support step-by-step decoding"),
    (broken.IgnoresDistance, "alibi", "distance"),
    (broken.RefusesLongCausal, "causal_self", "refuses a part"),
    (broken.CrossesEqualLengthsUndeclared, "equal_lengths", "are refused"),
    (broken.EvenLengthsOnly, "any length", "RuntimeError: the length must be even"),
    (broken.CouplesTheBatch, "batch independence", "neighbour"),
    (broken.NormaliserTooLarge, "values of one give one", "N=1"),
    (broken.DrawsInEval, "determinism", "second call"),
    (broken.KeepsNoFeatures, "determinism", "state dict"),
    (broken.OverflowsInHalf, "half precision", "fp16"),
    (broken.UnusedParameter, "parameters are trained", "core.unused"),
]


@pytest.mark.parametrize(
    ("variant", "question", "words"), FAULTS, ids=[f"{v.__name__}-{q}" for v, q, _ in FAULTS]
)
def test_a_fault_is_found_and_told(
    variant: type[AttentionVariant], question: str, words: str
) -> None:
    (line,) = seen(variant, question).differences
    assert line.startswith(f"{question}: ")
    assert words in line


def test_a_declared_condition_on_lengths_is_enforced_for_the_variant() -> None:
    """What is refused need not be impossible: the declaration alone limits the lengths."""

    class Modest(broken.Right):
        capabilities = replace(broken.EVERYTHING, equal_lengths=True)

    observation = seen(Modest, "noncausal_cross", "causal_cross", "equal_lengths")
    assert observation.differences == []
    assert observation.observed["equal_lengths"].status == "honoured"


# --- the command -------------------------------------------------------------------------------


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, for a module of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(variant: str, *options: str, as_json: bool = False) -> int:
    return check.main(argparse.Namespace(variant=variant, option=list(options), json=as_json))


@pytest.mark.parametrize("causal", [False, True])
def test_a_variant_of_ones_own_is_checked_by_its_path(
    own_module: Path, causal: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"own_mean_{causal}"
    (own_module / f"{module}.py").write_text(OWN.replace("CAUSAL", str(causal)))
    try:
        assert run(f"{module}:Mean", "gain=2.0") == (1 if causal else 0)
    finally:
        unregister_variant("toy_mean")
        del sys.modules[module]
    out = capsys.readouterr().out
    assert "toy_mean(gain=2.0)" in out
    assert ("- causal_self: declared yes, violated: N=2: " in " ".join(out.split())) == causal
    assert ("observed as declared" in out) != causal


def test_the_answer_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("linformer", "k=4", "share=kv", as_json=True) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["agrees"] is True
    assert answer["options"]["share"] == "kv"
    assert answer["observed"]["causal_self"]["status"] == "refused"


def test_an_infinite_error_is_null_for_programs() -> None:
    finding = seen(broken.EvenLengthsOnly, "any length").general["any length"]
    assert finding.error == float("inf")
    json.dumps(finding.to_dict(), allow_nan=False)


def test_wrong_words_are_errors_for_the_person() -> None:
    with pytest.raises(ValueError, match="available"):
        run("fulll")
    with pytest.raises(ValueError, match="allowed"):
        run("linformer", "kk=4")
