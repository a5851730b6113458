"""Optimizers: bytes of states and work of an update, one file each."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from meshwright.errors import UnsupportedError, unknown_name

if TYPE_CHECKING:
    from meshwright.specs.optimizers.base import Optimizer

OPTIMIZERS: dict[str, str] = {
    "adam": "adam:Adam",
    "adamw": "adam:AdamW",
    "adam-mini": "adam_mini:AdamMini",
    "adamw-8bit": "adam_8bit:Adam8bit",
    "paged-adamw-8bit": "adam_8bit:PagedAdam8bit",
    "adafactor": "adafactor:Adafactor",
    "lion": "lion:Lion",
    "muon": "muon:Muon",
    "shampoo": "shampoo:Shampoo",
    "soap": "soap:Soap",
    "kfac": "kfac:Kfac",
    "pipefisher": "kfac:PipeFisher",
    "galore": "galore:GaLore",
    "sgd": "sgd:Sgd",
    "sgd-momentum": "sgd:Momentum",
}
"""File and class by name; a file is read on first use."""

ALIASES: dict[str, str] = {
    "adam8bit": "adamw-8bit",
    "adamw-bnb-8bit": "adamw-8bit",
    "paged-adam8bit": "paged-adamw-8bit",
    "adamw-torch": "adamw",
    "adamw-torch-fused": "adamw",
    "galore-adamw": "galore",
}
"""Names that frameworks give them; `_` counts as `-`."""


@lru_cache(maxsize=256)
def optimizer_named(text: str) -> Optimizer:
    """The optimizer of a text: its name, and behind a colon settings other than the usual ones: `galore:rank=256`.

    Args:
        text: name, or name:setting=value,setting=value.

    Raises:
        UnsupportedError: no optimizer has this name.
        InputError: it has no such setting, or a value is no whole number.
    """
    written, _, settings = text.partition(":")
    name = written.strip().lower().replace("_", "-")
    name = ALIASES.get(name, name)
    if name not in OPTIMIZERS:
        raise UnsupportedError(unknown_name("optimizer", written[:80], (*OPTIMIZERS, *ALIASES)), code="MW404")
    file, _, kind = OPTIMIZERS[name].partition(":")
    found: type[Optimizer] = getattr(import_module(f"{__name__}.{file}"), kind)
    given = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in settings.split(",")) if key}
    return found.read(text, given)
