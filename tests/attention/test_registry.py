"""What is registered, what it says of itself, and how anyone adds to it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shipped import SHIPPED

import efficient_attn as ea
from efficient_attn.attention import variant_class

from .conftest import OPTIONS, qkv

FIRST_FIVE = {"full", "linformer", "local_window", "performer", "shifted_window"}
CAPABILITIES = {
    "noncausal_self",
    "causal_self",
    "noncausal_cross",
    "causal_cross",
    "key_padding",
    "pairwise_mask",
    "weights",
    "decode",
    "equal_lengths",
}
EACH_VARIANT = pytest.mark.parametrize("name", SHIPPED)


def test_the_first_five_are_registered_and_sorted() -> None:
    names = ea.list_variants()
    assert set(names) >= FIRST_FIVE
    assert names == sorted(names)


@pytest.mark.parametrize("causal", [True, False, None])
@pytest.mark.parametrize("cross", [True, False, None])
def test_filters_agree_with_capabilities(causal: bool | None, cross: bool | None) -> None:
    """Asking for a capability lists those that have it, at any lengths; not asking lists all."""
    asked = {k: v for k, v in {"causal": causal, "cross": cross}.items() if v}
    listed = set(ea.list_variants(**asked))

    def able(name: str) -> bool:
        can = variant_class(name).capabilities
        if cross and can.equal_lengths:
            return False
        if causal and cross:
            return can.causal_cross
        if causal:
            return can.causal_self
        if cross:
            return can.noncausal_cross or can.causal_cross
        return True

    assert listed == {name for name in ea.list_variants() if able(name)}


def test_linformer_cannot_be_causal_and_full_can_do_all() -> None:
    assert "linformer" not in ea.list_variants(causal=True)
    assert "linformer" in ea.list_variants(cross=True)
    assert {"full", "performer"} <= set(ea.list_variants(causal=True, cross=True))


@EACH_VARIANT
def test_describe_says_what_a_person_needs(name: str) -> None:
    spec = ea.describe(name)
    assert spec.name == name
    for text in (spec.paper, spec.formula, spec.time, spec.memory):
        assert isinstance(text, str)
        assert text.strip()
    assert isinstance(spec.options, dict)
    assert isinstance(spec.exact, bool)
    assert spec.capabilities == variant_class(name).capabilities


@EACH_VARIANT
def test_capabilities_are_frozen_bools(name: str) -> None:
    can = variant_class(name).capabilities
    fields = {f.name: getattr(can, f.name) for f in dataclasses.fields(can)}
    assert set(fields) >= CAPABILITIES
    assert all(isinstance(v, bool) for v in fields.values())
    with pytest.raises(dataclasses.FrozenInstanceError):
        can.causal_self = True


def test_options_of_the_cases_are_options_of_the_variants() -> None:
    for name, cases in OPTIONS.items():
        known = set(ea.describe(name).options)
        assert all(set(options) <= known for options in cases), name


@pytest.mark.parametrize(
    "call",
    [
        lambda: ea.MultiHeadAttention(16, 2, "fulll"),
        lambda: ea.attention(*qkv(3), variant="fulll"),
        lambda: ea.describe("fulll"),
        lambda: variant_class("fulll"),
    ],
    ids=["module", "function", "describe", "variant_class"],
)
def test_an_unknown_variant_lists_the_known(call: Any) -> None:
    with pytest.raises((ValueError, KeyError, LookupError)) as caught:
        call()
    message = str(caught.value)
    assert "fulll" in message
    assert all(name in message for name in FIRST_FIVE)


def test_a_name_is_not_taken_twice_in_silence() -> None:
    taken = variant_class("full")
    impostor = type("Impostor", (taken,), {})
    with pytest.raises((ValueError, KeyError), match="full"):
        ea.register_variant("full")(impostor)
    assert variant_class("full") is taken


def test_import_loads_no_benchmark_library() -> None:
    """A model that uses the attention pays for torch and einops only."""
    run_python(
        "import sys, efficient_attn as ea; ea.list_variants(); ea.MultiHeadAttention(8, 2)\n"
        "heavy = {'hydra', 'pandas', 'matplotlib', 'scipy', 'transformers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )


# --- a variant of one's own --------------------------------------------------------------------


OWN_VARIANT = """
from dataclasses import dataclass

import torch

import efficient_attn as ea
from efficient_attn.attention import AttentionVariant, Capabilities


@dataclass(frozen=True)
class MeanOptions:
    gain: float = 1.0


@ea.register_variant("mean", formula="gain times the mean of the values")
class Mean(AttentionVariant):
    Options = MeanOptions
    capabilities = Capabilities()

    def forward(self, q, k, v, mask, dropout_p=0.0):
        gain = self.options.gain
        return gain * v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])


assert "mean" in ea.list_variants()
assert "mean" not in ea.list_variants(causal=True)
assert ea.describe("mean").options == {"gain": 1.0}

x = torch.randn(2, 5, 16)
module = ea.MultiHeadAttention(16, 2, "mean", gain=2.0)
out, weights = module(x)
W, b = module.in_proj_weight[32:], module.in_proj_bias[32:]
want = module.out_proj(2 * (x @ W.T + b).mean(1, keepdim=True).expand(-1, 5, -1))
torch.testing.assert_close(out, want)
assert weights is None

v = torch.randn(1, 2, 5, 8)
torch.testing.assert_close(
    ea.attention(v, v, v, variant="mean", gain=0.5), 0.5 * v.mean(2, keepdim=True).expand_as(v)
)

# What its capabilities do not promise is refused for it, and wrong options too.
mask = torch.zeros(2, 5, dtype=torch.bool)
for kwargs in ({"is_causal": True}, {"key_padding_mask": mask}, {"need_weights": True}):
    try:
        module(x, **kwargs)
    except ea.UnsupportedAttention as error:
        assert "mean" in str(error)
    else:
        raise AssertionError(f"{kwargs} was accepted")
for options in ({"gains": 1.0}, {"loss": 1.0}):
    try:
        ea.MultiHeadAttention(16, 2, "mean", **options)
    except (ValueError, TypeError) as error:
        assert "gain" in str(error)
    else:
        raise AssertionError(f"{options} was accepted")
"""


def run_python(code: str, **environment: str) -> None:
    """In a process of its own, so that no other test meets what it registers."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr


def test_a_variant_of_ones_own() -> None:
    run_python(OWN_VARIANT)


def test_a_variant_from_an_installed_package(tmp_path: Path) -> None:
    """The entry-point group efficient_attn.variants names a module that registers."""
    registration, _ = OWN_VARIANT.split("assert", maxsplit=1)
    (tmp_path / "own_variant.py").write_text(registration)
    info = tmp_path / "own_variant-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-variant\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[efficient_attn.variants]\nmean = own_variant\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    run_python(
        "import efficient_attn as ea\n"
        "assert 'mean' in ea.list_variants()\n"
        "ea.MultiHeadAttention(16, 2, 'mean')",
        PYTHONPATH=path,
    )


def test_a_broken_package_is_named_and_hides_no_other(tmp_path: Path) -> None:
    for name, module in (("broken_one", "missing_module"), ("sound_one", "sound_module")):
        meta = tmp_path / f"{name}-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        entry = f"[efficient_attn.variants]\n{name} = {module}\n"
        (meta / "entry_points.txt").write_text(entry)
    (tmp_path / "sound_module.py").write_text(
        "import efficient_attn as ea\n"
        "from efficient_attn.attention.variants.full import Full\n"
        "ea.register_variant('sound')(type('Sound', (Full,), {}))\n"
    )
    program = (
        "import efficient_attn as ea\n"
        "assert {'full', 'sound'} <= set(ea.list_variants()), ea.list_variants()\n"
        "try:\n    ea.describe('absent')\n"
        "except ValueError as error:\n    assert 'broken_one' in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "broken_one" in ran.stderr
    assert "uninstall" in ran.stderr
