"""The cases every test runs over: each registered variant with options small enough to test.

A variant that is not named in `OPTIONS` is tested with its defaults, from the day it is registered.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from einops import rearrange
from shipped import SHIPPED
from torch import Tensor

import efficient_attn as ea
from efficient_attn.attention import variant_class
from efficient_attn.attention.variants import linformer

B, H, D = 2, 2, 8

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "full": [{"implementation": "fused"}, {"implementation": "naive"}],
    "local_window": [{"window": 3}, {"window": (2, 1)}, {"window": 3, "global_tokens": 2}],
    "linformer": [
        {"k": 4, "max_len": 64, "share": "heads"},
        {"k": 4, "max_len": 64, "share": "none"},
        {"k": 4, "max_len": 64, "share": "kv"},
    ],
    "performer": [{"num_features": 16}, {"num_features": 12}],
    "shifted_window": [
        {"window": 4, "shift": 0},
        {"window": 4, "shift": 2},
        {"window": 4, "shift": 1, "relative_bias": True},
        {"window": 4, "shift": 2, "grid": (5, 5)},
        {"window": 2, "shift": 1, "grid": (3, 3)},
        {"window": (2, 3), "shift": 1, "grid": (3, 7), "relative_bias": True},
        {"window": 4, "shift": 2, "grid": (2, 6)},
    ],
}

# Rows of weights that need not sum to one: linformer mixes values before it averages them.
NOT_AVERAGES = {"linformer"}
# Without a grid or leading global tokens, these depend on differences of positions at most.
TRANSLATION_INVARIANT = {"full", "local_window", "performer"}


@dataclass(frozen=True)
class Case:
    """A variant with options; what it can do is read from the registry, never repeated here."""

    variant: str
    options: dict[str, Any] = field(hash=False)

    def __str__(self) -> str:
        return "-".join([self.variant, *(f"{k}={v}" for k, v in self.options.items())])

    def can(self, capability: str) -> bool:
        """Whether the class says so, and this configuration allows it (no order on a grid)."""
        ordered = {"causal_self", "causal_cross", "decode"}
        if self.options.get("grid") is not None and capability in ordered:
            return False
        return bool(getattr(variant_class(self.variant).capabilities, capability))

    @property
    def length(self) -> int | None:
        """The one length a grid accepts; None where any will do."""
        grid = self.options.get("grid")
        return None if grid is None else math.prod(grid)

    def lengths(self, *wanted: int) -> list[int]:
        """`wanted`, or the grid's own length."""
        return list(wanted) if self.length is None else [self.length]

    @property
    def functional(self) -> bool:
        """Whether `ea.attention` alone states the result: nothing learned stands in between."""
        return self.variant != "linformer" and not self.options.get("relative_bias")


CASES = [Case(name, options) for name in SHIPPED for options in OPTIONS.get(name, [{}])]
ONE_EACH = list({case.variant: case for case in reversed(CASES)}.values())[::-1]


def direction(case: Case) -> bool:
    """is_causal for a test in one direction only: not causal, where that is offered."""
    return not case.can("noncausal_self")


def chosen(needs: tuple[str, ...], where: Callable[[Case], bool]) -> list[Case]:
    """The cases that have every capability in `needs` and pass `where`."""
    return [case for case in CASES if all(case.can(x) for x in needs) and where(case)]


def anything(case: Case) -> bool:
    return True


def select(*needs: str, where: Callable[[Case], bool] = anything) -> Any:
    """Parametrise `case` over the cases that have all of `needs`."""
    return pytest.mark.parametrize("case", chosen(needs, where), ids=str)


def select_lengths(
    *wanted: int, needs: tuple[str, ...] = (), where: Callable[[Case], bool] = anything
) -> Any:
    """Parametrise `case` and `N` together, since a grid fixes its own length."""
    pairs = [
        pytest.param(case, N, id=f"{case}-N{N}")
        for case in chosen(needs, where)
        for N in case.lengths(*wanted)
    ]
    return pytest.mark.parametrize(("case", "N"), pairs)


def select_directions(
    *needs: str, where: Callable[[Case], bool] = anything, cases: list[Case] | None = None
) -> Any:
    """Parametrise `case` and `causal` together, over the directions each case offers."""
    pairs = [
        pytest.param(case, causal, id=f"{case}-{'causal' if causal else 'all'}")
        for case in (chosen(needs, where) if cases is None else cases)
        for causal in (False, True)
        if case.can("causal_self" if causal else "noncausal_self")
    ]
    return pytest.mark.parametrize(("case", "causal"), pairs)


def qkv(
    N: int,
    M: int | None = None,
    *,
    batch: int = B,
    heads: int = H,
    kv_heads: int | None = None,
    width: int = D,
    value_width: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    spread: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normal q [B, H, N, D], k [B, G, M, D], v [B, G, M, V]; `spread` scales q and k."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    M = N if M is None else M
    G = heads if kv_heads is None else kv_heads
    q = draw(batch, heads, N, width) * spread
    k = draw(batch, G, M, width) * spread
    v = draw(batch, G, M, width if value_width is None else value_width)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def pack(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Heads side by side, q k v side by side: [B, N, 3·H·D], the input of a `clear_module`."""
    return torch.cat([rearrange(x, "b h n d -> b n (h d)") for x in (q, k, v)], dim=-1)


def unpack(out: Tensor, heads: int = H, width: int = D) -> Tensor:
    """The output of a `clear_module` as [B, H, N, D]."""
    return rearrange(out[..., : heads * width], "b n (h d) -> b h n d", h=heads)


def clear_module(
    case: Case, *, heads: int = H, width: int = D, dtype: torch.dtype = torch.float64
) -> Any:
    """A MultiHeadAttention that one can see through: it attends with just the q, k, v packed
    into its input, because its projections do no more than take them apart.

    A bias table, which may start at zero, is filled, so that it matters.
    """
    embed = 3 * heads * width
    module = ea.MultiHeadAttention(
        embed, heads, case.variant, head_dim=width, dtype=dtype, **case.options
    ).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(embed))
        module.in_proj_bias.zero_()
        module.out_proj.weight.copy_(torch.eye(embed, heads * width))
        module.out_proj.bias.zero_()
        if case.options.get("relative_bias"):
            generator = torch.Generator().manual_seed(7)
            table = module.core.relative_bias
            table.copy_(torch.randn(table.shape, generator=generator, dtype=torch.float64))
    return module


def through(
    module: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding: Tensor | None = None,
    attn_mask: Tensor | None = None,
    causal: bool = False,
    need_weights: bool = False,
) -> Any:
    """Split heads through a `clear_module`; masks in functional meaning (True = take part).

    Equal lengths go in as self-attention, unequal ones as cross-attention. With need_weights,
    (output, weights [B, H, N, M]).
    """
    if q.shape[2] == k.shape[2]:
        inputs = [pack(q, k, v)]
    else:
        no_q, no_k = torch.zeros_like(q), torch.zeros_like(k)
        inputs = [pack(q, no_q, no_q), pack(no_k, k, no_k), pack(no_k, no_k, v)]
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask
    out, weights = module(
        *inputs,
        key_padding_mask=None if key_padding is None else ~key_padding,
        attn_mask=attn_mask,
        is_causal=causal,
        need_weights=need_weights,
        average_attn_weights=False,
    )
    out = unpack(out, q.shape[1], q.shape[-1])
    return (out, weights) if need_weights else out


def attend(case: Case, q: Tensor, k: Tensor, v: Tensor, **kwargs: Any) -> Any:
    """`ea.attention` with the options of the case."""
    return ea.attention(q, k, v, variant=case.variant, **kwargs, **case.options)


def kept(lengths: list[int], M: int, side: str = "right") -> Tensor:
    """bool [B, M], True where a token is real; padding stands on `side`."""
    rows = [
        [(j < length) if side == "right" else (j >= M - length) for j in range(M)]
        for length in lengths
    ]
    return torch.tensor(rows)


def suggests_an_alternative(error: Exception, capability: str) -> bool:
    """Whether a refusal names a variant that has what was asked for."""
    able = [n for n in ea.list_variants() if getattr(variant_class(n).capabilities, capability)]
    return any(name in str(error) for name in able)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Every test starts from the same global seed and runs on the cores it was given."""
    torch.manual_seed(0)
    return


# --- how many combinations were honoured, refused and skipped ----------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note for each test of a case whether what it asked for was refused on the way.

    A test that passes although a refusal was raised has expected it.
    """
    refusals = []
    made = ea.UnsupportedAttention.__init__

    def note(self: ValueError, *words: object) -> None:
        refusals.append(words)
        made(self, *words)

    ea.UnsupportedAttention.__init__ = note  # type: ignore[method-assign]
    try:
        return (yield)
    finally:
        ea.UnsupportedAttention.__init__ = made  # type: ignore[method-assign]
        callspec = getattr(item, "callspec", None)
        if callspec is not None and isinstance(callspec.params.get("case"), Case):
            item.user_properties.append(("combination", "refused" if refusals else "honoured"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line on the combinations of variant and request, one on the capabilities observed.

    Reports carry both from wherever the tests ran, so that workers are counted too.
    """
    combinations: Counter[str] = Counter()
    observed: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        properties = dict(report.user_properties)
        if "observed" in properties:
            observed.update(properties["observed"])
        elif "combination" in properties:
            combinations[properties["combination"]] += 1
    combinations["skipped"] = sum(
        "tests/attention/" in report.nodeid for report in terminalreporter.getreports("skipped")
    )
    for what, counts in (
        ("combinations of variant and request", combinations),
        ("capabilities observed", observed),
    ):
        said = [f"{counts[status]} {status}" for status in ("honoured", "refused", "skipped")]
        if sum(counts.values()):
            terminalreporter.write_line(f"attention, {what}: {', '.join(said)}")


@pytest.fixture(autouse=True)
def kernels_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs as small as those of tests would be left to the formula."""
    monkeypatch.setattr(linformer, "SMALL", 0)
    monkeypatch.setattr(linformer, "FEW_ROWS", 0)
