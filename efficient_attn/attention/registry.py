"""Which variants exist, what each can do, and how their options are checked."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeVar

from efficient_attn.attention.errors import OptionError, UnsupportedAttention

if TYPE_CHECKING:
    from efficient_attn.attention.variant import AttentionVariant

ENTRY_POINTS = "efficient_attn.variants"

Class = TypeVar("Class", bound="type[AttentionVariant]")


@dataclass(frozen=True)
class Capabilities:
    """What a variant honours; all else is refused.

    *_self / *_cross: the four patterns. equal_lengths: only when there are as many keys as
    queries. key_padding, pairwise_mask: masks. weights: attention weights on request. decode:
    `init_state` and `step`. rotary, alibi: positions that act inside attention.
    """

    noncausal_self: bool = True
    causal_self: bool = False
    noncausal_cross: bool = False
    causal_cross: bool = False
    equal_lengths: bool = False
    key_padding: bool = False
    pairwise_mask: bool = False
    weights: bool = False
    decode: bool = False
    rotary: bool = False
    alibi: bool = False

    def supports(self, *, causal: bool, cross: bool) -> bool:
        """Whether the pattern is honoured at any lengths."""
        pattern = f"{'causal' if causal else 'noncausal'}_{'cross' if cross else 'self'}"
        return getattr(self, pattern) and not (cross and self.equal_lengths)

    def require(self, variant: str, *, causal: bool, cross: bool) -> None:
        """Raise `UnsupportedAttention` unless the pattern is honoured."""
        pattern = f"{'causal' if causal else 'noncausal'}_{'cross' if cross else 'self'}"
        if not getattr(self, pattern):
            raise refusal(variant, pattern)


@dataclass(frozen=True)
class VariantSpec:
    """What `describe` tells about a variant. time, memory and state are per head of width d.

    state: what decoding carries from token to token; empty where it cannot decode.
    """

    name: str
    summary: str
    paper: str
    formula: str
    time: str
    memory: str
    state: str
    exact: bool
    options: Mapping[str, Any]
    capabilities: Capabilities
    refusals: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "options": dict(self.options), "refusals": dict(self.refusals)}


_VARIANTS: dict[str, type[AttentionVariant]] = {}
_plugins_loaded = False
_BROKEN: list[str] = []
"""What is amiss with packages that offer variants and could not be loaded."""


def register_variant(
    name: str,
    *,
    paper: str = "",
    formula: str = "",
    time: str = "unknown",
    memory: str = "unknown",
    state: str = "",
    exact: bool = False,
) -> Callable[[Class], Class]:
    """Class decorator that puts an `AttentionVariant` under `name`.

    paper: citation; formula: one line; time, memory: complexity in N (queries), d (head width) and
    the variant's own letters; state: what decoding carries; exact: equals dense softmax attention
    under the variant's pattern.
    The class needs ``Options`` (a frozen dataclass), ``capabilities`` and ``forward``:

        @dataclass(frozen=True)
        class MeanOptions:
            pass

        @ea.register_variant("mean", formula="mean of the values")
        class Mean(AttentionVariant):
            Options = MeanOptions
            capabilities = Capabilities()
            def forward(self, q, k, v, mask, dropout_p=0.0):
                return v.mean(-2, keepdim=True).expand(*q.shape[:-1], v.shape[-1])

    A name can be taken once; ValueError otherwise. Packages can offer variants through the
    entry-point group "efficient_attn.variants", each naming a module that registers them.
    """

    def decorate(cls: Class) -> Class:
        if name in _VARIANTS:
            raise ValueError(f"variant {name!r} is already registered by {_VARIANTS[name]}")
        cls.name = name
        cls.spec = VariantSpec(
            name=name,
            summary=(cls.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
            paper=paper,
            formula=formula,
            time=time,
            memory=memory,
            state=state,
            exact=exact,
            options=_defaults(cls.Options),
            capabilities=cls.capabilities,
            refusals=cls.refusals,
        )
        _VARIANTS[name] = cls
        return cls

    return decorate


def unregister_variant(name: str) -> None:
    """Take a variant out again, e.g. at the end of a test that registered its own."""
    del _VARIANTS[name]


def _registry() -> dict[str, type[AttentionVariant]]:
    global _plugins_loaded
    if not _plugins_loaded:
        _plugins_loaded = True
        for entry in entry_points(group=ENTRY_POINTS):
            try:
                entry.load()
            except Exception as error:  # somebody else's package: the others are still there
                package = "a package" if entry.dist is None else f"the package {entry.dist.name!r}"
                _BROKEN.append(
                    f"{package} offers attention variants in {entry.value!r}, which cannot be "
                    f"loaded ({type(error).__name__}: {error}): mend or uninstall it"
                )
                warnings.warn(_BROKEN[-1], stacklevel=2)
    return _VARIANTS


def variant_class(name: str) -> type[AttentionVariant]:
    """The class registered under `name`; ValueError lists what exists.

    "module:Class" imports the module first, so that a variant of one's own can be named in a
    configuration and found by worker processes.
    """
    registry = _registry()
    if ":" in name and name not in registry:
        name = _import_variant(name)
    if name not in registry:
        raise ValueError(
            f"unknown attention variant {name!r}{_hint(name, registry)}; "
            f"available: {', '.join(sorted(registry))}{''.join(f'; {one}' for one in _BROKEN)}"
        )
    return registry[name]


def _import_variant(path: str) -> str:
    """Import "module:Class" and return the name it is registered under."""
    module, _, attribute = path.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot load attention variant {path!r}: {error}") from error
    name = getattr(found, "name", None)
    if name not in _VARIANTS or _VARIANTS[name] is not found:
        raise ValueError(f"{path} is no registered variant: decorate it with @ea.register_variant")
    return name


def list_variants(
    *,
    causal: bool | None = None,
    cross: bool | None = None,
    key_padding: bool | None = None,
    weights: bool | None = None,
    decode: bool | None = None,
    exact: bool | None = None,
) -> list[str]:
    """Names of the variants, sorted; filtered to those that honour what is True.

    causal and cross together ask for causal cross-attention. A variant that crosses only between
    equal lengths does not count as crossing. False asks for variants without the ability.
    """

    def matches(cls: type[AttentionVariant]) -> bool:
        can = cls.capabilities
        if causal and cross:
            patterns = can.supports(causal=True, cross=True)
        else:
            crosses = can.supports(causal=False, cross=True)
            patterns = causal in (None, can.causal_self) and cross in (None, crosses)
        return (
            patterns
            and key_padding in (None, can.key_padding)
            and weights in (None, can.weights)
            and decode in (None, can.decode)
            and exact in (None, cls.spec.exact)
        )

    return sorted(name for name, cls in _registry().items() if cls.listed and matches(cls))


def describe(name: str) -> VariantSpec:
    """Paper, formula, complexity, options with defaults and capabilities of a variant."""
    return variant_class(name).spec


def make_options(variant: str, options: Mapping[str, Any]) -> Any:
    """The variant's options object; `OptionError` names an unknown or ill-typed option."""
    cls = variant_class(variant)
    known = [field.name for field in fields(cls.Options)]
    for name in options:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise OptionError(
                f"unknown option {name!r} of variant {variant!r}{_hint(name, known)}; "
                f"allowed: {allowed}"
            )
    return cls.Options(**options)


def resolve_options(
    variant: str,
    options: Mapping[str, Any],
    *,
    max_len: int | None = None,
    grid: tuple[int, int] | None = None,
    layer: int | None = None,
) -> dict[str, Any]:
    """Options with what the surroundings decide filled in where the caller left it open.

    max_len: longest sequence the model takes; grid: (rows, columns) of a 2-D input; layer: index
    in the stack. Options that were given stay as they are.
    """
    made = make_options(variant, options)
    resolved = variant_class(variant).resolve(made, max_len=max_len, grid=grid, layer=layer)
    return asdict(resolved)


def refusal(variant: str, request: str, detail: str = "") -> UnsupportedAttention:
    """The error for a request (a field of `Capabilities`) that `variant` does not honour."""
    asked = {
        "noncausal_self": "bidirectional self-attention",
        "causal_self": "causal self-attention",
        "noncausal_cross": "cross-attention",
        "causal_cross": "causal cross-attention",
        "key_padding": "a key padding mask",
        "pairwise_mask": "a pairwise attention mask",
        "weights": "attention weights",
        "decode": "step-by-step decoding",
        "rotary": "rotary positions",
        "alibi": "ALiBi positions",
        "positions_across": "rotary or ALiBi positions across two sequences",
        "unequal_lengths": "different numbers of queries and keys",
    }[request]
    registry = _registry()
    why = detail or (registry[variant].refusals.get(request, "") if variant in registry else "")
    able = [
        name
        for name, cls in sorted(registry.items())
        if cls.listed and _honours(cls.capabilities, request)
    ]
    return UnsupportedAttention(
        f"{variant} does not support {asked}{': ' + why if why else ''}. "
        + (f"Variants that do: {', '.join(able)}." if able else "No variant does.")
    )


def _honours(can: Capabilities, request: str) -> bool:
    if request == "positions_across":
        return False
    if request == "unequal_lengths":
        return can.supports(causal=False, cross=True)
    if request.endswith("_cross"):
        return can.supports(causal=request.startswith("causal"), cross=True)
    return bool(getattr(can, request))


def _defaults(options: type) -> dict[str, Any]:
    return {
        field.name: None if field.default is MISSING else field.default for field in fields(options)
    }


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
