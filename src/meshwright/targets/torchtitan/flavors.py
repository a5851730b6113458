"""Models that torchtitan 0.3.0 ships, by their shape: its configs are Python, so that a plan names one of them.

Source: torchtitan/models/*/__init__.py of torchtitan 0.3.0 (2026-11).
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """One model of torchtitan."""

    module: str
    name: str


_SHAPES: dict[tuple[str, int, int, int], tuple[str, str]] = {
    ("llama", 16, 2048, 128256): ("llama3", "1B"),
    ("llama", 28, 3072, 128256): ("llama3", "3B"),
    ("llama", 32, 4096, 128256): ("llama3", "8B"),
    ("llama", 80, 8192, 128256): ("llama3", "70B"),
    ("llama", 126, 16384, 128256): ("llama3", "405B"),
    ("qwen3", 28, 1024, 151936): ("qwen3", "0.6B"),
    ("qwen3", 28, 2048, 151936): ("qwen3", "1.7B"),
    ("qwen3", 36, 2560, 151936): ("qwen3", "4B"),
    ("qwen3", 36, 4096, 151936): ("qwen3", "8B"),
    ("qwen3", 40, 5120, 151936): ("qwen3", "14B"),
    ("qwen3", 64, 5120, 151936): ("qwen3", "32B"),
    ("qwen3_moe", 48, 2048, 151936): ("qwen3", "30B-A3B"),
    ("qwen3_moe", 94, 4096, 151936): ("qwen3", "235B-A22B"),
    ("deepseek_v2", 27, 2048, 102400): ("deepseek_v3", "16B"),
    ("deepseek_v2", 60, 5120, 102400): ("deepseek_v3", "236B"),
    ("deepseek_v3", 61, 7168, 129280): ("deepseek_v3", "671B"),
    ("gpt_oss", 24, 2880, 201088): ("gpt_oss", "20b"),
    ("gpt_oss", 36, 2880, 201088): ("gpt_oss", "120b"),
}
"""Family, layers, width and vocabulary to the module and the name in it."""


_NAMES = {"llama3": "llama-3.1-{}", "qwen3": "qwen3-{}", "gpt_oss": "gpt-oss-{}"}
_OTHER_NAMES = {
    ("llama3", "1B"): "llama-3.2-1b",
    ("llama3", "3B"): "llama-3.2-3b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
}
"""What the library calls models that torchtitan ships."""


_FORMER = {
    ("llama2", "7B"): ("llama-2-7b", 32),
    ("llama2", "13B"): ("llama-2-13b", 40),
    ("llama2", "70B"): ("llama-2-70b", 80),
    ("llama4", "17bx16e"): ("llama-4-scout", 48),
    ("llama4", "17bx128e"): ("llama-4-maverick", 48),
}
"""Models of earlier versions, with the library's names and their layers."""


MODULES = tuple(dict.fromkeys(module for module, _ in (*_SHAPES.values(), *_FORMER)))
"""Folders of torchtitan's models."""


def library_name(module: str, name: str) -> str | None:
    """The library's name of a model that torchtitan ships or shipped, None of others."""
    if (module, name) in _FORMER:
        return _FORMER[module, name][0]
    if (module, name) not in _SHAPES.values():
        return None
    return _OTHER_NAMES.get((module, name)) or _NAMES[module].format(name.lower())


def flavor_of(model: ModelSpec) -> Flavor | None:
    """torchtitan's own config of a model, None where it ships none of this shape."""
    return shipped(model) if _shape(model) in _SHAPES else None


def shipped(model: ModelSpec) -> Flavor:
    """torchtitan's own config of a model that it ships."""
    module, name = _SHAPES[_shape(model)]
    return Flavor(module=module, name=name)


def _shape(model: ModelSpec) -> tuple[str, int, int, int]:
    return model.family, model.num_layers, model.hidden, model.vocab


_ROPES: dict[str, tuple[float, str, float]] = {
    "llama3": (500000.0, "llama3", 8.0),
    "qwen3": (1000000.0, "default", 1.0),
    "deepseek_v3": (10000.0, "yarn", 40.0),
    "gpt_oss": (150000.0, "yarn", 32.0),
}
"""Base, scaling and its factor of the models of each module."""
_OTHER_BASES = {"235B-A22B": 5000000.0}
"""Rope bases of single models."""


_LONGEST = {"llama3": 131072, "qwen3": 40960, "deepseek_v3": 16384, "gpt_oss": 131072}


def longest(flavor: Flavor) -> int:
    """Tokens of the longest sequence that torchtitan's config of a model takes."""
    return _LONGEST[flavor.module]


def rope_changes(model: ModelSpec, flavor: Flavor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What has to be set of the rope of torchtitan's config to be the model's, and what of it cannot be.

    Args:
        model: its settings; those that are not stated are torchtitan's.
        flavor: torchtitan's config of it.

    Returns:
        Assignments to a layer's `attention.rope`, and constants that differ in what no field says.
    """
    settings = model.settings
    base, kind, factor = _ROPES[flavor.module]
    base = _OTHER_BASES.get(flavor.name, base)
    if settings.rope_base is None:
        return (), ()
    changes, unlike = [], []
    own, scaled = settings.rope_kind or "default", settings.rope_number.get("factor", 1.0)
    if settings.rope_base != base:
        changes.append(f"theta = {settings.rope_base!r}")
    if own == "default" and kind == "llama3":
        changes.append('scaling = "none"')
    elif own != kind:
        unlike.append(f"rope scaling {own} instead of {kind}")
    elif scaled != factor and kind == "llama3":
        changes.append(f"scaling_factor = {scaled!r}")
    elif scaled != factor and kind != "default":
        unlike.append(f"rope factor {scaled:g} instead of {factor:g}")
    return tuple(changes), tuple(unlike)


def flavor_names() -> str:
    """All of them, in a few words."""
    modules: dict[str, list[str]] = {}
    for module, name in _SHAPES.values():
        modules.setdefault(module, []).append(name)
    return "; ".join(f"{module} {', '.join(names)}" for module, names in modules.items())


def layers_of(module: str, name: str) -> int | None:
    """Layers of a model that torchtitan ships or shipped."""
    if (module, name) in _FORMER:
        return _FORMER[module, name][1]
    return next((shape[1] for shape, found in _SHAPES.items() if found == (module, name)), None)
