"""Programs of a user that start Megatron-Bridge: the recipe in them, with the YAML and words they are started with.

A program makes the recipe itself, or takes one that the package ships and lays a YAML over it, as
scripts/training and examples of Megatron-Bridge do.

Source: process_config_with_overrides of megatron/bridge/training/utils/omegaconf_utils.py, commit 067f987d (2026-08).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshwright.errors import Problem
from meshwright.formats.files import path_end
from meshwright.formats.key_text import leaves
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Launch, Script, job_at, launches, processes
from meshwright.targets import overrides
from meshwright.targets.bridge import options, recipe
from meshwright.targets.bridge.read import read_bridge_recipe, read_bridge_yaml
from meshwright.targets.key_texts import table_of

_SHIPPED = "megatron.bridge.recipes"
_CONFIG = re.compile(r"--config[-_](?:file|path)")
_NAME = "recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    """A start of a program that makes or takes a recipe."""

    launch: Launch
    name: str
    text: str
    shipped: str
    """The recipe of the package that it starts from; nothing where it makes its own."""


def started(script: Script, read: Callable[[str], str | None]) -> list[Launch]:
    """The starts of programs whose recipe is read here.

    Args:
        script: the script as bash means it.
        read: the text of a file beside the script, None where there is none.
    """
    return [one.launch for one in _programs(script, read)]


def read_programs(script: Script, read: Callable[[str], str | None], devices: int | None) -> LaunchFile | None:
    """The plan of such a program; None where a script starts none.

    Args:
        script: the script as bash means it.
        read: the text of a file beside the script, None where there is none.
        devices: the number of devices of the job; by default those that its launcher starts.

    Raises:
        InputError: the program is no Python, or its configuration no YAML.
    """
    found = _programs(script, read)
    if not found:
        return None
    at = job_at([one.launch for one in found], script.job)
    if isinstance(at, Problem):
        return LaunchFile(row=None, layout=None, questions=(at,))
    one = found[at]
    count, _ = processes(one.launch.launcher)
    over = {key: overrides.parsed_word(word.text) for key, word in overrides.by_equals(one.launch.words).items()}
    named = _file(one.launch)
    laid = one.launch.reading(read)(named) if named else None
    name = named.rpartition("/")[2]
    if named and laid is None:
        why = f"{one.name} lays it over its recipe ({one.launch.place})"
        problem = Problem(
            what=f"{path_end(named)} is not here", why=why, fix="put it beside the script", field="source"
        )
        return LaunchFile(row=None, layout=None, questions=(problem,), started=count)
    if not one.shipped:
        held = dict(leaves(table_of(laid, "YAML", "configuration of Megatron-Bridge"))) if laid is not None else {}
        launched = read_bridge_recipe(one.name, one.text, {**held, **over}, devices or count)
    else:
        launched = read_bridge_yaml(name or one.name, laid if laid is not None else "{}", over, devices or count)
        model = options.of_recipe(one.shipped) or {}
        launched = replace(launched, model={**launched.model, **model}, notes=(*launched.notes, _over(one.shipped)))
    return replace(launched, started=count, notes=(*launched.notes, *script.notes()))


def _over(shipped: str) -> str:
    return f"it is laid over {shipped}, a recipe of the package, which is not read"


def _file(launch: Launch) -> str:
    """The YAML that a program is started with; nothing where it has none."""
    for before, after in pairwise([*(word.text for word in launch.words), ""]):
        option, equals, value = before.partition("=")
        if _CONFIG.fullmatch(option):
            return value if equals else after
    return ""


def _programs(script: Script, read: Callable[[str], str | None]) -> Sequence[_Program]:
    found = []
    for launch in launches(script.commands):
        if not launch.program.endswith(".py") or launch.program.endswith(options.PROGRAMS):
            continue
        text = launch.reading(read)(launch.program)
        if text is None or "megatron.bridge" not in text:
            continue
        name = launch.program.rpartition("/")[2]
        shipped = "" if recipe.recognised(name, text) else _shipped(text)
        if shipped or recipe.recognised(name, text):
            found.append(_Program(launch=launch, name=name, text=text, shipped=shipped))
    return found


def _shipped(text: str) -> str:
    """The one recipe of the package that a program calls; nothing where it calls none, or several."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    imported = {
        one.asname or one.name: one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(_SHIPPED)
        for one in node.names
    }
    called = {
        imported[node.func.id]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported
    }
    return called.pop() if len(called) == 1 else ""
