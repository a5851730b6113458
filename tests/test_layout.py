"""The floors of the house: who may import whom, as pyproject.toml says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from benchmarks import floors

ROOT = Path(__file__).parents[1]


def test_the_import_contracts_hold() -> None:
    run = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache"]
    result = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_every_folder_has_a_floor_and_every_planning_floor_is_free_of_accelerators() -> None:
    contracts = {
        contract["id"]: contract
        for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    }
    on_a_floor = {name.strip(" ()") for layer in contracts["floors"]["layers"] for name in layer.split("|")}
    on_disk = {
        path.stem
        for path in (ROOT / "src" / "meshwright").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert on_disk <= on_a_floor

    planning = {module.removeprefix("meshwright.") for module in contracts["planning"]["source_modules"]}
    assert planning == on_a_floor - {"cli", "service", "__main__", "compiler", "zoo", "runtime", "xray", "ray_cluster"}


def test_the_page_for_contributors_shows_every_floor_of_the_contract() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert floors.written(page) == page, "run `make floors`"
    assert all(floors.purpose(room).endswith(".") for rooms in floors.layers() for room in rooms)
