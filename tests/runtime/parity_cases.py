"""Which plans are held against one device: all of them, and the few that have every pair of what plans are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from meshwright.errors import MeshwrightError
from meshwright.estimate.rules.legality import row_problems
from meshwright.runtime.plan_method import check_runs, grid_of
from meshwright.runtime.training.run import Training
from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.schedules.table import Kind
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerRun, ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.row_text import parse_row
from meshwright.zoo.tiny import TINY
from tests.pairwise import pairwise

MICRO_BATCHES, SAMPLES, LENGTH = 8, 64, 8
PERCEPTRON = "mlp-tiny"
MODELS = (PERCEPTRON, *(name for name, spec in TINY.items() if len(spec.kinds()) == 1))
SEQUENCES = ("gpt-tiny", "llama-tiny")
"""Models whose tokens read earlier ones alone: experts have places for so many tokens of a sample."""
STAGES = (1, 2, 3, 4, 8)
"""With 8, 4, 2, 2 and 1 devices each."""
RANKS = {
    "data": "",
    "tensor": "tp8 tp4 tp2",
    "tensor and data": "tp4 tp2",
    "context": "cp4 cp2",
    "heads": "cp4-a2a cp2-a2a",
    "gathered keys": "cp2-ag",
    "heads and ring": "cp4-a2a2xp2p2",
    "experts": "ep4 ep2",
    "parts of experts": "tp2.ep2.etp2 ep2.etp2 tp2.etp2",
}
"""How the devices of a stage are used; of several ways the first that goes with their number."""
SPLIT = {"tensor and data": "tensor", "heads": "context", "gathered keys": "context", "heads and ring": "context",
         "parts of experts": "experts"}  # fmt: skip
"""What such use splits, where it goes by another name."""
SHARDINGS = ("z0", "z1", "z2", "z3", "fsdp-keep", "hsdp")
RECOMPUTES = ("none", "sel", "full")
DTYPES = ("fp64", "fp32")


def _nests(row: PlanRow) -> bool:
    """Whether a plan runs, and its ranks go together."""
    try:
        check_runs(row)
        grid_of(row)
    except MeshwrightError:
        return False
    return True


RUNNING = tuple(name for name in SCHEDULES if SCHEDULES[name].flushes and _nests(PlanRow(schedule=name)))
"""Schedules that `run` runs with one update a step; test_versioned_training holds those with several versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model under a plan in a number format."""

    model: str
    ranks: str
    row: PlanRow
    dtype: str

    @property
    def name(self) -> str:
        """In test reports."""
        return f"{self.model}-{self.row.format()}-{self.dtype}"

    @property
    def factors(self) -> dict[str, str | int]:
        """What its pairs are made of."""
        row = self.row
        return {
            "model": self.model,
            "stages": row.pp,
            "split": SPLIT.get(self.ranks, self.ranks),
            "ranks": self.ranks,
            "lists": _lists(row.schedule),
            "schedule": row.schedule,
            "sharding": row.sharding,
            "recompute": row.recompute,
            "dtype": self.dtype,
        }

    @property
    def cost(self) -> float:
        """Programs that are compiled for it, about, in those of a perceptron."""
        programs = 3 if _lists(self.row.schedule) == "split backward" else 2
        return (1 if self.model == PERCEPTRON else 3) * (1 + programs * self.row.pp * self.row.vpp)


def training(model: str, row: PlanRow, layers: int) -> Training:
    """Narrow layers, and so few that stages are cut inside them; the perceptron has eight.

    Args:
        model: of `MODELS`.
        row: the plan.
        layers: of a decoder.
    """
    spec = None if model == PERCEPTRON else narrow(model, layers)
    return Training(spec=spec, row=row, stage_layers=(layers if spec else 8,), seq_len=LENGTH, hidden=8)


@cache
def narrow(model: str, layers: int) -> ModelSpec:
    """Eight heads of two numbers each.

    Args:
        model: of `TINY`.
        layers: of it.
    """
    spec = TINY[model]
    (layer,) = {one for run in spec.runs for one in run.layers}
    assert isinstance(layer.attention, Attention)
    heads = replace(layer.attention, heads=8, kv_heads=8 if layer.attention.qkv_bias else 4, head_dim=2)
    mlp: DenseMlp | MoeMlp = replace(layer.mlp, ffn_hidden=16)
    small = replace(layer, attention=heads, mlp=mlp)
    return replace(spec, hidden=16, vocab=24, runs=(LayerRun(layers=(small,), repeats=layers),))


def every_case() -> list[Case]:
    """Models x stages x ranks x schedules x formats; ways to shard states and to recompute take turns."""
    turns = iter(product(range(10**6), SHARDINGS, RECOMPUTES))
    found = []
    for model, stages, ranks, schedule, dtype in product(MODELS, STAGES, RANKS, RUNNING, DTYPES):
        # The next turn that goes with the case.
        for _, (_, sharding, recompute) in zip(range(18), turns, strict=False):
            if row := _row(model, stages, ranks, schedule, sharding, recompute):
                found.append(Case(model=model, ranks=ranks, row=row, dtype=dtype))
                break
    return found


def cover() -> list[Case]:
    """Few cases that have every pair of levels of any two factors, every schedule, and every use of devices.

    Pairs are those of cases that compile quickly: decoders on one, two and four stages.
    """
    cases = list(_small_cases())
    factors = ["model", "stages", "split", "lists", "sharding", "recompute", "dtype"]
    chosen = pairwise([case.factors for case in cases], factors, [case.cost for case in cases], ["schedule", "ranks"])
    return [cases[at] for at in chosen]


def _small_cases() -> Iterator[Case]:
    """All combinations that compile quickly: with many stages, perceptrons only."""
    for model, stages, ranks, schedule in product(MODELS, STAGES, RANKS, RUNNING):
        for sharding, recompute in product(SHARDINGS, RECOMPUTES):
            row = _row(model, stages, ranks, schedule, sharding, recompute)
            if row is not None and (model == PERCEPTRON or (row.pp != 3 and row.pp * row.vpp <= 4)):
                yield from (Case(model=model, ranks=ranks, row=row, dtype=dtype) for dtype in DTYPES)


def _row(model: str, stages: int, ranks: str, schedule: str, sharding: str, recompute: str) -> PlanRow | None:
    """The plan, where there is one."""
    grid = _grid(model, stages, ranks)
    chunks = _chunks(stages, schedule)
    if grid is None or chunks is None or (recompute != "none" and model == PERCEPTRON):
        return None
    if in_slices(schedule) and model not in SEQUENCES:
        return None
    row = replace(grid, schedule=schedule, vpp=chunks, sharding=sharding, recompute=recompute)
    if recompute == "sel":
        row = replace(row, recompute_modules=("core_attn", "layernorm", "moe" if model == "moe-tiny" else "mlp"))
    if in_slices(schedule) and not _nests(row):
        return None
    if sharding == "hsdp":
        # Half of the data ranks, with their context ranks.
        row = replace(row, shard_group=row.dp * row.cp_degree // 2)
        if row.dp < 4 or not _nests(row):
            return None
    return row


def in_slices(schedule: str) -> bool:
    """Whether a schedule runs sequences slice by slice.

    Args:
        schedule: its name.
    """
    known = schedule_named(schedule)
    return known.sections() > 1 and not known.parts_samples


@cache
def _chunks(stages: int, schedule: str) -> int | None:
    """Chunks of a stage under a schedule; one stage has none."""
    if stages == 1:
        return 1 if schedule == "1f1b" else None
    known = schedule_named(schedule)
    for chunks in (1, 2):
        if not list(known.problems(stages, MICRO_BATCHES, chunks)) and stages * chunks <= 8:
            return chunks
    return None


@cache
def _grid(model: str, stages: int, ranks: str) -> PlanRow | None:
    """Degrees of the first way to use the devices of a stage that is legal."""
    devices = 8 // stages
    if model == PERCEPTRON and not ranks.startswith(("data", "tensor")):
        return None
    for way in RANKS[ranks].split(" "):
        row = parse_row(f"{way}.pp{stages}".strip("."), devices=devices * stages, global_batch=SAMPLES, schedules=())
        row = replace(row, mbs=max(1, SAMPLES // MICRO_BATCHES // row.dp))
        uses_data = row.dp > 1
        if (
            row.devices != devices * stages
            or (ranks == "tensor" and uses_data)
            or (way and "and data" in ranks and not uses_data)
        ):
            continue
        if model != PERCEPTRON and row_problems(replace(row, pp=1), narrow(model, 8), LENGTH, devices):
            continue
        if _nests(row):
            return row
    return None


@cache
def _lists(schedule: str) -> str:
    """What the lists of a schedule are made of."""
    table = next(
        known.table(stages, MICRO_BATCHES, chunks)
        for known in [schedule_named(schedule)]
        for stages, chunks in product((2, 4), (1, 2))
        if not list(known.problems(stages, MICRO_BATCHES, chunks))
    )
    if table.placement.chains > 1:
        return "two directions"
    return "split backward" if Kind.I in table.kinds else "whole backward"
