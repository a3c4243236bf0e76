"""Which attention variant, with which options, stands at which depth of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from efficient_attn.attention import (
    MultiHeadAttention,
    OptionError,
    describe,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.registry import refusal

Variant: TypeAlias = "str | Sequence[str]"
VariantOptions: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any]] | None"


def variant_cycle(variant: Variant) -> tuple[str, ...]:
    """The variants of depth 0, 1, 2, ...; deeper layers start the cycle again."""
    if isinstance(variant, str):
        return (variant,)
    cycle = tuple(variant) if isinstance(variant, Sequence) else ()
    if not cycle or not all(isinstance(name, str) for name in cycle):
        raise OptionError(
            f"variant={variant!r} must be the name of a variant or a list of names that is "
            "repeated over depth, for example ['local_window', 'local_window', 'full']"
        )
    return cycle


def variant_at(variant: Variant, options: VariantOptions, depth: int) -> tuple[str, dict[str, Any]]:
    """Name and options of the variant at `depth` (0 is the first layer).

    `options` may be

    - one mapping of options; with a list of variants each takes those that it knows, and an
      option that none of them knows is refused;
    - with a list of variants, a mapping from variant name to its options;
    - with a list of variants, a list of mappings of the same length.
    """
    cycle = variant_cycle(variant)
    slot = depth % len(cycle)
    name = cycle[slot]
    if options is None:
        return name, {}
    _require_mappings(options)
    if not isinstance(options, Mapping):
        entries = list(options)
        if isinstance(variant, str) or len(entries) != len(cycle):
            raise ValueError(
                f"variant_options is a list of {len(entries)}, so variant must be a list of as "
                f"many names; it is {variant!r}"
            )
        return name, dict(entries[slot])
    if isinstance(variant, str):
        return name, dict(options)
    if options and all(
        key in cycle and isinstance(value, Mapping) for key, value in options.items()
    ):
        return name, dict(options.get(name, {}))
    return name, _known(name, cycle, options)


def attention_at(
    depth: int,
    variant: Variant,
    options: VariantOptions,
    *,
    max_len: int | None,
    grid: tuple[int, int] | None = None,
    **arguments: Any,
) -> MultiHeadAttention:
    """The attention that stands at `depth`; arguments: those of `MultiHeadAttention`."""
    name, given = variant_at(variant, options, depth)
    resolved = resolve_options(name, given, max_len=max_len, grid=grid, layer=depth)
    return MultiHeadAttention(variant=name, **arguments, **resolved)


def decoder_choice(
    decoder_variant: Variant | None,
    decoder_options: VariantOptions,
    variant: Variant,
    options: VariantOptions,
) -> tuple[Variant, VariantOptions]:
    """The decoder's self-attention and its options: the encoder's, where no own ones are given."""
    if decoder_variant is not None:
        return decoder_variant, decoder_options
    return variant, options if decoder_options is None else decoder_options


def require_causal(variant: Variant) -> None:
    """Raise UnsupportedAttention when a variant of the cycle cannot do causal self-attention."""
    for name in dict.fromkeys(variant_cycle(variant)):
        variant_class(name).capabilities.require(name, causal=True, cross=False)


def require_any_lengths(cross_variant: Variant) -> None:
    """Raise UnsupportedAttention when a variant of the cycle cannot cross, or only between equal
    lengths."""
    for name in dict.fromkeys(variant_cycle(cross_variant)):
        can = variant_class(name).capabilities
        can.require(name, causal=False, cross=True)
        if can.equal_lengths:
            raise refusal(name, "unequal_lengths")


def _require_mappings(options: Any) -> None:
    several = isinstance(options, Sequence) and not isinstance(options, str)
    if not all(isinstance(each, Mapping) for each in (options if several else [options])):
        raise OptionError(
            f"variant_options={options!r}: allowed is a mapping from option to value, or a list "
            "of them, one for each variant of a list"
        )


def _known(name: str, cycle: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    allowed = {member: set(describe(member).options) for member in cycle}
    strangers = sorted(set(options) - set().union(*allowed.values()))
    if strangers:
        choices = "; ".join(
            f"{member}: {', '.join(sorted(known)) or 'none'}" for member, known in allowed.items()
        )
        raise OptionError(
            f"unknown option(s) {', '.join(strangers)} in variant_options; allowed are {choices}"
        )
    return {key: value for key, value in options.items() if key in allowed[name]}
