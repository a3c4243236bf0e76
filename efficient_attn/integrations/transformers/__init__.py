"""transformers: every variant as an attention of its models, and BERT and Swin rebuilt here."""

from efficient_attn.integrations.transformers.attention import make_cores, register
from efficient_attn.integrations.transformers.checkpoints import load, save
from efficient_attn.integrations.transformers.models import (
    BertEncoder,
    from_config,
    from_transformers,
)

__all__ = [
    "BertEncoder",
    "from_config",
    "from_transformers",
    "load",
    "make_cores",
    "register",
    "save",
]
