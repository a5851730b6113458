"""Plans that a target can run, found by asking its rules about a grid of plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

from meshwright.estimate.layout import expand
from meshwright.estimate.rules.legality import row_problems
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import resolve
from meshwright.schedules import SCHEDULES
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from tests import once

MODELS = ("llama-3.1-8b", "mixtral-8x7b")
OTHER_MODELS = {
    "llamafactory": (*MODELS, "llama-3-8b", "llama-2-7b"),
    "axolotl": (*MODELS, "llama-3-8b"),
    "galvatron": ("llama-2-7b", "llama-2-13b"),
    "maxtext": (*MODELS, "llama-3-8b"),
    "alpa": (*MODELS, "llama-3-8b"),
    "megatron-deepspeed": (*MODELS, "llama-3-8b", "llama-2-7b"),
}
"""Of targets that run few of these plans, or none."""
SEQ_LEN = 4096
_DEGREES = (
    "",
    "tp2",
    "tp8",
    "tp2.nosp",
    "pp2",
    "pp4.vpp2",
    "pp4.vpp2.interleaved-group8",
    "tp2.pp2",
    "cp2",
    "cp2-a2a",
    "cp2-ag",
    "tp2.cp2",
    "ep8",
    "ep2",
)
_SHARDINGS = ("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep", "hsdp4")
_OTHERS = (
    "",
    "mbs2.rc-full",
    "rc-sel",
    "nodpov",
    "off-og",
    "off-wog",
    "tpov.rc-block2",
    "zb-h1",
)


def job(line: str, model: str = "llama-3-8b", gpus: str = "16xH100", gbs: int = 64) -> Job:
    """A plan as its one line says it."""
    cluster, spec = resolve_gpus(gpus), resolve(model)
    row = parse_row(line, devices=cluster.devices, global_batch=gbs, schedules=tuple(SCHEDULES))
    workload = Workload(seq_len=SEQ_LEN, global_batch=row.gbs)
    return Job(model=spec, cluster=cluster, workload=workload, plan=expand(row, spec, SEQ_LEN), name=row.format())


class OfGrid(NamedTuple):
    """A plan of the grid."""

    line: str
    model: str
    name: str

    def job(self) -> Job:
        """The plan, whose devices are all ranks."""
        row, spec = _row(self.line), resolve(self.model)
        workload, plan = Workload(seq_len=SEQ_LEN, global_batch=64), expand(row, spec, SEQ_LEN)
        return Job(model=spec, cluster=resolve_gpus("16xH100"), workload=workload, plan=plan, name=self.name)


def _row(line: str) -> PlanRow:
    row = parse_row(line, devices=16, global_batch=64, schedules=tuple(SCHEDULES))
    return replace(row, dp=16 // (row.tp * row.cp_degree * row.pp))


@cache
def _grid(models: tuple[str, ...]) -> tuple[tuple[OfGrid, Job], ...]:
    """Legal plans of every kind."""
    return tuple((one, one.job()) for one in _lines(models))


def _lines(models: tuple[str, ...]) -> Iterator[OfGrid]:
    for model, degrees, sharding, other in product(models, _DEGREES, _SHARDINGS, _OTHERS):
        if "interleaved" in degrees and other == "zb-h1":
            continue  # two schedules
        spec = resolve(model)
        line = ".".join(part for part in (degrees, sharding, other) if part)
        row = _row(line)
        if (not spec.is_moe and row.ep > 1) or (row.pp == 1 and row.schedule != "1f1b"):
            continue  # nothing to say of these
        if not row_problems(row, spec, SEQ_LEN, 16):
            yield OfGrid(line, model, row.format())


@cache
def runs_of(target: str) -> tuple[OfGrid, ...]:
    """Those of the grid that a target can run. One worker asks for all: it is asked about a thousand plans."""
    return tuple(OfGrid(*one) for one in json.loads(once.made(f"runs of {target}", lambda: _runs(target))))


def _runs(target: str) -> str:
    grid = _grid(OTHER_MODELS.get(target, MODELS))
    return json.dumps([one for one, made in grid if not TARGETS[target].refused(made)])
