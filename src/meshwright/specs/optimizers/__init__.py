"""Optimizers: bytes of states and work of an update, one file each."""

from __future__ import annotations

from functools import lru_cache

from meshwright.errors import UnsupportedError, unknown_name
from meshwright.specs.optimizers.adafactor import Adafactor
from meshwright.specs.optimizers.adam import Adam, AdamW
from meshwright.specs.optimizers.adam_8bit import Adam8bit, PagedAdam8bit
from meshwright.specs.optimizers.base import Matrix, Optimizer, Product
from meshwright.specs.optimizers.galore import GaLore
from meshwright.specs.optimizers.lion import Lion
from meshwright.specs.optimizers.muon import Muon
from meshwright.specs.optimizers.sgd import Momentum, Sgd
from meshwright.specs.optimizers.shampoo import Shampoo
from meshwright.specs.optimizers.soap import Soap

__all__ = ["OPTIMIZERS", "Matrix", "Optimizer", "Product", "optimizer_named"]

OPTIMIZERS: dict[str, type[Optimizer]] = {
    kind.name: kind
    for kind in (Adam, AdamW, Adam8bit, PagedAdam8bit, Adafactor, Lion, Muon, Shampoo, Soap, GaLore, Sgd, Momentum)
}
"""By name."""


@lru_cache(maxsize=256)
def optimizer_named(text: str) -> Optimizer:
    """The optimizer of a text: its name, and behind a colon settings other than the usual ones: `galore:rank=256`.

    Args:
        text: name, or name:setting=value,setting=value.

    Raises:
        UnsupportedError: no optimizer has this name.
        InputError: it has no such setting, or a value is no whole number.
    """
    name, _, settings = text.partition(":")
    if name not in OPTIMIZERS:
        raise UnsupportedError(unknown_name("optimizer", name[:80], OPTIMIZERS), code="MW404")
    given = {key.strip(): value.strip() for key, _, value in (one.partition("=") for one in settings.split(",")) if key}
    return OPTIMIZERS[name].read(text, given)
