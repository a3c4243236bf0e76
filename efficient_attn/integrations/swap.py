"""Attention of a whole model replaced in place by a variant, and put back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import count
from typing import Any

from torch import nn

from efficient_attn.attention import (
    MultiHeadAttention,
    describe,
    make_options,
    resolve_options,
    variant_class,
)
from efficient_attn.integrations import timm, torch_nn

Where = Callable[[str, nn.Module], bool] | str | Sequence[str] | None

ORIGINAL = "_efficient_attn_original"
CHOICE = "_efficient_attn_choice"
"""Of a module that took another's place: variant and options, for `save_pretrained`."""
_NESTED = "_efficient_attn_use_nested_tensor"
_IMPLEMENTATION = "_efficient_attn_implementation"
_numbers = count()


@dataclass
class Swapped:
    """What `swap` did: names of modules, and why others that attend were left."""

    variant: str
    replaced: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} attention module(s) are {self.variant} now"]
        lines += [f"  {name}" for name in self.replaced]
        lines += [f"left: {name}: {why}" for name, why in self.left.items()]
        return "\n".join(lines)


def swap(
    model: nn.Module,
    variant: str,
    *,
    where: Where = None,
    give_weights: bool = True,
    max_len: int | None = None,
    **options: Any,
) -> Swapped:
    """Give a model another attention, in place, with the weights that it has.

    Replaced are `torch.nn.MultiheadAttention`, `MultiHeadAttention` of this package and timm's
    `Attention`; models of transformers are switched to the variant as a whole, and are left where
    they stand within another. Parameters are shared with what was there, so that optimizers and
    `unswap` see the same ones; what a variant has of its own (`core.` in the state dict) starts
    fresh.

    where: which of them, a pattern of names such as "*self_attn" or several, or a function of
    name and module; None = all. give_weights: False = modules of torch.nn never return attention
    weights, for models that ask by default and use none. max_len: longest input, for variants that
    want it. options: the variant's own; what depends on the depth follows the order of modules.

    Raises ValueError for an unknown variant or option and where nothing can be replaced; the model
    is as it was then.
    """
    make_options(variant, options)  # which refuses what is unknown
    given = dict(options)
    if max_len is not None and "max_len" in describe(variant).options:
        given.setdefault("max_len", max_len)
    report = Swapped(variant)
    if is_transformers(model):
        if where is not None:
            raise ValueError("models of transformers are switched as a whole: leave out `where`")
        return _switch(model, variant, options, report)
    chosen = _chooser(where)
    made: dict[str, nn.Module] = {}
    twins: dict[int, nn.Module] = {}  # what took the place of a module that stands at two names
    foreign: tuple[str, ...] = ()
    for name, module in model.named_modules(remove_duplicate=False):
        if is_transformers(module) and chosen(name, module) and not name.startswith(foreign):
            report.left[name] = "a model of transformers: swap it by itself"
            foreign += (f"{name}.",)
        source = module.__dict__.get(ORIGINAL, module)
        maker = _maker(source)
        if maker is None or not chosen(name, module):
            continue
        why = _obstacle(name, module, source)
        if why is None and id(source) not in twins:
            _give_back(name, module, source)
            resolved = resolve_options(variant, options, max_len=max_len, layer=len(twins))
            try:
                twins[id(source)] = maker(source, variant, give_weights, resolved)
            except ValueError as error:
                why = str(error)
        if why is None:
            made[name] = twins[id(source)].train(module.training)
            made[name].__dict__[ORIGINAL] = source
            made[name].__dict__[CHOICE] = variant, given
        else:
            report.left[name] = why
    if not made:
        reasons = "".join(f"; {name}: {why}" for name, why in report.left.items())
        raise ValueError(
            "nothing to replace: no torch.nn.MultiheadAttention, MultiHeadAttention or timm "
            f"Attention{' that `where` chooses' if where is not None else ''} was found{reasons}"
        )
    for name, module in made.items():
        _put(model, name, module)
    variant_class(variant).tie_layers([each.get_submodule("core") for each in twins.values()])
    leave_nested_tensors(model)
    report.replaced = list(made)
    return report


def unswap(model: Any) -> list[str]:
    """Put back what `swap` replaced, with the weights as they are now; the modules' names.

    ValueError, and nothing is put back, where a module has not all of them any more.
    """
    implementation = model.__dict__.pop(_IMPLEMENTATION, None)
    if implementation is not None:
        from efficient_attn.integrations.transformers.attention import forget_cores

        model.set_attn_implementation(implementation)
        forget_cores(model)
        return [""]
    everything = model.named_modules(remove_duplicate=False)
    found = [(name, module) for name, module in everything if ORIGINAL in module.__dict__]
    for name, module in found:
        _give_back(name, module, module.__dict__[ORIGINAL])
    for name, module in found:
        _put(model, name, module.__dict__[ORIGINAL].train(module.training))
    for module in model.modules():
        if _NESTED in module.__dict__:
            module.use_nested_tensor = module.__dict__.pop(_NESTED)
    return [name for name, _ in found]


_Maker = Callable[[Any, str, bool, dict[str, Any]], nn.Module]


def _maker(source: nn.Module) -> _Maker | None:
    """What makes the stand-in of a module: of it, a variant, give_weights and options."""
    if isinstance(source, MultiHeadAttention):
        return lambda module, variant, _, options: _ours(module, variant, options)
    if isinstance(source, nn.MultiheadAttention):
        return lambda module, variant, give, options: torch_nn.stand_in(
            module, variant, give, **options
        )
    if timm.is_attention(source):
        return lambda module, variant, _, options: timm.stand_in(module, variant, **options)
    return None


def _obstacle(name: str, module: nn.Module, source: nn.Module) -> str | None:
    """Why a module cannot be replaced whatever the variant; None when it can."""
    torchs = isinstance(source, nn.MultiheadAttention)
    ours = isinstance(source, MultiHeadAttention)
    if not name and torchs:
        return "it is the model itself: replace it by MultiHeadAttention.from_torch(module, ...)"
    if not name:
        build = "MultiHeadAttention" if ours else "integrations.timm.TimmAttention"
        return (
            f"it is the model itself: build {build}(...) with the other variant, then "
            "load_state_dict(..., strict=False)"
        )
    if (torchs or ours) and type(source) not in (nn.MultiheadAttention, MultiHeadAttention):
        return f"{type(source).__name__} is a class of its own, which may compute something else"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, each) for each in hooks):
        return "it has hooks, which would be lost"
    if torchs and not {each for each, _ in source.named_parameters()} <= _TORCHS:
        return "its projections are parametrized or other modules, which would be lost"
    return None


_TORCHS = {
    *("in_proj_weight", "in_proj_bias", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    *("out_proj.weight", "out_proj.bias", "bias_k", "bias_v"),
}


def _give_back(name: str, module: nn.Module, source: nn.Module) -> None:
    """Parameters of a stand-in to what it stands for: loading may have made others of them."""
    if module is source:
        return
    for path, _ in list(source.named_parameters(remove_duplicate=False)):
        if path.startswith("core."):  # of the variant before, which stands still
            continue
        parent, _, leaf = path.rpartition(".")
        try:
            now = module.get_parameter(path)
        except AttributeError as error:
            raise ValueError(
                f"{name} has no parameter {path} any more, which the module before it needs: put "
                "its projections back first (parametrizations, adapters)"
            ) from error
        source.get_submodule(parent)._parameters[leaf] = now


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, module)


def _ours(module: MultiHeadAttention, variant: str, options: dict[str, Any]) -> nn.Module:
    """Attention of this package with another core; its parameters are shared."""
    weight = module.out_proj.weight
    made = MultiHeadAttention(
        module.embed_dim,
        module.num_heads,
        variant,
        dropout=module.dropout,
        bias=module.in_proj_bias is not None,
        kdim=module.kdim,
        vdim=module.vdim,
        head_dim=module.head_dim,
        num_kv_heads=module.num_kv_heads,
        positions=module.positions,
        rotary_base=module.rotary_base,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    )
    for name, parameter in list(module._parameters.items()):
        setattr(made, name, parameter)
    made.out_proj = module.out_proj
    return made


def _chooser(where: Where) -> Callable[[str, nn.Module], bool]:
    if where is None:
        return lambda name, module: True
    if callable(where):
        return where
    patterns = [where] if isinstance(where, str) else list(where)
    return lambda name, module: any(fnmatchcase(name, pattern) for pattern in patterns)


def leave_nested_tensors(model: nn.Module) -> None:
    """torch.nn's encoder packs padded batches for its own fused layers, which are gone."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and module.use_nested_tensor:
            module.__dict__[_NESTED] = True
            module.use_nested_tensor = False


def is_transformers(model: nn.Module) -> bool:
    return hasattr(model, "set_attn_implementation") and hasattr(model, "config")


@contextmanager
def first_call(model: nn.Module) -> Iterator[None]:
    """Calls in the block give a model of transformers the parameters of its variant, which swapped
    modules have at once (see `transformers.make_cores`)."""
    if not is_transformers(model):
        yield
        return
    from efficient_attn.integrations.transformers.attention import making_cores

    with making_cores():
        yield


def _switch(model: Any, variant: str, options: dict[str, Any], report: Swapped) -> Swapped:
    """A model of transformers, through its own door for attention."""
    from efficient_attn.integrations.transformers import register
    from efficient_attn.integrations.transformers.attention import forget_cores

    before = model.config._attn_implementation
    (name,) = register(f"{variant}#{next(_numbers)}" if options else variant, variant, **options)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(f"{type(model).__name__} does not let its attention be chosen")
    forget_cores(model)
    model.__dict__.setdefault(_IMPLEMENTATION, before)
    report.replaced = [f"{type(model).__name__} (attn_implementation={name!r})"]
    return report
