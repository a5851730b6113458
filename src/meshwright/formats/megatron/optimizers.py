"""Optimizers as Megatron-LM options, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.errors import Problem
from meshwright.specs.optimizers.base import Optimizer
from meshwright.specs.optimizers.muon import Muon

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Values

OPTIMIZERS = {
    "adam": (("--optimizer", "adam"),),
    "adamw": (("--optimizer", "adam"),),
    "sgd": (("--optimizer", "sgd"), ("--sgd-momentum", "0.0")),
    "sgd-momentum": (("--optimizer", "sgd"),),
    "muon": (("--optimizer", "muon"),),
    "lion": (("--optimizer", "lion"),),
    "soap": (("--optimizer", "soap"),),
}
"""Adam decouples weight decay there, as AdamW does."""
STEPS = "--muon-num-ns-steps"
_USUAL = (
    ("--muon-tp-mode", "duplicated", "every tensor rank is taken to update whole matrices"),
    ("--muon-scalar-optimizer", "adam", "what is no matrix of a layer is taken to be updated by Adam"),
)


def optimizer_flags(kind: Optimizer) -> list[tuple[str, str]] | None:
    """Options for an optimizer, None where no option asks for it or for its settings."""
    if isinstance(kind, Muon) and kind != Muon() and not kind.layerwise:
        return [*OPTIMIZERS["muon"], (STEPS, str(kind.steps))]
    return list(OPTIMIZERS[kind.name]) if kind.name in OPTIMIZERS and kind == type(kind)() else None


def read_optimizer(values: Values) -> tuple[str, list[Problem]]:
    """The optimizer that options ask for, and what of it is not priced."""
    name = values.text("--optimizer", "adam").removeprefix("dist_")
    if name == "sgd" and values.number("--sgd-momentum", 0.9) > 0:
        return "sgd-momentum", []
    if name != "muon":
        return name, []
    problems = [
        Problem(what=f"{flag} {values.text(flag)}", why=why, fix=f"use {usual}", field=flag)
        for flag, usual, why in _USUAL
        if values.text(flag, usual) != usual
    ]
    steps = values.whole(STEPS, Muon().steps)
    return ("muon" if steps == Muon().steps or steps < 1 else f"muon:steps={steps}"), problems
