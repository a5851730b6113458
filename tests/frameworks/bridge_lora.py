"""Megatron-Bridge's own class of adapters on modules of Megatron-Core's names, in a process of its own.

`transformer_engine`, which needs a GPU, is stood in for by empty classes: adapters are only named here, never run.
Prints the modules that get an adapter, their rank and scale, a line for each argument: overrides as JSON.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import sys
import types
from typing import Any


class Empty(type):
    """A class whose every attribute is another empty class."""

    def __getattr__(cls, name: str) -> Any:
        """Another one, but for what Python itself asks for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Absent(types.ModuleType):
    """A package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        """An empty class."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty(name, (), {})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the package and all of its parts."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A spec of an absent module."""
        if name.partition(".")[0] != "transformer_engine":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """The module."""
        return Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing: there is nothing in it."""


def main() -> None:
    """Build the adapters and say where they stand."""
    installed = importlib.metadata.version
    importlib.metadata.version = lambda name: "2.9.0" if name.startswith("transformer") else installed(name)
    sys.meta_path.append(Finder())
    import torch
    from megatron.bridge.peft.lora import LoRA

    parts = {"self_attention": ("linear_qkv", "linear_proj"), "mlp": ("linear_fc1", "linear_fc2", "router")}
    paths = [(name, f"decoder.layers.0.{part}") for part, inside in parts.items() for name in inside]
    paths += [("word_embeddings", "embedding"), ("output_layer", "")]
    module = torch.nn.Linear(1, 1)
    for text in sys.argv[1:]:
        said = json.loads(text)
        adapters = LoRA(
            target_modules=[name.strip() for name in said["peft.target_modules"].strip("[]").split(",")],
            dim=int(said["peft.dim"]),
            alpha=int(said["peft.alpha"]),
            dropout=float(said["peft.dropout"]),
        )
        found = [name for name, prefix in paths if adapters.match(module, name, prefix) is not None]
        print(json.dumps({"modules": found, "rank": adapters.dim, "scale": adapters.alpha / adapters.dim}))


if __name__ == "__main__":
    main()
