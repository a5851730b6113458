"""The folders of torchtitan's models that a module of configurations takes its models from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from meshwright.targets.torchtitan.flavors import MODULES


def model_module(tree: ast.Module, functions: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The folder of torchtitan's models that a module takes its model from.

    Args:
        tree: the module.
        functions: names of its functions that make configurations: those of a folder's registry begin with its name.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        whole = str(node.module or "")
        if whole.startswith("torchtitan.models.") and any(name.name == "model_registry" for name in node.names):
            yield "module", whole.rsplit(".", 1)[1]
        elif node.level == 1 and not whole and any(name.name == "model_registry" for name in node.names):
            found = {_folder(one) for one in functions} - {None}
            yield from (("module", own) for own in MODULES if found == {own})
        elif node.level == 1 and whole == "model":
            for name in node.names:
                if of := re.fullmatch(r"([A-Z]\w*?)Model", name.name):
                    yield "module", _FOLDERS.get(of[1], of[1].lower())


def registries(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names under which a module has registries of torchtitan's models, or their folders, each with the folder.

    Args:
        tree: the module.
    """
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "torchtitan.models":
            yield from ((one.asname or one.name, one.name) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchtitan.models."):
            folder = str(node.module).rpartition(".")[2]
            yield from ((one.asname or one.name, folder) for one in node.names if one.name == "model_registry")
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.startswith("torchtitan.models."):
                    yield one.asname or one.name, one.name.rpartition(".")[2]


def _folder(function: str) -> str | None:
    """The folder whose name a function begins with, the longest of several; None where it begins with none."""
    own = [one for one in (*MODULES, *_OTHER_MODULES) if function.lstrip("_").startswith(f"{one}_")]
    return max(own, key=len, default=None)


_OTHER_MODULES = ("qwen3_vl", "qwen3_5")
"""Folders of models that are not read, whose names begin as those of others."""


_FOLDERS = {"DeepSeekV3": "deepseek_v3", "GptOss": "gpt_oss", "Qwen35": "qwen3_5"}
"""Folders of models whose class is not called as its folder."""
