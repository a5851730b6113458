"""What a family of configs leaves unsaid or says in its own words: data over one reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLASSES = "configuration and modelling classes of transformers 5.23.0, src/transformers/models"
"""Where keys, class defaults and parts of the families come from, unless a family says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Differences of one family from a decoder with RMSNorm, grouped attention and a gated MLP."""

    title: str
    """What people call it."""
    source: str = CLASSES
    spells: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Spellings of a shared key in this family, asked before the usual one."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """What its class takes for keys that the config leaves out."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Parts that it has whatever the config says, under the keys that the reader asks for."""
    required: tuple[str, ...] = ("num_key_value_heads",)
    """Keys that must be there, though others may leave them out; null counts as there."""
    dropouts: tuple[str, ...] = ("attention_dropout",)
    """Dropout probabilities that its layers apply."""
    sparse: bool = False
    """Whether the number of experts must be there."""
    rule: Callable[[Any], Mapping[str, object]] | None = None
    """Parts that follow from several keys at once, from the `Fields` of a config; joins `fixed`."""
