"""Plans drawn around those that a target can run: other degrees, stages, formats, batches and models."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.fields.job import JobFields
from meshwright.planning.for_target import software_with
from meshwright.planning.plan_source import plan_question
from meshwright.planning.question.tuning_text import read_lora
from meshwright.schedules import PLAN_SCHEDULES
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow, expert_tokens
from meshwright.specs.row_of import homogeneous, row_from
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.targets import TARGETS
from tests.targets.cases import runs_of

MODELS = (
    *("llama-3.1-8b", "llama-3-8b", "llama-2-7b", "llama-2-13b", "llama-3.2-1b", "llama-3.1-70b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "qwen3-8b", "qwen2.5-7b", "deepseek-v2-lite", "gemma-2-9b", "gpt-oss-20b"),
    *("deepseek-v3", "gpt3-175b", "mistral-7b"),
)
_LORA = (
    "r=8",
    "r=16,targets=q_proj,v_proj",
    "r=32,targets=qkv_proj,o_proj,dropout=0.1",
    "r=8,base=nf4",
    "r=4,base=fp32",
)
_OPTIMIZERS = ("adam", "adamw", "adamw-8bit", "adafactor", "lion", "muon", "sgd", "sgd-momentum")
_CONTEXT = ((), (("ag", 2),), (("a2a", 2),), (("p2p", 2),), (("a2a", 2), ("p2p", 2)), (("ag", 4),))
_RECOMPUTE: tuple[dict[str, Any], ...] = (
    {"recompute": "none", "recompute_layers": 0},
    {"recompute": "full", "recompute_layers": 0},
    {"recompute": "block", "recompute_layers": 1},
    {"recompute": "block", "recompute_layers": 3},
    {"recompute": "uni", "recompute_layers": 2},
    {"recompute": "sel", "recompute_layers": 0, "recompute_modules": ("core_attn",)},
    {"recompute": "sel", "recompute_layers": 0, "recompute_modules": ("core_attn", "mlp")},
    {"recompute": "sel", "recompute_layers": 0, "recompute_modules": ("half_products",)},
    {"recompute": "sel", "recompute_layers": 0, "recompute_modules": ("moe_act", "layernorm")},
)
_WORDS = ((), ("qw-int8",), ("qg-int4",), ("hpz8",), ("gc-powersgd4",), ("local16",))


def software_under(target: str, lora: Any) -> str | None:
    """The kernels that price plans of a target, whose adapters may load weights of bitsandbytes."""
    own = TARGETS[target].software
    return own if own is None or lora is None else software_with(own, read_lora(lora).base)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A plan before it is known to be legal."""

    row: PlanRow
    fields: JobFields
    layers: tuple[int, ...] = ()
    """Of each virtual stage; spread by weight where there are none."""

    def job(self) -> Job | None:
        """The plan, None where it is not legal."""
        try:
            # Stated, or a trainer would be chosen that runs the plan.
            stated = replace(self.fields, software=self.fields.software or DEFAULT_SOFTWARE)
            question = plan_question(self.row, stated)
            one = question.job
            if self.layers:
                one = replace(one, plan=plan_of(self.row, self.layers))
        except MeshwrightError:
            return None
        return one


def drawn(target: str, random: Random) -> Job | None:
    """A plan of a target with one to four things of it drawn anew; None where that is not legal."""
    base = random.choice(runs_of(target)).job()
    found, _ = homogeneous(base.plan)
    row = None if found is None else row_from(found, gbs=base.plan.global_batch)
    assert row is not None
    devices = random.choice((8, 16, 16, 32, 64))
    fields: dict[str, Any] = {"model": base.model.name, "seq_len": base.workload.seq_len, "optimizer": "adamw"}
    layers: tuple[int, ...] = ()
    for kind in random.sample(_KINDS, random.randint(1, 4)):
        row, more = kind(row, random)
        fields |= more
    fields.setdefault("software", software_under(target, fields.get("lora")))
    if row.tp == 1:
        row = replace(row, sp=True, tp_overlap="bulk")  # nothing to say of these
    if row.ep == 1:
        usual = PlanRow()
        row = replace(row, etp=1, **{name: getattr(usual, name) for name, _ in expert_tokens().values()})
    rest = row.tp * row.cp_degree * row.pp
    if devices % rest:
        return None
    row = replace(row, dp=devices // rest)
    if row.dp * row.cp_degree == 1:
        row = replace(row, sharding="z0", shard_group=0)
    row = replace(row, gbs=row.dp * row.mbs * random.choice((1, row.pp, 2 * row.pp, 3, 4 * row.pp)))
    one = Drawn(row=row, fields=JobFields(gpus=f"{devices}xH100", global_batch=row.gbs, **fields))
    made = one.job()
    if made is not None and row.pp > 1 and random.random() < 0.4:
        layers = _parted(made.model.num_layers, row.pp * row.vpp, random)
        made = replace(one, layers=layers).job() if layers else made
    return made


def _parted(layers: int, stages: int, random: Random) -> tuple[int, ...]:
    if stages > layers:
        return ()
    if random.random() < 0.5:  # even, the rest where it falls
        each, more = divmod(layers, stages)
        counts = [each] * stages
        for number in random.sample(range(stages), more):
            counts[number] += 1
        return tuple(counts)
    ends = sorted(random.sample(range(1, layers), stages - 1))
    return tuple(end - start for start, end in zip([0, *ends], [*ends, layers], strict=True))


def _kind(**options: tuple[Any, ...]) -> Any:
    def of_row(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
        chosen = {name: random.choice(values) for name, values in options.items()}
        return replace(row, **chosen), {}

    return of_row


def _of_workload(**options: tuple[Any, ...]) -> Any:
    def of_fields(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
        return row, {name: random.choice(values) for name, values in options.items()}

    return of_fields


def _recomputed(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
    return replace(row, **random.choice(_RECOMPUTE)), {}


def _experts(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
    name, value = random.choice(list(expert_tokens().values()))
    model = random.choice(("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"))
    stated = {name: value} if random.random() < 0.5 else {}
    return replace(row, ep=random.choice((1, 2, 4, 8)), etp=1, **stated), {"model": model}


def _staged(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
    vpp = random.choice((1, 1, 2, 4))
    usual = "1f1b" if vpp == 1 else "interleaved"
    schedule = usual if random.random() < 0.6 else random.choice(list(PLAN_SCHEDULES))
    return replace(row, pp=random.choice((2, 4)), vpp=vpp, schedule=schedule), {}


def _sharded(row: PlanRow, random: Random) -> tuple[PlanRow, dict[str, Any]]:
    sharding = random.choice(("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep", "hsdp"))
    return replace(row, sharding=sharding, shard_group=random.choice((2, 4, 8)) if sharding == "hsdp" else 0), {}


_KINDS = (
    _kind(tp=(1, 2, 4, 8)),
    _kind(sp=(True, False), tp_overlap=("bulk", "ring")),
    _kind(cp=_CONTEXT),
    _staged,
    _sharded,
    _recomputed,
    _experts,
    _kind(etp=(1, 2)),
    _kind(mbs=(1, 2, 3, 4)),
    _kind(offload=("", "o", "og", "wog", "a", "wog-nvme", "o-dpu")),
    _kind(dp_overlap=(True, False)),
    _kind(data_words=_WORDS),
    _of_workload(model=MODELS),
    _of_workload(seq_len=(1024, 2048, 4096, 8192)),
    _of_workload(dtype=("bf16", "fp16", "fp32", "fp8", "fp8-block", "mxfp8", "nvfp4")),
    _of_workload(optimizer=_OPTIMIZERS),
    _of_workload(lora=_LORA),
    _of_workload(loss_tiles=(1, 4), mlp_tiles=(1, 2)),
    _of_workload(attention_kernel=("flash", "materialised")),
)
