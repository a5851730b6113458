"""Small models, real devices and legal rows that the tests of estimates share."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from hypothesis import assume
from hypothesis import strategies as st

from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StageEstimate, StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import (
    Attention,
    ClusterSpec,
    DenseMlp,
    LayerRun,
    LayerSpec,
    ModelSpec,
    MoeMlp,
    PlanRow,
    Workload,
)
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.precision import precision
from meshwright.specs.row import default_schedule


def _model(name: str, hidden: int, *runs: LayerRun, vocab: int = 32000, **fields: object) -> ModelSpec:
    values: dict[str, object] = {
        "name": name,
        "family": "toy",
        "hidden": hidden,
        "vocab": vocab,
        "max_seq_len": 32768,
        "runs": runs,
        "tied_embeddings": False,
        **fields,
    }
    return ModelSpec(**values)


_GROUPED = Attention(heads=16, kv_heads=4, head_dim=128)
_LATENT = LatentAttention(heads=16, q_rank=768, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
_PLAIN_LATENT = replace(_LATENT, q_rank=None)

DENSE = _model(
    "dense",
    4096,
    LayerRun(
        layers=(
            LayerSpec(
                attention=Attention(heads=32, kv_heads=8, head_dim=128), mlp=DenseMlp(ffn_hidden=14336, gated=True)
            ),
        ),
        repeats=12,
    ),
)
TIED = _model(
    "tied",
    2048,
    LayerRun(
        layers=(
            LayerSpec(
                attention=Attention(heads=16, kv_heads=16, head_dim=128, qkv_bias=True, out_bias=True),
                mlp=DenseMlp(ffn_hidden=8192, gated=False, bias=True),
                norm="layernorm",
                dropout=True,
            ),
        ),
        repeats=10,
    ),
    vocab=50304,
    tied_embeddings=True,
    learned_positions=4096,
    final_norm="layernorm",
)
MIXED = _model(
    "experts after dense layers, shared expert, one prediction module",
    2048,
    LayerRun(layers=(LayerSpec(attention=_GROUPED, mlp=DenseMlp(ffn_hidden=8192, gated=True)),), repeats=1),
    LayerRun(
        layers=(
            LayerSpec(
                attention=_GROUPED, mlp=MoeMlp(experts=16, top_k=4, ffn_hidden=1024, gated=True, shared_ffn_hidden=1024)
            ),
        ),
        repeats=8,
    ),
    mtp_layers=1,
)
LATENT = _model(
    "latent attention",
    2048,
    LayerRun(
        layers=(
            LayerSpec(attention=_LATENT, mlp=DenseMlp(ffn_hidden=8192, gated=True)),
            LayerSpec(attention=_PLAIN_LATENT, mlp=MoeMlp(experts=8, top_k=2, ffn_hidden=2048, gated=True)),
        ),
        repeats=4,
    ),
)
MODELS = (DENSE, TIED, MIXED, LATENT)
CLUSTERS = {text: resolve_gpus(text) for text in ("4xH100", "8xH100", "16xH100", "32xH100", "8xA100-80", "16xA100-80")}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Case:
    """All that an estimate needs, with a legal row."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    row: PlanRow

    def __repr__(self) -> str:
        """Short enough for a failure report."""
        work = self.workload
        kind = f"{work.precision.name} {work.attention_kernel} seq {work.seq_len} load {work.expert_imbalance}"
        return f"<{self.model.name}, {self.cluster.name}, {kind}, {self.row.format()}>"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """What hypothesis prints."""
        printer.text(repr(self))

    def estimate(self) -> StepEstimate:
        """Price the row."""
        plan = expand(self.row, self.model, self.workload.seq_len)
        return estimate_plan(plan, self.model, self.cluster, self.workload)

    def problems(self) -> tuple[object, ...]:
        """What makes the row illegal."""
        return row_problems(self.row, self.model, self.workload.seq_len, self.cluster.devices)

    def with_row(self, **fields: object) -> Case:
        """The same with another row of the same batch; examples whose row becomes illegal are dropped."""
        other = replace(self, row=replace(self.row, **fields))
        assume(not other.problems())
        return replace(other, workload=self.workload.with_batch(other.row.gbs))

    def with_workload(self, **fields: object) -> Case:
        """The same with another workload."""
        return replace(self, workload=replace(self.workload, **fields))

    def with_device(self, **factors: float) -> Case:
        """Numbers of the device multiplied; `gemm` stands for all peaks."""
        (group,) = self.cluster.groups
        device = group.device
        peak = factors.pop("peak_flop_per_s", 1.0)
        scaled = {name: getattr(device, name) * factor for name, factor in factors.items()}
        peaks = tuple((dtype, value * peak) for dtype, value in device.peak_flop_per_s)
        device = replace(device, peak_flop_per_s=peaks, **scaled)
        return replace(self, cluster=replace(self.cluster, groups=(replace(group, device=device),)))

    def with_links(self, level: int, factor: float) -> Case:
        """Bandwidth of one level of domains multiplied."""
        (group,) = self.cluster.groups
        domains = list(group.domains)
        level = min(level, len(domains) - 1)
        domains[level] = replace(domains[level], bandwidth_bytes_per_s=domains[level].bandwidth_bytes_per_s * factor)
        return replace(self, cluster=replace(self.cluster, groups=(replace(group, domains=tuple(domains)),)))


def memory(stage: StageEstimate, *kinds: str) -> float:
    """Bytes of a stage in these kinds."""
    return sum(dict(stage.memory_bytes)[kind] for kind in kinds)


def part(estimate: StepEstimate, *names: str) -> float:
    """Seconds of a step in these parts."""
    return sum(dict(estimate.breakdown_s)[name] for name in names)


def case(model: ModelSpec, gpus: str, seq_len: int = 4096, **fields: object) -> Case:
    """One case by hand."""
    row = PlanRow(**fields)
    workload = Workload(seq_len=seq_len, global_batch=row.gbs)
    return Case(model=model, cluster=resolve_gpus(gpus), workload=workload, row=row)


@st.composite
def cases(draw: st.DrawFn, *, models: tuple[ModelSpec, ...] = MODELS) -> Case:
    """A legal row of any kind for a small model on a real cluster."""
    model, where = draw(st.sampled_from(models)), draw(st.sampled_from(sorted(CLUSTERS)).map(CLUSTERS.__getitem__))
    left = where.devices

    def degree(*most: int) -> int:
        nonlocal left
        options = [d for d in (1, 2, 4, 8) if left % d == 0 and all(d <= limit for limit in most)]
        found: int = draw(st.sampled_from(options))
        left //= found
        return found

    tp, pp = degree(8), degree(4)
    inner, outer = degree(2), degree(4)
    kind = draw(st.sampled_from(["p2p", "a2a", "ag"]))
    if inner > 1 and outer > 1:
        cp: tuple[tuple[str, int], ...] = (("a2a", inner), ("p2p", outer))
    else:
        cp = ((kind, inner * outer),) if inner * outer > 1 else ()
    dp = left
    ep = etp = 1
    if model.is_moe:
        ranks = where.devices // pp
        ep = draw(st.sampled_from([d for d in (1, 2, 4, 8) if ranks % d == 0]))
        etp = draw(st.sampled_from([d for d in (1, 2) if (ranks // ep) % d == 0]))
    schedule = draw(st.sampled_from(["1f1b", "gpipe", "interleaved"] if pp > 1 else ["1f1b", "gpipe"]))
    vpp = draw(st.integers(2, max(2, model.num_layers // pp))) if schedule == "interleaved" else 1
    m = draw(st.integers(1, 3)) * pp if vpp > 1 else draw(st.integers(1, 6))
    mbs = draw(st.sampled_from([1, 2, 3]))
    recompute = draw(st.sampled_from(["none", "sel", "full", "block", "uni"]))
    sharding = draw(st.sampled_from(["z0", "z1", "z2", "z3", "fsdp", "fsdp-keep", "hsdp", "z1in"]))
    group = 0
    if sharding in ("hsdp", "z1in"):
        group = (inner * outer) * draw(st.sampled_from([d for d in (1, 2, 4) if d == 1 or dp % (2 * d) == 0]))
        sharding = sharding if dp > 1 else {"hsdp": "fsdp", "z1in": "z1"}[sharding]
        group = group if dp > 1 else 0
    sp = tp == 1 or model.is_moe or draw(st.booleans())
    row = PlanRow(
        tp=tp,
        sp=sp,
        tp_overlap=draw(st.sampled_from(["bulk", "ring"])) if tp > 1 else "bulk",
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dp=dp,
        sharding=sharding,
        shard_group=group,
        mbs=mbs,
        gbs=m * mbs * dp,
        schedule=schedule if schedule != "interleaved" else default_schedule(vpp),
        recompute=recompute,
        recompute_layers=draw(st.integers(1, 3)) if recompute in ("block", "uni") else 0,
        offload="".join(draw(st.sampled_from(["", "", "", "w", "a", "o", "ao", "wao"]))),
        dp_overlap=draw(st.booleans()),
    )
    formats = ["bf16", "bf16", "fp32", "fp8" if "H100" in where.name else "fp16"]
    workload = Workload(
        seq_len=draw(st.sampled_from([1024, 4096, 16384])),
        global_batch=row.gbs,
        precision=precision(draw(st.sampled_from(formats))),
        attention_kernel=draw(st.sampled_from(["flash", "flash", "materialised"])),
        expert_imbalance=draw(st.sampled_from([1.0, 1.3])),
    )
    found = Case(model=model, cluster=where, workload=workload, row=row)
    # The type checker looks at random items of containers, which hypothesis forbids while it draws.
    state = random.getstate()
    illegal = found.problems()
    random.setstate(state)
    assume(not illegal)
    return found
