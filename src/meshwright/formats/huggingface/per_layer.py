"""Layers whose config differs from the others': `per_layer_config` of transformers, key by key and layer by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.formats.huggingface.fields import Fields
from meshwright.formats.huggingface.keys import harmless
from meshwright.specs.layers.absent import NoMixer, NoMlp
from meshwright.specs.layers.base import FeedForward, Mixer

KEY = "per_layer_config"
PARTS = ("attention", "mlp")
"""Parts of a layer that `skip` may take out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Layers with one and the same change."""

    fields: Fields
    """The config as these layers have it."""
    layers: tuple[int, ...]
    keys: tuple[str, ...]
    skip: frozenset[str]

    def check(self, fields: Fields) -> None:
        """Refuse changed keys that no reader asked for.

        Args:
            fields: the fields of the whole config, where it is noted.
        """
        for key in self.keys:
            if not (self.fields.asked(key) or harmless(key)):
                fields.refuse(KEY, key, "no reader understands this key, which may change the model")

    def without(self, mixer: Mixer, mlp: FeedForward) -> tuple[Mixer, FeedForward]:
        """The parts of such a layer, without those that it skips.

        Args:
            mixer: the mixer as its config has it.
            mlp: the same.
        """
        return NoMixer() if "attention" in self.skip else mixer, NoMlp() if "mlp" in self.skip else mlp


def read_per_layer(fields: Fields, layers: int) -> list[Changed]:
    """Changes of layers, those alike together.

    Args:
        fields: the config.
        layers: how many there are.

    Source: transformers 5.24.0, integrations/heterogeneity/configuration_utils.py.
    """
    value = fields.raw(KEY)
    if not isinstance(value, Mapping):
        fields.problem(KEY, value, 'must be an object of layers: {"3": {"head_dim": 256}}')
        return []
    alike: dict[str, tuple[Mapping[str, object], list[int]]] = {}
    for name, change in value.items():
        number = int(name) if isinstance(name, str) and name.isdecimal() and len(name) < 6 else -1
        if not 0 <= number < layers:
            if not fields.bad("num_hidden_layers"):
                fields.problem(KEY, name, f"must name layers from 0 to {layers - 1}")
            return []
        if not isinstance(change, Mapping):
            fields.problem(KEY, change, f"layer {number} must have an object of keys and values")
            return []
        _, places = alike.setdefault(json.dumps(change, sort_keys=True, default=repr), (change, []))
        places.append(number)
    return [_changed(fields, change, places) for change, places in alike.values()]


def _changed(fields: Fields, change: Mapping[str, object], places: list[int]) -> Changed:
    """One change, and the layers that have it."""
    skip = change.get("skip")
    words = frozenset(word for word in skip if isinstance(word, str)) if isinstance(skip, list) else frozenset()
    if not words <= {*PARTS}:
        fields.refuse(KEY, sorted(words - {*PARTS})[0], f"only {' and '.join(PARTS)} of a layer can be skipped here")
    sizes = {key: value for key, value in change.items() if key != "skip"}
    return Changed(fields=fields.changed(sizes), layers=tuple(places), keys=tuple(sizes), skip=words)
