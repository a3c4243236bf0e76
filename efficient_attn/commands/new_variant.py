"""`efficient-attn new-variant`: the two files that a variant of one's own consists of."""

from __future__ import annotations

import argparse
import keyword
import re
from pathlib import Path

from efficient_attn.attention import list_variants

_MODULE = '''"""{title}: say here in a few lines what it computes, and why that is cheaper.

Source: authors, "title" (year), section and equation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

import efficient_attn as ea
from efficient_attn.attention import AttentionMask, AttentionVariant, Capabilities, OptionError


@dataclass(frozen=True)
class {title}Options:
    """sharpness: factor of the scores. Wrong values are refused here, with what is allowed."""

    sharpness: float = 1.0

    def __post_init__(self) -> None:
        if not self.sharpness > 0:
            raise OptionError(f"sharpness={{self.sharpness!r}}: allowed is above 0")


@ea.register_variant(
    "{name}",
    paper="",
    formula="softmax(s Q Kᵀ/√d) V",
    time="O(N²·d)",
    memory="O(N²)",
)
class {title}(AttentionVariant):
    """Softmax attention with sharper scores: a start that works, to be replaced."""

    Options = {title}Options
    # What is honoured exactly. All else is refused before `forward` is called.
    capabilities = Capabilities(
        noncausal_self=True,
        causal_self=True,
        noncausal_cross=True,
        causal_cross=True,
        key_padding=True,
        pairwise_mask=True,
    )

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, dropout_p: float = 0.0
    ) -> Tensor:
        """q [B, H, N, D], k [B, H, M, D], v [B, H, M, V] -> [B, H, N, V]."""
        N, M = q.shape[-2], k.shape[-2]
        scores = self.options.sharpness * (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        bias = mask.bias(N, M, q.device)
        if bias is not None:
            scores = scores + bias
        keep = mask.keep(N, M, q.device)  # bool, True = seen, broadcastable to [B, H, N, M]
        if keep is None:
            weights = scores.softmax(-1)
        else:  # a query that sees nothing gets zeros
            alive = keep.any(-1, keepdim=True)
            weights = scores.masked_fill(~(keep | ~alive), float("-inf")).softmax(-1)
            weights = weights.masked_fill(~alive, 0.0)
        weights = torch.nn.functional.dropout(weights, dropout_p, self.training)
        return weights.to(v.dtype) @ v
'''

_YAML = """# @package attention.{name}
# {title}: one line for people who choose.
variant: {name}:{title}
sharpness: 1.0 # factor of the scores
"""


def main(arguments: argparse.Namespace) -> int:
    """Write NAME.py and conf/attention/NAME.yaml, and say what comes next."""
    name = arguments.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"{name!r}: a name is lower case letters, digits and _, e.g. my_attention")
    if name in list_variants():
        raise ValueError(f"there is a variant {name!r} already: choose another name")
    folder = Path(arguments.folder)
    module, entry = folder / f"{name}.py", folder / "conf" / "attention" / f"{name}.yaml"
    for path in (module, entry):
        if path.exists():
            raise ValueError(f"{path} exists already: nothing was written")
    title = "".join(part.capitalize() for part in name.split("_"))
    entry.parent.mkdir(parents=True, exist_ok=True)
    module.write_text(_MODULE.format(name=name, title=title))
    entry.write_text(_YAML.format(name=name, title=title))
    where = "" if folder.resolve() == Path.cwd() else f"cd {folder}\n"
    print(
        f"wrote {module}\nwrote {entry}\n\nNext:\n{where}"
        f"efficient-attn check {name}:{title}\n"
        f"efficient-attn sweep attention=[full,{name}] workload.length=256,1024 results=mine\n"
        "efficient-attn plot mine\n\n"
        "Names of options stand in both files. In a package of your own, pyproject.toml has\n"
        f'  [project.entry-points."efficient_attn.variants"]\n  {name} = "{name}"\n'
        f'  [tool.setuptools]\n  py-modules = ["{name}"]'
    )
    return 0
