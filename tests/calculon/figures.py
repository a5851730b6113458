"""Answers of the original: a sample beside the tests, and the whole set where the reference shelf is at hand."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, System
from meshwright.calculon.model import price
from meshwright.calculon.reading import library_names, read_application, read_execution, read_system
from meshwright.calculon.statistics import CalculonColumns

DATA = Path(__file__).parent / "data"
SHELF = Path(__file__).parents[3] / "shared" / "calculon"
on_the_shelf = pytest.mark.skipif(not SHELF.is_dir(), reason="the reference shelf is not available")


@dataclass(frozen=True, slots=True)
class Design:
    """Rows of one application on one system."""

    app: Application
    system: System
    rows: tuple[dict[str, Any], ...]

    @property
    def executions(self) -> list[Execution]:
        return [read_execution(row["execution"]) for row in self.rows]

    @property
    def columns(self) -> ExecutionColumns:
        return ExecutionColumns.from_executions(self.executions)

    def priced(self, *, fixed: bool = False) -> CalculonColumns:
        return price(self.app, self.system, self.columns, fixed=fixed)


@cache
def answers(path: Path = DATA / "golden_sample.jsonl.gz") -> list[tuple[Design, CalculonColumns]]:
    """Every design of a file with our answers."""
    return [(design, design.priced()) for design in designs(path)]


@cache
def app_named(name: str) -> Application:
    return read_application(name)


@cache
def system_named(name: str) -> System:
    return read_system(name if name in library_names("systems") else DATA / "systems" / f"{name}.json")


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt") as stream:
        yield from map(json.loads, stream)


def designs(path: Path = DATA / "golden_sample.jsonl.gz") -> list[Design]:
    """The rows of a file by application and system."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in lines(path):
        found.setdefault((row["app"], row["system"]), []).append(row)
    return [Design(app_named(app), system_named(system), tuple(rows)) for (app, system), rows in found.items()]


def published() -> list[dict[str, str]]:
    """Published values beside the original's."""
    with (DATA / "validation.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def execution(**changes: Any) -> dict[str, Any]:
    """An execution of gpt3-175B on 64 processors of a100_80g that is accepted, with changes."""
    return {
        "num_procs": 64,
        "tensor_par": 8,
        "pipeline_par": 8,
        "data_par": 1,
        "tensor_par_net": 0,
        "pipeline_par_net": 1,
        "data_par_net": 1,
        "batch_size": 64,
        "microbatch_size": 1,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": "attn_only",
        "pipeline_interleaving": 3,
        "optimizer_sharding": False,
        "tensor_par_comm_type": "rs_ag",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": True,
        "data_par_overlap": False,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
        **changes,
    }
