"""The plans a measured row may have run, and how its layers lie on their stages."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.formats.measured import fold, functional_tests
from meshwright.formats.measured.habits import FSDP2, Habits
from meshwright.formats.measured.record import MeasuredRecord
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow

# Chunks per worker in NVIDIA's published recipes: 4 to 8, more only where a layer is a chunk.
MOST_CHUNKS = 8
# Columns of an expert below which nobody cuts it between tensor ranks: two tiles of a matrix product. Every row that
# states the degree for experts as thin as that has 1 (Qwen3-235B in Megatron-Bridge and Megatron-MoE-ModelZoo).
THINNEST_SLICE = 512
# What Megatron-Core's guide to mixtures of experts recomputes first when memory is short.
_EXPERT_MODULES = ("layernorm", "moe_act", "mla_up_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class PossiblePlan:
    """One plan a measured row may have run."""

    row: PlanRow
    modules: tuple[str, ...] = ()
    """Modules that `sel` recomputes where they are not core attention alone."""


class PlanReader:
    """Reads degrees, recompute and micro-batches of a row, and what users of its framework do where it is silent.

    Args:
        record: the row.
        habits: the habits of its framework.
        year: the year of its source.
        assume: notes what the row does not say, by name and value.
    """

    def __init__(self, record: MeasuredRecord, habits: Habits, year: int, assume: Callable[[str, str], None]) -> None:
        self.record, self.habits, self.year, self.assume = record, habits, year, assume
        self.notes = record.notes

    def plans(self, devices: int, batch: int, model: ModelSpec) -> tuple[PossiblePlan, ...]:
        """The degrees, and every recompute and micro-batch they may have run with."""
        record = self.record
        sharding, group = self.sharding()
        tp, pp, cp = (self.degree(name, sharded=sharding in ("fsdp", "hsdp", "z3")) for name in ("tp", "pp", "cp"))
        dp = record.whole("dp") or max(1, devices // (tp * pp * cp))
        ep = record.whole("ep") or 1
        instances = functional_tests.optimizer_instances(record.text("framework"), record.text("notes"))
        if sharding == "z1" and instances > 1:
            sharding, group = "z1in", dp * cp // instances
        if sharding == "hsdp" and group >= dp * cp:
            sharding, group = "fsdp", 0
        if sharding == "hsdp":
            group = max(group, cp)
        if pp > 1 and sharding == "fsdp" and self.habits.software in FSDP2:
            self.assume("reshard_after_forward", "never: torchtitan's default in a pipeline")
            sharding = "fsdp-keep"
        if pp > 1 and sharding == "fsdp-keep":
            self.assume("gradients", "summed once per step: the pipeline syncs after its last micro-batch")
            sharding = "z1"
        vpp = self.chunks(pp, model)
        again = self.recompute(model, pp * vpp)
        choices = self.micro_batches(pp, batch, dp, model)
        sequence_parallel, tp_overlap = self.tensor(tp, model)
        plans = [
            PossiblePlan(
                modules=mode.modules,
                row=PlanRow(
                    tp=tp,
                    sp=sequence_parallel,
                    tp_overlap=tp_overlap,  # type: ignore[arg-type]
                    cp=((self.context(), cp),) if cp > 1 else (),
                    pp=pp,
                    vpp=vpp,
                    ep=ep,
                    etp=self.expert_tensor(tp * cp * dp, tp, ep, model) if model.is_moe else 1,
                    dp=dp,
                    sharding=sharding,
                    shard_group=group,
                    mbs=mbs,
                    gbs=batch,
                    schedule=self.schedule(pp, vpp),
                    recompute=mode.mode,
                    recompute_layers=mode.layers,
                    dp_overlap=self.data_overlap(),
                ),
            )
            for mode, mbs in itertools.product(again, choices)
        ]
        return tuple(dict.fromkeys(plans))

    def split(self, row: PlanRow, model: ModelSpec) -> tuple[int, ...]:
        """Layers of each virtual stage as stated, or equal ones, which frameworks ask for unless told otherwise."""
        stages, layers = row.pp * row.vpp, model.num_layers
        stated = re.search(r"stage layer split \[([\d, ]+)\]", self.notes)
        if stated:
            counts = [int(count) for count in stated[1].split(",")]
            if sum(counts) == layers + 2:  # embedding and head are counted as layers
                counts[0] -= 1
                counts[-1] -= 1
            if sum(counts) == layers and len(counts) == stages and min(counts) > 0:
                return tuple(counts)
        if layers % stages == 0:
            return (layers // stages,) * stages
        if stages > 1 and (layers + 2) % stages == 0:  # embedding and head take a layer's place
            each = (layers + 2) // stages
            return (each - 1, *(each,) * (stages - 2), each - 1)
        return ()

    def sharding(self) -> tuple[str, int]:
        """Sharding as stated, or as the framework does it."""
        stated = fold.folded_sharding(self.record.text("zero_stage"))
        if stated is not None:
            return stated
        self.assume("zero_stage", f"{self.habits.sharding}: usual in {self.habits.name}")
        return self.habits.sharding, 0

    def degree(self, name: str, *, sharded: bool) -> int:
        """A model-parallel degree; a blank is 1 where weights are sharded over data ranks, and for cp."""
        value = self.record.whole(name)
        if value is None and not self.record.text(name):
            if not sharded and name != "cp":
                self.record.reasons.append(f"{name} not stated")
            elif name != "cp":
                self.assume(name, "1: weights are sharded over data ranks")
        return value or 1

    def schedule(self, pp: int, vpp: int) -> str:
        """Name of the schedule; one chunk cannot be interleaved."""
        name, _ = fold.row_schedule(self.record.text("schedule"), pp=pp, vpp=vpp)
        return name

    def chunks(self, pp: int, model: ModelSpec) -> int:
        """Chunks per worker."""
        stated = self.record.whole("vpp")
        _, vpp = fold.row_schedule(self.record.text("schedule"), pp=pp, vpp=stated)
        silent = stated is None and not self.record.text("schedule") and "stage layer split" not in self.notes
        if pp > 1 and silent and self.habits.interleaves and model.num_layers % pp == 0:
            layers = model.num_layers // pp
            usual = max(chunks for chunks in range(1, MOST_CHUNKS + 1) if layers % chunks == 0)
            self.assume("vpp", f"{usual}: usual in {self.habits.name}")
            return usual
        if vpp is not None:
            return vpp
        # Embedding and head may take a layer's place each, as `split` lays them.
        places = (model.num_layers, model.num_layers + 2)
        equal = (v for v in range(self.habits.chunks, 1, -1) if any(layers % (v * pp) == 0 for layers in places))
        vpp = next(equal, 1)
        self.assume("vpp", f"{vpp}: interleaved, chunks not stated")
        return vpp

    def recompute(self, model: ModelSpec, virtual_stages: int) -> list[fold.Again]:
        """What is recomputed, or the modes in the order in which users turn to them."""
        stated = fold.recompute(self.record.text("recompute"), self.record.text("recompute_detail"))
        if stated is None:
            if self.habits.recompute == "full":
                self.assume("recompute", f"full: usual in {self.habits.name}")
                return [fold.Again(mode="full")]
            if self.habits.recompute == "never":
                self.assume("recompute", f"none: usual in {self.habits.name}")
                return [fold.Again(mode="none")]
            modules = _EXPERT_MODULES if model.is_moe else ("core_attn",)
            some = self.some_layers(max(1, model.num_layers // virtual_stages))
            between = "a quarter to three quarters of the layers " if some else ""
            self.assume("recompute", f"the first of none, {', '.join(modules)}, {between}and everything that fits")
            least = [fold.Again(mode="none"), fold.Again(mode="sel", modules=modules)]
            return [*least, *some, fold.Again(mode="full")]
        if self.record.text("dtype").lower().startswith("int8") and stated.mode != "none":
            # MLPerf v4.0 and v4.1 on TPU v5p: 5.6 to 6.2 s for a sequence and chip under five policies and with all of
            # it made again.
            self.assume("recompute", "full: policies spare int8 steps no time")
            return [fold.Again(mode="full")]
        self.assume("recompute", stated.assumed)
        if stated.share:
            layers = max(1, round(stated.share * model.num_layers / virtual_stages))
            return [fold.Again(mode="block", layers=layers)]
        return [stated]

    def some_layers(self, layers: int) -> list[fold.Again]:
        """Quarters of a chunk's layers, where the framework recomputes the first few of each (Megatron's `block`).

        Its users raise `--recompute-num-layers` until a step fits: of what is left open, the least is meant.
        """
        if not self.habits.software.startswith("megatron-core"):
            return []
        counts = dict.fromkeys(round(layers * quarter / 4) for quarter in (1, 2, 3))
        return [fold.Again(mode="block", layers=count) for count in counts if 0 < count < layers]

    def micro_batches(self, pp: int, batch: int, dp: int, model: ModelSpec) -> list[int]:
        """Stated, 1 in a pipeline or with experts, else the largest of 4, 2 and 1 that divides the batch and fits."""
        stated = self.record.whole("micro_batch")
        if stated is not None:
            return [stated]
        local = re.search(r"local batch (\d+)", self.notes, re.IGNORECASE)
        if local and pp > 1:
            self.assume("micro_batch", "the rank's batch over the pipeline's ranks: usual in torchtitan")
            return [max(1, int(local[1]) // pp)]
        if pp > 1 or model.is_moe:
            self.assume("micro_batch", f"1: usual {'in a pipeline' if pp > 1 else 'with experts'}")
            return [1]
        self.assume("micro_batch", "the largest of 4, 2 and 1 that divides the batch and fits")
        return [mbs for mbs in (4, 2, 1) if batch % (dp * mbs) == 0] or [1]

    def tensor(self, tp: int, model: ModelSpec) -> tuple[bool, str]:
        """Sequence parallelism and what hides behind tensor-parallel products."""
        if tp == 1:
            return True, "bulk"
        stated = self.record.flag("sp")
        if stated is None:
            stated = self.habits.sequence_parallel
            self.assume("sp", f"{stated}: usual in {self.habits.name}")
        if model.is_moe and not stated:
            stated = True
            self.assume("sp", "True: experts need each token once")
        overlap = "none" if self.nothing_overlaps() else self.habits.tp_overlap
        asked = any(word in self.notes for word in ("tp-comm-overlap", "async tp", "tp_overlap"))
        # Chunked overlap needs sequence parallelism, and NVIDIA's recipes leave it off for models with experts.
        if asked and stated:
            return stated, "ring"
        if overlap == "ring" and (model.is_moe or not stated):
            overlap = "bulk"
        if overlap != "bulk":
            self.assume("tp overlap", f"{overlap}: usual in {self.habits.name}")
        return stated, overlap

    def expert_tensor(self, stage_devices: int, tp: int, ep: int, model: ModelSpec) -> int:
        """Expert tensor degree: tp by Megatron-Core's default, 1 where experts fold, are thin, or tp does not fit."""
        stated = self.record.whole("etp")
        if stated is not None:
            return stated
        thin = model.last_layer().mlp.expert_width < THINNEST_SLICE * tp
        named = "folding" in self.record.text("framework").lower()
        folded = named or self.year >= 2026 or thin or stage_devices % (ep * tp) != 0
        if tp > 1:
            self.assume(
                "etp", "1: experts fold over tensor ranks" if folded else f"{tp}: tp, as Megatron-Core's default"
            )
        return 1 if folded else tp

    def data_overlap(self) -> bool:
        """Whether gradients are summed beside the last backward."""
        asked = "overlap-grad-reduce" in self.notes or "overlap-param-gather" in self.notes
        return asked or (self.habits.dp_overlap and not self.nothing_overlaps())

    def nothing_overlaps(self) -> bool:
        """Whether the source says that all communication runs alone."""
        return "no communication overlap" in self.notes

    def context(self) -> str:
        """How ranks of a sequence exchange: as stated, else as the framework does."""
        return "a2a" if re.search(r"cp by all-?to-?all|cp[_-]comm[_-]type[= ]a2a", self.notes) else self.habits.context
