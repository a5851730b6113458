"""A module of torchtitan with one value of its configuration changed where it is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import Entry, KeyText, leaves
from meshwright.targets.python_values import keywords
from meshwright.targets.torchtitan.earlier import RECOMPUTE, toml_text
from meshwright.targets.torchtitan.functions import CONFIG, SECTIONS, module_keys
from meshwright.targets.torchtitan.module import python_literal
from meshwright.targets.torchtitan.stages import MODULES, by_weights

_IN_TOML = (*SECTIONS.values(), RECOMPUTE)
_KINDS = "torchtitan.distributed.activation_checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleText(KeyText):
    """A module whose values are keywords of calls."""

    def with_value(self, path: str, value: Any) -> str | None:
        """The module with one value changed, as for other texts; a kind of recompute is imported where it was not."""
        text = KeyText.with_value(self, path, value)
        if text is None or path != RECOMPUTE or value == "none" or re.search(rf"import [^\n]*\b{value}\b", text):
            return text
        line = f"from {_KINDS} import {value}\n"
        at = re.search(r"^(from|import) torchtitan", text, re.MULTILINE)
        return None if at is None else text[: at.start()] + line + text[at.start() :]


def edited_module(name: str, text: str) -> KeyText | None:
    """A Python module, or TOML of an earlier version, as a text that can be edited; None for other files.

    Args:
        name: the name of the file; under a name of TOML, the values of a module are those that TOML can hold.
        text: the text of the file.
    """
    if not name.endswith((".py", ".toml")):
        return None
    keys, unresolved = module_keys(text)
    if CONFIG in unresolved:
        return None
    if name.endswith(".toml"):
        held = {path: value for path, value in leaves(keys) if path.partition(".")[0] in _IN_TOML}
        if MODULES in held:
            ranks = held.get("parallelism.pipeline_parallel_degree", 1)
            weights = by_weights(held[MODULES], ranks)
            held = {path: value for path, value in held.items() if path != MODULES or not weights} | weights
        return toml_text(text, held)
    entries, values = dict(_entries(text)), dict(leaves(keys))
    return ModuleText(text=text, entries=entries, said=_written, key=str, values=values, joint="=")


def _written(value: Any) -> str:
    if value in ("FullAC", "SelectiveAC"):
        return f"{value}.Config()"
    return "None" if value == "none" else python_literal(value)


def _entries(text: str) -> Iterator[tuple[tuple[str, ...], Entry]]:
    for one in keywords(text):
        if one.call in SECTIONS:
            yield (SECTIONS[one.call],), one.around
            yield (SECTIONS[one.call], one.name), one.at
        elif one.call == "Trainer.Config" and one.name == RECOMPUTE:
            yield (RECOMPUTE,), one.at
