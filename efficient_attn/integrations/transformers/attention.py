"""Every variant as an ``attn_implementation`` of transformers' models.

    from efficient_attn.integrations.transformers import register
    register()
    model = AutoModel.from_pretrained(path, attn_implementation="efficient_attn:performer")

transformers calls one function per attention, with heads split and positions applied, and asks
another for the mask. The masks made here are None or [B, M] wherever the pattern is causal or
bidirectional; any other (packed sequences, sliding windows, blocks) is written out as
[B, 1, N, M], which `full` honours and the other variants refuse.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from efficient_attn.attention import (
    AttentionMask,
    AttentionVariant,
    UnsupportedAttention,
    list_variants,
    make_core,
    make_options,
    resolve_options,
    variant_class,
)
from efficient_attn.attention.apply import attend
from efficient_attn.nn.mode import evaluating

PREFIX = "efficient_attn:"

CORE = "efficient_attn_core"
CORES = "_efficient_attn_cores"
_LENGTHS = ("max_position_embeddings", "n_positions", "max_source_positions")
_LAYER = "_efficient_attn_layer"
_HARMLESS = {
    "cache_position",
    "encoder_attention_mask",
    "encoder_hidden_states",
    "input_ids",
    "inputs_embeds",
    "labels",
    "mm_token_type_ids",
    "num_items_in_batch",
    "position_embeddings",
    "position_ids",
    "token_type_ids",
}
"""Tensors that models hand on to attention and that its own formula has nothing of."""
_PACKING = {"cu_seq_lens_k", "cu_seq_lens_q", "seq_idx"}
"""Borders of packed sequences, which a 4-D mask spells out."""
_preparing = False
_seen: dict[int, int] = {}  # modules per config, by its id


def register(
    name: str | None = None,
    variant: str | None = None,
    *,
    cross_variant: str | None = None,
    **options: Any,
) -> list[str]:
    """Make variants known to transformers; the names under which, for ``attn_implementation``.

    ``register()``: each of `list_variants` as "efficient_attn:<variant>", with its own defaults, or
    those in a config's ``efficient_attn_options``. ``register(name, variant, **options)``: one
    variant with these options, as "efficient_attn:<name>". Registering a name again replaces it.
    cross_variant: of attention from one sequence to another, with its defaults, where that is to be
    another variant, such as "full" beside windows.

    Grouped-query heads, key padding on either side and caches are honoured; what a variant cannot
    do is refused with `UnsupportedAttention` when the model runs, as is what none of them has: caps
    on scores and learned sinks. A variant with parameters of its own wants `make_cores` first.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    if name is None and (variant is not None or options):
        raise ValueError("give a name for these options: register('short', 'local_window', ...)")
    if name is not None and variant is None:
        variant = name
    chosen = {each: each for each in list_variants()} if name is None else {name: str(variant)}
    for label, wanted in chosen.items():
        make_options(wanted, options)  # which refuses what is unknown
        across = wanted if cross_variant is None else cross_variant
        make_options(across, {})
        function = partial(_attention, wanted, across, options)
        AttentionInterface.register(PREFIX + label, function)
        AttentionMaskInterface.register(PREFIX + label, _mask)
    return [PREFIX + label for label in chosen]


def make_cores(model: Any, **inputs: Any) -> list[str]:
    """Give a model the parameters of its variant, such as linformer's projections, as submodules.

    To be called once before an optimizer is made or a checkpoint with them is loaded; it runs the
    model once on `inputs`, the model's ``dummy_inputs`` when there are none. The names of the
    modules that attend; parameters start fresh, and the state dict has them from then on.
    """
    given = inputs or dict(model.dummy_inputs)
    with torch.no_grad(), evaluating(model), making_cores():
        model(**given)
    return [name for name, part in model.named_modules() if CORE in part._modules]


@contextmanager
def making_cores() -> Iterator[None]:
    """Calls of models in the block give them what `make_cores` gives."""
    global _preparing
    _preparing = True
    try:
        yield
    finally:
        _preparing = False


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **more: Any,
) -> Tensor | None:
    """What transformers asks for in place of a mask: None, bool [B, M'] or bool [B, 1, N, M], True
    = seen. M' keys exist so far; a cache of fixed size has room for more."""
    from transformers.masking_utils import (
        bidirectional_mask_function,
        causal_mask_function,
        sdpa_mask,
    )

    if mask_function not in (None, causal_mask_function, bidirectional_mask_function):
        more = {**more, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,  # type: ignore[arg-type]
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            **more,
        )
    filled = kv_length
    if mask_function is not bidirectional_mask_function:
        filled = min(kv_length, int(q_offset) + q_length - kv_offset)
    if attention_mask is not None:
        exists = attention_mask[:, kv_offset : kv_offset + filled].bool()
        return None if filled == kv_length and bool(exists.all()) else exists
    if filled == kv_length:
        return None
    return torch.ones(batch_size, filled, dtype=torch.bool, device=more.get("device"))


def _attention(
    variant: str,
    cross_variant: str,
    options: dict[str, Any],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """query [B, H, N, D], key [B, G, M, D], value [B, G, M, V] -> [B, N, H, V] and weights or None.

    attention_mask: of `_mask`, or 4-D, bool (True = seen) or added, which then says all there is;
    position_bias, as of T5, is added to the scores.
    """
    _refuse_unknown(variant, more, attention_mask)
    if attention_mask is not None and attention_mask.dim() == 2:
        filled = attention_mask.shape[1]
        key, value = key[:, :, :filled], value[:, :, :filled]
    N, M = query.shape[-2], key.shape[-2]
    mask = _read(module, attention_mask, position_bias, is_causal, N, M)
    window = more.get("sliding_window")
    if window is not None and window < M and mask.pairwise is None:
        raise _refused(variant, f"a sliding window of {window} that no mask spells out")
    cross = _is_cross(module, mask, N, M)
    chosen: dict[str, Any] | None = options
    if cross and cross_variant != variant:
        variant, chosen = cross_variant, None
    if mask.causal:
        variant_class(variant).capabilities.require(variant, causal=True, cross=False)
    core = _core(module, variant, chosen, query, M)
    if scaling is not None:
        query = query * (scaling * query.shape[-1] ** 0.5)
    run = partial(attend, core, dropout_p=dropout, need_weights=output_attentions)
    late = mask.causal and N < M and not core.capabilities.supports(causal=True, cross=True)
    if late and not cross:  # of a longer sequence the last queries: those before are any
        padded = F.pad(query, (0, 0, M - N, 0))
        out, weights = run(padded, key, value, mask, cross=False)
        out = out[..., M - N :, :]
        weights = None if weights is None else weights[..., M - N :, :]
    else:
        out, weights = run(query, key, value, mask, cross=cross or N != M)
    return out.transpose(1, 2), weights


def _refuse_unknown(variant: str, more: dict[str, Any], attention_mask: Tensor | None) -> None:
    """What would change attention and is in no mask: caps, sinks, chosen keys, packed sequences."""
    known = _HARMLESS
    if attention_mask is not None and attention_mask.dim() == 4:
        known = known | _PACKING
    for name, value in more.items():
        if name == "softcap" and value is not None:
            raise _refused(variant, name)
        if isinstance(value, Tensor) and name not in known:
            raise _refused(variant, f"the tensor {name!r} that the model gives its attention")


def _refused(variant: str, what: str) -> UnsupportedAttention:
    return UnsupportedAttention(
        f"{variant} does not support {what}. No variant of this package does: leave this model its "
        "own attention"
    )


def _read(
    module: nn.Module,
    attention_mask: Tensor | None,
    position_bias: Tensor | None,
    is_causal: bool | None,
    N: int,
    M: int,
) -> AttentionMask:
    """Everything that transformers says about who sees whom."""
    if attention_mask is not None and not (
        attention_mask.dtype == torch.bool or attention_mask.is_floating_point()
    ):
        raise ValueError(
            f"attention_mask is {attention_mask.dtype} where attention gets it: give bool, True = "
            "seen, or floats that are added to the scores"
        )
    if attention_mask is not None and attention_mask.dim() == 4:
        causal, padding, pairwise = False, None, attention_mask[..., :M]
    else:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        padding, pairwise = attention_mask, None
    if position_bias is not None and bool((position_bias != 0).any()):
        if pairwise is None:
            pairwise = position_bias
        elif pairwise.dtype == torch.bool:
            pairwise = position_bias.masked_fill(~pairwise, float("-inf"))
        else:
            pairwise = pairwise + position_bias
    return AttentionMask(bool(causal), padding, pairwise)


def _is_cross(module: nn.Module, mask: AttentionMask, N: int, M: int) -> bool:
    """Whether keys come of another sequence; transformers does not tell it in one way."""
    if mask.causal:
        return False
    named = getattr(module, "is_cross_attention", False) or "Cross" in type(module).__name__
    return bool(named) or N != M or getattr(module, "is_decoder", False)


def _core(
    module: nn.Module, variant: str, options: dict[str, Any] | None, query: Tensor, M: int
) -> AttentionVariant:
    """The module's own core of this variant with these options, made at the first call.

    options: {} = those of the config; None = the defaults, whatever the config says of another
    variant. Without parameters it is kept beside the model, which so keeps its state dict: what is
    drawn, the option ``seed`` draws again.
    """
    if options == {}:
        options = getattr(getattr(module, "config", None), "efficient_attn_options", None)
    choice = (variant, repr(sorted((options or {}).items())))
    submodule = module._modules.get(CORE)
    if submodule is not None and submodule.__dict__.get("_choice") == choice:
        assert isinstance(submodule, AttentionVariant)
        return submodule
    kept = module.__dict__.setdefault(CORES, {})
    identity = (choice, query.device, query.dtype, query.shape[1], query.shape[-1])
    if identity not in kept:
        made = _make(module, variant, options or {}, query, M)
        if any(True for _ in made.parameters()):
            made.__dict__["_choice"] = choice
            module.add_module(CORE, made)
            return made.train(module.training)
        kept[identity] = made
    core: AttentionVariant = kept[identity]
    return core.train(module.training)


def forget_cores(model: nn.Module) -> None:
    """Take away what calls and `make_cores` gave the model."""
    for module in model.modules():
        module._modules.pop(CORE, None)
        module.__dict__.pop(CORES, None)


def _make(
    module: nn.Module, variant: str, options: dict[str, Any], query: Tensor, M: int
) -> AttentionVariant:
    config = getattr(module, "config", None)
    longest = next((getattr(config, n) for n in _LENGTHS if getattr(config, n, None)), None)
    resolved = resolve_options(
        variant,
        options,
        max_len=longest or (M if _preparing else None),
        layer=_layer(module, config),
    )
    H, D = query.shape[1], query.shape[-1]
    core = make_core(variant, H, D, device=query.device, dtype=query.dtype, **resolved)
    if not _preparing and any(True for _ in core.parameters()):
        raise RuntimeError(
            f"{variant} has parameters of its own, which this model has not: call "
            "efficient_attn.integrations.transformers.make_cores(model) once before using it"
        )
    return core


def _layer(module: nn.Module, config: Any) -> int:
    """Where the module stands in its model's depth: as it says itself, or else the how-manyth of
    those with its config that is called."""
    told = getattr(module, "layer_idx", None)
    if told is not None:
        return int(told)
    if _LAYER in module.__dict__:
        return int(module.__dict__[_LAYER])
    if id(config) not in _seen:
        _seen[id(config)] = 0
        if config is not None:
            weakref.finalize(config, _seen.pop, id(config), None)
    module.__dict__[_LAYER] = _seen[id(config)]
    _seen[id(config)] += 1
    return int(module.__dict__[_LAYER])
