"""Modules that predict more tokens at once, where their layer is not like the last one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshwright.formats.huggingface.fields import Fields
from meshwright.formats.huggingface.mixers import PARTS, WORDS
from meshwright.specs.model import LayerSpec

PATTERNS = ("mtp_layers_block_type", "mtp_hybrid_override_pattern")
"""Keys that name the parts of a module, as words or letters (Nemotron 3)."""


def read_module(fields: Fields, layers: Sequence[LayerSpec]) -> LayerSpec | None:
    """The layer of a module whose parts are named: attention and a feed-forward part as other layers have them.

    Args:
        fields: the config.
        layers: the layers of the model.

    Returns:
        One layer of both, None where no key names a mixer and a feed-forward part that some layer has.
    """
    words = next((list(said) for key in PATTERNS if isinstance(said := fields.raw(key), (str, list)) and said), [])
    named = [str(word) for word in words]
    if [WORDS.get(word) for word in named] != ["full", "none"]:
        return None
    sparse = PARTS[named[1]] == "sparse"
    mixing = next((one for one in layers if getattr(one.attention, "kv_heads", 0)), None)
    feeding = next((one for one in layers if not one.mlp.absent and bool(one.mlp.routed_experts) == sparse), None)
    if mixing is None or feeding is None:
        return None
    return replace(mixing, mlp=feeding.mlp, norms=2)
