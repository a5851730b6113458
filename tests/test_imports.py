"""Planning starts light, and what is shipped speaks only of itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_OF_A_PLAN = 254
"""Modules of ours: the start of a command is as long as what it imports. About 65 are the rules of the frameworks that
an answer names."""
NOT_OF_ONE_KIND = ("meshwright.planning.mixed", "meshwright.formats.megatron.read", "meshwright.formats.shell.evaluate")
NOT_TO_RUN = ("meshwright.planning.compose.", "meshwright.planning.mixed", "meshwright.search.")
HEAVY = {"jax", "torch", "ray", "scipy", "pandas"}

SHIPPED = sorted(
    path
    for pattern in (
        *("src/**/*", "benchmarks/**/*", "examples/**/*", "docs/**/*"),
        *(".ci/*", "*.md", "*.toml", "*.yml", "Makefile", "NOTICE"),
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".gz", ".png", ".ico"}
)

# What must not be in a shipped file, and what to write instead.
FOREIGN = {
    r"\.\./shared": "cite the public source",
    r"(?<![\w.])/work(?![\w])": "no absolute path",
    r"(?<![\w.])/(?:home|root|tmp|opt)/": "no absolute path",
    r"pypi\.org|pythonhosted\.org|anaconda\.org|--(?:extra-)?index-url|--find-links": "no registry: pip knows its own",
}


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_import_loads_no_accelerator_stack() -> None:
    loaded = modules_after("import meshwright")
    assert "meshwright" in loaded
    assert not loaded & HEAVY


def own_modules_after(*words: str) -> set[str]:
    """Our modules that the command line loads for a command."""
    code = (
        "import contextlib, io, json, sys\n"
        "from meshwright.cli.entry import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    assert main({list(words)!r}) == 0\n"
        "print(json.dumps([name for name in sys.modules if name.split('.')[0] == 'meshwright']))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(json.loads(result.stdout.splitlines()[-1]))


def test_a_plan_of_one_kind_of_device_loads_what_it_needs() -> None:
    loaded = own_modules_after("plan", "llama-3.1-70b", "--gpus", "64xH100")

    assert len(loaded) <= MOST_OF_A_PLAN
    assert not [name for name in loaded if name.startswith(NOT_OF_ONE_KIND)]


def test_a_run_loads_neither_search_nor_the_mixed_planner() -> None:
    loaded = own_modules_after(*["run", "mlp-tiny", "--steps", "1", "--devices", "2", "--plan", "dp2"])

    assert not [name for name in loaded if name.startswith(NOT_TO_RUN)]


def test_no_module_but_those_that_run_steps_loads_an_accelerator_stack() -> None:
    walk = (
        "import importlib, pkgutil, meshwright\n"
        "runs = ('meshwright.compiler', 'meshwright.zoo', 'meshwright.runtime', 'meshwright.xray')\n"
        "rooms = [m for m in pkgutil.iter_modules(meshwright.__path__, 'meshwright.') if m.name not in runs]\n"
        "assert 'meshwright.units' in [m.name for m in rooms]\n"
        "for room in rooms:\n"
        "    path = getattr(importlib.import_module(room.name), '__path__', ())\n"
        "    [importlib.import_module(m.name) for m in pkgutil.walk_packages(path, f'{room.name}.')]"
    )
    assert not modules_after(walk) & HEAVY


def test_a_plan_loads_no_accelerator_stack() -> None:
    loaded = modules_after("import meshwright\nassert len(meshwright.plan('llama-3-8b', cluster='8xH100')) > 0")
    assert "numpy" in loaded
    assert not loaded & HEAVY


def test_shipped_files_name_no_place_but_public_ones() -> None:
    found = [
        f"{path.relative_to(ROOT)} line {text.count(chr(10), 0, match.start()) + 1}: {match.group()!r}: {instead}"
        for path in SHIPPED
        for text in [path.read_text(encoding="utf-8")]
        for pattern, instead in FOREIGN.items()
        for match in re.finditer(pattern, text)
    ]
    assert not found, found
