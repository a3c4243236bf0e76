"""Contestants that the shipped configuration does not know: registered ones, and the person's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from efficient_attn.attention import describe, list_variants

CONF = "conf"
"""Folder of the person's own configuration, in the working directory."""


def own_configuration(arguments: Sequence[str]) -> list[str]:
    """Overrides that let `arguments` choose a registered variant without a file in the shipped
    configuration, with its options, and what stands in the working directory's ``conf/``."""
    _store_registered()
    own = Path(CONF).absolute()
    given = any(word.lstrip("+").startswith("hydra.searchpath") for word in arguments)
    if given or not (own / "attention").is_dir() or own.resolve() == _shipped().resolve():
        return []
    quoted = f"file://{own}".replace("'", "\\'")
    return [f"hydra.searchpath=['{quoted}']"]


def _store_registered() -> None:
    store = ConfigStore.instance()
    shipped = {path.stem for path in (_shipped() / "attention").glob("*.yaml")}
    for name in list_variants():
        if name not in shipped:
            options = OmegaConf.create({"variant": name, **describe(name).options})
            store.store(
                name,
                options,
                group="attention",
                package=f"attention.{name}",
                provider="efficient-attn",
            )


def _shipped() -> Path:
    return Path(str(resources.files("efficient_attn.conf").joinpath("sweep.yaml"))).parent
