"""A measured row as what the estimator takes: model, cluster, workload and the plans it may have run."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.errors import MeshwrightError
from meshwright.formats.cluster import Assumption, GroupLinks, node_group
from meshwright.formats.measured import fold
from meshwright.formats.measured.habits import habits
from meshwright.formats.measured.model import ModelLookup, read_model
from meshwright.formats.measured.record import MeasuredRecord
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec
from meshwright.specs.device import DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import Tuning
from meshwright.specs.workload import Workload

# Chunks per worker in NVIDIA's published recipes: 4 to 8, more only where a layer is a chunk.
MOST_CHUNKS = 8
# Columns of an expert below which nobody cuts it between tensor ranks: two tiles of a matrix product. Every row that
# states the degree for experts as thin as that has 1 (Qwen3-235B in Megatron-Bridge and Megatron-MoE-ModelZoo).
THINNEST_SLICE = 512
# Tokens of the fullest expert rank over the mean where a router is left to itself: Qwen3-235B with 8 ranks to 128
# experts takes 24 % to 9 % longer than with forced balance from 16,384 to 131,072 tokens (Megatron-MoE-ModelZoo, 2025),
# which is what experts and exchanges of such a rank take longer.
ROUTED_IMBALANCE = 1.5
# What Megatron-Core's guide to mixtures of experts recomputes first when memory is short.
_EXPERT_MODULES = ("layernorm", "moe_act", "mla_up_proj")

DeviceLookup = Callable[[str, float | None], DeviceSpec]
"""From a name and the memory on the box in GB to the device; raises UnsupportedError for a name nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PossiblePlan:
    """One plan a measured row may have run."""

    row: PlanRow
    modules: tuple[str, ...] = ()
    """Modules that `sel` recomputes where they are not core attention alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """One row, ready to be priced."""

    id: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    plans: tuple[PossiblePlan, ...]
    """What the row may mean, the likeliest first: a run that ran fitted, so the first that fits is meant. One where
    recompute and micro-batch are stated."""
    split: tuple[int, ...] = ()
    """Layers of each virtual stage; empty where they do not divide evenly and nothing is said."""
    capacity: float | None = None
    """Capacity factor where tokens are dropped."""
    deduplicates: bool = False
    """Whether tokens enter a node once on their way to experts."""
    pairs: bool = False
    """Whether exchanges of experts run beside another micro-batch."""
    offloaded_activations: float = 0.0
    """Share of layers whose activations go to the host."""
    memory_kind: str = "device"
    """What a memory figure of the row counts: `allocated`, `reserved` or `device`."""
    last_stage: bool = False
    """Whether a memory figure is of the last stage instead of the fullest."""
    assumptions: tuple[Assumption, ...] = ()


def read_run(values: Mapping[str, str | None], device: DeviceLookup, model: ModelLookup) -> MeasuredRun | str:
    """Read one row.

    Args:
        values: column to text.
        device: finds a device by name and memory.
        model: finds a model by name.

    Returns:
        The run, or why it cannot be priced: all reasons in one sentence.
    """
    record = MeasuredRecord(values)
    try:
        tuning = fold.adapters(_described(record), record.text("dtype"))
        run = _RowReader(record, device, model, tuning).run()
    except fold.Refused as refusal:
        record.reasons.append(str(refusal))
    except MeshwrightError as error:
        record.reasons += [f"{p.what} ({p.why})" if p.why else p.what for p in error.problems]
    if record.reasons:
        return "; ".join(dict.fromkeys(record.reasons))
    return run


def _described(record: MeasuredRecord) -> str:
    return record.all_text("model_name", "notes", "why_not", "arch_source", "task")


class _RowReader:
    """Reads the parts of a run one after the other and notes what it had to assume."""

    def __init__(
        self, record: MeasuredRecord, device: DeviceLookup, model: ModelLookup, tuning: Tuning | None = None
    ) -> None:
        self.tuning = tuning
        self.record, self.find_device, self.find_model = record, device, model
        self.year = int(record.number("year") or 2024)
        self.habits = habits(record.text("framework"), self.year)
        self.notes = record.all_text("notes", "recompute_detail")
        self.assumptions: list[Assumption] = []

    def assume(self, name: str, value: str) -> None:
        """Note what the row does not say."""
        if value:
            self.assumptions.append(Assumption(name=name, value=value, basis="assumed"))

    def run(self) -> MeasuredRun:
        record = self.record
        devices = record.needed("n_gpus")
        seq_len, batch = record.needed("seq_len"), record.needed("global_batch_seqs")
        if not record.text("gpu"):
            record.reasons.append("gpu not stated")
        if devices > MAX_DEVICES:
            record.reasons.append(f"n_gpus {devices} is more than can be planned")
        model, assumed = read_model(record, self.find_model)
        self.assume("model", assumed)
        model = replace(model, tuning=self.tuning)
        if record.reasons:
            raise fold.Refused(record.reasons[-1])
        cluster = self.cluster(devices)
        workload = self.workload(seq_len, batch)
        plans = self.plans(devices, batch, model)
        if record.reasons:
            raise fold.Refused(record.reasons[-1])
        return MeasuredRun(
            id=record.text("id"),
            model=model,
            cluster=cluster,
            workload=workload,
            plans=plans,
            split=self.split(plans[0].row, model),
            capacity=1.0 if "token drop" in self.notes and model.is_moe else None,
            deduplicates=model.is_moe and self.deduplicates(),
            pairs=model.is_moe and self.pairs(),
            offloaded_activations=self.offloaded(model),
            memory_kind=self.memory_kind(),
            last_stage="last rank" in record.all_text("mem_counted"),
            assumptions=tuple(self.assumptions),
        )

    def cluster(self, devices: int) -> ClusterSpec:
        """Nodes of the stated size where they divide the devices, links of the device's usual node unless stated."""
        record = self.record
        memory_gb = record.number("gpu_mem_gb")
        stated = record.whole("nodes_gpus")
        name, inferred = fold.device_name(record.text("gpu"), memory_gb)
        self.assume("gpu", inferred)
        spec = self.find_device(name, memory_gb)
        if self.tuning is not None:
            spec = replace(spec, memory_bytes=fold.stated_memory_bytes(self.notes, spec.memory_bytes))
        usual = stated or (spec.node.devices_per_node if spec.node else 8)
        per_node = math.gcd(devices, usual) if devices % usual else usual
        fabric = fold.fabric_bytes_per_s(record.text("inter_link"), _sharing(spec, usual, record.text("inter_link")))
        board = fold.board_devices(record.text("intra_link"))
        if fabric is None and devices > per_node:
            self.assume("inter_link", f"that of the usual {spec.name} node")
        return _cluster(spec, devices // per_node, per_node, fabric, board)

    def workload(self, seq_len: int, batch: int) -> Workload:
        """Format, attention kernel and load of experts."""
        record = self.record
        precision, assumed = fold.row_precision(record.text("dtype"), year=self.year, notes=record.text("notes"))
        self.assume("dtype", assumed)
        if self.habits.short_gradients:
            precision, assumed = fold.short_gradients(precision)
            self.assume("gradients", assumed)
        if self.habits.software == "pytorch-compiled":
            precision, assumed = fold.narrow_gathers(precision)
            self.assume("gathered weights", assumed)
        if self.habits.name == "Megatron-DeepSpeed":
            precision, assumed = fold.engine_gradients(precision, record.text("dtype"))
            self.assume("gradients", assumed)
        if self.tuning is not None:
            precision, assumed = fold.kept_in_8_bits(precision, record.text("notes"))
            self.assume("kept activations", assumed)
        software = self.habits.software
        if software == "megatron-deepspeed" and not record.text("attention"):
            software = "megatron-deepspeed-unfused"
            self.assume("fused kernels", "none: no attention kernel is named")
        if software == "megatron-core" and self.tuning is not None and "layer cuda graphs" in self.notes:
            software = "megatron-core-graphs"
        software = self.dated(software)
        flash = fold.flash(record.text("attention"))
        if flash and fold.local_layers(record.text("framework"), record.text("notes")):
            flash = False
            self.assume("attention", "scores in memory: the test is not named after Transformer Engine")
        if flash is None:
            flash = self.habits.flash
            self.assume("attention", f"{'fused' if flash else 'scores in memory'}: usual in {self.habits.name}")
        imbalance = 1.0
        if record.whole("n_experts") and "real routing" in self.notes.lower():
            imbalance = ROUTED_IMBALANCE
            self.assume("expert_imbalance", f"{imbalance}: routed as the model learnt it, without dropping tokens")
        return Workload(
            seq_len=seq_len,
            global_batch=batch,
            precision=precision,
            attention_kernel="flash" if flash else "materialised",
            software=software,
            expert_imbalance=imbalance,
        )

    def dated(self, line: str) -> str:
        """The framework as it was at the time: of the release that is named, else of the middle of the year."""
        when = fold.release_month(self.record.all_text("framework", "source", "notes"))
        if when is None:
            when = f"{self.year}-06"
            self.assume("software", f"{line} of {when}: only the year is stated")
        return f"{line}@{when}"

    def plans(self, devices: int, batch: int, model: ModelSpec) -> tuple[PossiblePlan, ...]:
        """The degrees, and every recompute and micro-batch they may have run with."""
        record = self.record
        sharding, group = self.sharding()
        tp, pp, cp = (self.degree(name, sharded=sharding in ("fsdp", "hsdp", "z3")) for name in ("tp", "pp", "cp"))
        dp = record.whole("dp") or max(1, devices // (tp * pp * cp))
        ep = record.whole("ep") or 1
        if sharding == "hsdp" and group >= dp * cp:
            sharding, group = "fsdp", 0
        if sharding == "hsdp":
            group = max(group, cp)
        if pp > 1 and sharding == "fsdp" and self.habits.software == "pytorch-compiled":
            self.assume("reshard_after_forward", "never: torchtitan's default in a pipeline")
            sharding = "fsdp-keep"
        if pp > 1 and sharding == "fsdp-keep":
            self.assume("gradients", "summed once per step: the pipeline syncs behind its last micro-batch")
            sharding = "z1"
        vpp = self.chunks(pp, model)
        again = self.recompute(model, pp * vpp)
        choices = self.micro_batches(pp, pp * vpp, batch, dp, model)
        sequence_parallel, tp_overlap = self.tensor(tp, model)
        plans = [
            PossiblePlan(
                modules=mode.modules,
                row=PlanRow(
                    tp=tp,
                    sp=sequence_parallel,
                    tp_overlap=tp_overlap,  # type: ignore[arg-type]
                    cp=(("p2p", cp),) if cp > 1 else (),
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
        """As stated, or as the framework does."""
        stated = fold.sharding(self.record.text("zero_stage"))
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
        vpp = 2 if model.num_layers % (2 * pp) == 0 else 1
        self.assume("vpp", f"{vpp}: interleaved, chunks not stated")
        return vpp

    def recompute(self, model: ModelSpec, virtual_stages: int) -> list[fold.Again]:
        """What is recomputed, or the modes in the order in which users turn to them."""
        stated = fold.recompute(self.record.text("recompute"), self.record.text("recompute_detail"))
        if stated is None:
            if self.habits.recompute == "full":
                self.assume("recompute", f"full: usual in {self.habits.name}")
                return [fold.Again(mode="full")]
            modules = _EXPERT_MODULES if model.is_moe else ("core_attn",)
            self.assume("recompute", f"the first of none, {', '.join(modules)} and everything that fits")
            return [fold.Again(mode="none"), fold.Again(mode="sel", modules=modules), fold.Again(mode="full")]
        self.assume("recompute", stated.assumed)
        if stated.share:
            layers = max(1, round(stated.share * model.num_layers / virtual_stages))
            return [fold.Again(mode="block", layers=layers)]
        return [stated]

    def micro_batches(self, pp: int, stages: int, batch: int, dp: int, model: ModelSpec) -> list[int]:
        """Stated, 1 in a pipeline or with experts, else the largest of 4, 2 and 1 that divides the batch and fits."""
        stated = self.record.whole("micro_batch")
        if stated is not None:
            return [stated]
        local = re.search(r"local batch (\d+)", self.notes, re.IGNORECASE)
        if local and pp > 1:
            self.assume("micro_batch", "the rank's batch over its virtual stages: usual in torchtitan")
            return [max(1, int(local[1]) // stages)]
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
        overlap = self.habits.tp_overlap
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
        folded = self.year >= 2026 or thin or stage_devices % (ep * tp) != 0
        if tp > 1:
            self.assume(
                "etp", "1: experts fold over tensor ranks" if folded else f"{tp}: tp, as Megatron-Core's default"
            )
        return 1 if folded else tp

    def data_overlap(self) -> bool:
        """Whether gradients are summed beside the last backward."""
        return self.habits.dp_overlap or "overlap-grad-reduce" in self.notes or "overlap-param-gather" in self.notes

    def deduplicates(self) -> bool:
        """As the notes say, or as the framework does; kernels that carry a token once drop none."""
        notes = self.notes.lower()
        if re.search(r"deepep|hybridep", notes):
            return True
        if re.search(r"dispatcher(=none|=alltoall| a2a)", notes) or "token drop" in notes:
            return False
        if self.habits.deduplicates:
            self.assume("dispatcher", f"deduplicated: usual in {self.habits.name}")
        return self.habits.deduplicates

    def pairs(self) -> bool:
        """As the notes say: `a2a_overlap=True`, `+1f1b a2a overlap`."""
        return re.search(r"a2a_overlap=true|1f1b a2a overlap", self.notes.lower()) is not None

    def offloaded(self, model: ModelSpec) -> float:
        """Share of the layers whose activations live on the host."""
        match = re.search(r"offload_layers=(\d+)", self.notes)
        return min(1.0, int(match[1]) / model.num_layers) if match else 0.0

    def memory_kind(self) -> str:
        """What the row's memory figure counts; a framework's own total is the whole device's."""
        text = self.record.text("mem_kind").lower()
        if text.startswith("allocated"):
            return "allocated"
        return "reserved" if text.startswith("reserved") else "device"


def _sharing(spec: DeviceSpec, stated: int, text: str) -> int:
    """Devices that share what is stated per node: those of a tray where a rack of many is called a node.

    `4x400Gb/s per node` with nodes of 72 GB200 are the four adapters of a tray, `72x400Gb/s per node` those of the
    rack: the reading whose speed per device is nearer to the data sheet's counts.
    """
    node = spec.node
    if node is None or stated <= node.devices_per_node or not node.fabric_bytes_per_s:
        return stated
    found = {count: fold.fabric_bytes_per_s(text, count) for count in (stated, node.devices_per_node)}
    usual = node.fabric_bytes_per_s
    return min((count for count in found), key=lambda count: abs(math.log((found[count] or usual) / usual)))


@lru_cache(maxsize=512)
def _cluster(spec: DeviceSpec, nodes: int, per_node: int, fabric: float | None, board: int | None) -> ClusterSpec:
    group = node_group(
        name=spec.name,
        device=spec,
        nodes=nodes,
        devices_per_node=per_node,
        links=GroupLinks(inter_bytes_per_s=fabric, scaleup_domain=board if board and board < per_node else None),
    )
    return ClusterSpec(name=f"{nodes}x{per_node}x{spec.name}", groups=(group,))
