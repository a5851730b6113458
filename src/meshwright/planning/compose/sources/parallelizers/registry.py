"""Parallelizers by name: those that are there, and `module:Class` of anybody else's.

A name stands for where its class is, and nothing is imported before it is asked for: some need packages of their own.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, nearest
from meshwright.specs.seam import Parallelizer

HOMES: Mapping[str, str] = MappingProxyType(
    {
        "native": "meshwright.planning.compose.sources.parallelizers.native:Native",
        "layerwise": "meshwright.planning.compose.sources.parallelizers.layerwise:Layerwise",
        "calculon": "meshwright.planning.compose.sources.parallelizers.with_calculon:Calculon",
        "galvatron": "meshwright.planning.compose.sources.parallelizers.with_galvatron:galvatron",
        "compiler": "meshwright.zoo.intra_operator:IntraOperator",
    }
)
"""Modules and the callables in them that make a parallelizer."""
EXTRAS = {"jax": "meshwright[jax]"}
"""What to install where a module is missing."""


Names = str | Parallelizer | Iterable[str | Parallelizer]


def parallelizers_named(names: Names) -> list[Parallelizer]:
    """Parallelizers by what a user writes; objects stay what they are.

    Args:
        names: `native,calculon`, `mine:TensorOrData`, or a list of such and of parallelizers.

    Raises:
        InputError: nothing is named, or what is named is no parallelizer.
        UnsupportedError: unknown names, or packages that are missing; all of them together.
    """
    given = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    wanted: list[str | Parallelizer] = []
    for one in given:
        wanted += [part.strip() for part in one.split(",") if part.strip()] if isinstance(one, str) else [one]
    if not wanted:
        fix = f"--parallelizer {', '.join(HOMES)}, or module:Class"
        raise InputError(what="no parallelizer is named", fix=fix, field="parallelizer", code="MW219")
    found: list[Parallelizer] = []
    errors: list[MeshwrightError] = []
    for place, one in enumerate(wanted):
        if isinstance(one, str) and one in wanted[:place]:
            continue
        try:
            found.append(_made(one) if isinstance(one, str) else _checked(one, repr(one)[:60]))
        except (InputError, UnsupportedError) as error:
            errors.append(error)
    if errors:
        first = next((error for error in errors if isinstance(error, InputError)), errors[0])
        raise type(first)([problem for error in errors for problem in error.problems], code=first.code)
    return found


def _made(name: str) -> Parallelizer:
    home = HOMES.get(name, name)
    module_name, colon, attribute = home.partition(":")
    module_name = module_name.removesuffix(".py")
    if not colon:
        close = nearest(name, HOMES)
        fix = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(HOMES)};"
        what, why = f"unknown parallelizer {name[:80]!r}", "it is neither a known name nor module:Class"
        problem = Problem(what=what, why=why, fix=f"{fix} your own is module:Class", field="parallelizer")
        raise UnsupportedError(problem, code="MW422")
    module = _module(module_name, name)
    made: Any = module
    for part in attribute.split("."):
        if not hasattr(made, part):
            close = nearest(part, [known for known in vars(made) if not known.startswith("_")])
            raise InputError(
                what=f"{module_name} has no {attribute[:80]!r}",
                why="--parallelizer names a class or a function that makes a parallelizer",
                fix=f"did you mean {module_name}:{close[0]}?" if close else "give module:Class",
                field="parallelizer",
                code="MW219",
            )
        made = getattr(made, part)
    if isinstance(made, type) or not hasattr(made, "plan"):
        made = _called(made, name)
    return _checked(made, name)


def _module(module_name: str, name: str) -> Any:
    """The module, from where the user is as well.

    Raises:
        UnsupportedError: it, or what it needs, is not installed.
        InputError: it ends with an error.
    """
    here = os.getcwd()
    added = here not in sys.path and "" not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        what = f"parallelizer {name[:80]} needs {package}, which is not installed"
        fix = f"pip install '{EXTRAS.get(package, package)}'"
        if package == module_name.partition(".")[0]:
            what, fix = f"there is no module {module_name[:80]!r}", f"run it beside {package}.py, or install {package}"
        problem = Problem(what=what, why="it is imported when it is named", fix=fix, field="parallelizer")
        raise UnsupportedError(problem, code="MW409") from None
    except (Exception, SystemExit) as error:
        what = f"{module_name[:80]} cannot be imported: {type(error).__name__}: {str(error)[:200]}"
        raise InputError(what=what, fix="correct it", field="parallelizer", code="MW219") from None
    finally:
        if added:
            sys.path.remove(here)


def _called(made: Any, name: str) -> Any:
    """What a class or function makes.

    Raises:
        InputError: it cannot be called without arguments, or fails.
        UnsupportedError: an error that the parallelizer raises.
    """
    try:
        return made()
    except MeshwrightError:
        raise
    except Exception as error:
        what = f"parallelizer {name[:80]} cannot be made: {type(error).__name__}: {str(error)[:200]}"
        why = "it is called without arguments"
        problem = Problem(what=what, why=why, fix="give its arguments defaults", field="parallelizer")
        raise InputError(problem, code="MW219") from None


def _checked(made: Any, name: str) -> Parallelizer:
    if not callable(getattr(made, "plan", None)):
        what = f"{name[:80]} is a {type(made).__name__} without a plan method"
        why = "a parallelizer has plan(part, island, workload, micro_batch)"
        problem = Problem(what=what, why=why, fix="see docs/write-a-parallelizer.md", field="parallelizer")
        raise InputError(problem, code="MW219")
    parallelizer: Parallelizer = made
    return parallelizer
