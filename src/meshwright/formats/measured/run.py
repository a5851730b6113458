"""A measured row as what the estimator takes: model, cluster, workload and the plans it may have run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.errors import MeshwrightError
from meshwright.formats.cluster import Assumption, GroupLinks, node_group
from meshwright.formats.measured import fold, functional_tests
from meshwright.formats.measured.habits import FSDP2, habits
from meshwright.formats.measured.model import ModelLookup, read_model, without_dropout
from meshwright.formats.measured.plans import PlanReader, PossiblePlan
from meshwright.formats.measured.recipes import launched_by, with_recipe
from meshwright.formats.measured.record import MeasuredRecord
from meshwright.specs.cluster import MAX_DEVICES, ClusterSpec
from meshwright.specs.device import BLAS_THREADS, BLAS_WORKSPACE_BYTES, DeviceSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import ExpertOverlap
from meshwright.specs.tuning import Tuning
from meshwright.specs.workload import Workload

# Tokens of the fullest expert rank over the mean where a router is left to itself: Qwen3-235B with 8 ranks to 128
# experts takes 24 % to 9 % longer than with forced balance from 16,384 to 131,072 tokens (Megatron-MoE-ModelZoo, 2025),
# which is what experts and exchanges of such a rank take longer.
PADDED = 128
"""Rows of a vocabulary on each tensor rank come in multiples of this under Megatron."""
ROUTED_IMBALANCE = 1.5
DEFERRED = 2
"""Micro-batches whose gradients of logits wait in Megatron's tests of deferred gradients of the head."""

DeviceLookup = Callable[[str, float | None], DeviceSpec]
"""Finds a device from a name and the memory on the box in GB; raises UnsupportedError for a name nobody knows."""


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
    overlap: ExpertOverlap = "none"
    """What exchanges of experts run beside."""
    offloaded_activations: float = 0.0
    """Share of layers whose activations go to the host."""
    memory_kind: str = "device"
    """What a memory figure of the row counts: `allocated`, `reserved` or `device`."""
    last_stage: bool = False
    """Whether a memory figure is of the last stage instead of the fullest."""
    head_bytes: float = 0.0
    """What options of the head and its loss, which no plan states, hold on a device of the last stage."""
    workspace_bytes: float = 0.0
    """Scratch memory of matrix libraries beyond what the framework gives them by itself."""
    more_activations: float = 0.0
    """Activations that a searched schedule keeps beyond those of the schedule it is read as, over these."""
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
    values, filled = with_recipe(values)
    record = MeasuredRecord(values)
    try:
        tuning = fold.adapters(_described(record), record.text("dtype"))
        reader = _RowReader(record, device, model, tuning)
        reader.assume("settings", filled)
        run = reader.run()
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
        framework = record.text("framework")
        if "examples/llama" in record.text("source"):
            # Its README: the configurations follow those of NeMo's performance scripts. Source: NVIDIA/Megatron-LM.
            framework += " by NeMo's scripts"
        self.habits = habits(framework, self.year, record.text("model_name"))
        self.notes = record.notes
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
        if not self.habits.drops:
            model = without_dropout(model)
            self.assume("dropout", f"none: usual in {self.habits.name}")
        if self.habits.tokens:
            padded = PADDED * (record.whole("tp") or 1)
            model = replace(model, vocab=-(-self.habits.tokens // padded) * padded)
            self.assume("vocab", f"{model.vocab:,}: the tokenizer's of {self.habits.name}, padded")
        if record.reasons:
            raise fold.Refused(record.reasons[-1])
        cluster = self.cluster(devices)
        workload = self.workload(seq_len, batch)
        meant = PlanReader(record, self.habits, self.year, self.assume)
        plans = meant.plans(devices, batch, model)
        if record.reasons:
            raise fold.Refused(record.reasons[-1])
        return MeasuredRun(
            id=record.text("id"),
            model=model,
            cluster=cluster,
            workload=workload,
            plans=plans,
            split=meant.split(plans[0].row, model),
            capacity=1.0 if re.search(r"token drop|capacity factor 1(?![.\d])", self.notes) and model.is_moe else None,
            deduplicates=model.is_moe and self.deduplicates(),
            overlap=self.overlap() if model.is_moe else "none",
            offloaded_activations=self.offloaded(model),
            memory_kind=self.memory_kind(),
            last_stage="last rank" in record.all_text("mem_counted"),
            head_bytes=self.head_bytes(plans[0].row, model, seq_len),
            workspace_bytes=self.workspace_bytes(cluster.groups[0].device),
            more_activations=fold.more_activations(record.text("schedule"), plans[0].row.pp),
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
        dtype = record.text("dtype")
        silent = self.habits.dtype and (not dtype or "not stated" in dtype.lower())
        precision, assumed = fold.row_precision(
            self.habits.dtype if silent else dtype, year=self.year, notes=record.text("notes")
        )
        assumed = f"{self.habits.dtype}: usual in {self.habits.name}" if silent else assumed
        self.assume("dtype", assumed)
        if self.habits.short_gradients:
            precision, assumed = fold.short_gradients(precision)
            self.assume("gradients", assumed)
        if self.habits.software in FSDP2:
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
        if software == "megatron-core":
            software = launched_by(self.notes)
        software = self.dated(software)
        flash = fold.flash(record.text("attention"))
        if flash and functional_tests.local_layers(record.text("framework"), record.text("notes")):
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

    def deduplicates(self) -> bool:
        """Whether a dispatch drops duplicates, by notes or framework; kernels that carry a token once drop none."""
        notes = self.notes.lower()
        if re.search(r"deepep|hybridep", notes):
            return True
        if (
            re.search(r"dispatcher(=none|=alltoall| a2a)|(alltoall|all-to-all) dispatcher", notes)
            or "token drop" in notes
        ):
            return False
        if self.habits.deduplicates:
            self.assume("dispatcher", f"deduplicated: usual in {self.habits.name}")
        return self.habits.deduplicates

    def overlap(self) -> ExpertOverlap:
        """Overlap stated in the notes: `a2a_overlap=True`, `+1f1b a2a overlap`, `shared_expert_overlap=true`."""
        if re.search(r"a2a_overlap=true|1f1b a2a overlap", self.notes):
            # Megatron-Bridge asks for both at once. Source: scripts/performance/utils of v0.2.0 to v0.4.1.
            both = "bridge" in self.record.text("framework").lower() or "delay_wgrad=true" in self.notes
            return "paired-wgrad" if both else "paired"
        return "shared" if "shared_expert_overlap=true" in self.notes else "none"

    def offloaded(self, model: ModelSpec) -> float:
        """Share of the layers whose activations live on the host."""
        match = re.search(r"offload_layers=(\d+)", self.notes)
        return min(1.0, int(match[1]) / model.num_layers) if match else 0.0

    def head_bytes(self, row: PlanRow, model: ModelSpec, seq_len: int) -> float:
        """Logits of a micro-batch that Megatron's options hold on a device of the last stage beside those of its loss.

        Source: megatron/core/fusions/fused_cross_entropy.py: exponentials in 32 bits in a tensor of their own, which
        the loss without fusion writes over the logits. `--wgrad-deferral-limit 2` in model_config.yaml of its tests of
        `--defer-embedding-wgrad-compute`: so many gradients of logits wait for their gradient of the head.
        """
        logits = row.mbs * seq_len / row.cp_degree * model.vocab / row.tp
        held = 4.0 * ("cross_entropy_loss_fusion" in self.notes)
        held += 2.0 * DEFERRED * ("defer_embedding_wgrad_compute" in self.notes)
        return logits * held

    def workspace_bytes(self, device: DeviceSpec) -> float:
        """What tests that pin cuBLAS' scratch memory at 32 MiB hold beyond the device's usual."""
        pinned = functional_tests.pinned_workspaces(self.record.text("framework"), self.record.text("notes"))
        return BLAS_THREADS * (BLAS_WORKSPACE_BYTES - device.efficiency.blas_workspace_bytes) * pinned

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
