"""The variants that tests of the whole registry go through: all but the toys of other tests."""

import efficient_attn as ea
from efficient_attn.attention import variant_class

SHIPPED = [
    name
    for name in ea.list_variants()
    if variant_class(name).__module__.startswith("efficient_attn.")
]


def shipped(**abilities: bool) -> list[str]:
    """Those with the abilities, asked for as in `list_variants`."""
    return [name for name in ea.list_variants(**abilities) if name in SHIPPED]
