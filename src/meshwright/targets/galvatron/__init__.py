"""Galvatron: its JSON of one entry per layer, the target for plans whose layers differ.

Keys are those of hetu-galvatron 2.4.0, https://github.com/PKU-DAIR/Hetu-Galvatron.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.key_text import key_text
from meshwright.formats.processes import torchrun
from meshwright.specs.job import Job
from meshwright.specs.plan import Chunk, Pipeline
from meshwright.specs.row_of import Homogeneous, effective
from meshwright.specs.strategy import LayerStrategy
from meshwright.targets import fsdp
from meshwright.targets.contract import JobTarget, TargetFiles, one_line, target_files
from meshwright.targets.galvatron import trainer
from meshwright.targets.galvatron.read import CONFIG, FILE, read
from meshwright.targets.keys import Keys, json_text
from meshwright.targets.overrides import by_equals
from meshwright.targets.sayable import ANY, Plan, Rule, only, setting_problems, settings_of, unequal_pipelines

TITLE = "Galvatron"
PIPELINES = {"1f1b": "pipedream_flush", "gpipe": "gpipe"}
DEFAULT_TYPES = {0: "ddp", 2: "zero2", 3: "zero3"}
"""Of layers whose entry of `dp_types_enc` is 0; an entry of 1 is zero3."""
_FAMILIES = {"llama": "llama_hf", "gpt2": "gpt_hf"}
_SOURCE = "galvatron/core/runtime/hybrid_parallel_config.py and arguments.py of hetu-galvatron 2.4.0"
SAYS = {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "dp": ANY,
    "layers": ANY,
    "schedule": only(*PIPELINES, why="pipelines are pipedream_flush (1f1b) or gpipe"),
    "context.kinds": only(("a2a",), (), why="sequences are cut by heads (Ulysses) only", fix="use cp with a2a"),
    "data.zero": only(*DEFAULT_TYPES, why="data ranks keep copies (ddp), zero2 or zero3", fix="use z2, or fsdp"),
    "data.family": ANY,
    "recompute.kind": only("none", "full", why="a layer is recomputed whole or not at all"),
    "optimizer": only("adam", "adamw"),
    "precision": only("bf16"),
}
RULES = (
    Rule(
        field="tp",
        holds=lambda plan: plan.strategy.tp == 1 or plan.strategy.cp == 1,
        why="a layer is cut by tensors or by Ulysses, not both",
        fix="use one of tp and cp",
        source=_SOURCE,
    ),
    fsdp.main_copy(_SOURCE, why="zero3 is PyTorch's FSDP, whose fp32 shard is the main copy of the weights"),
    fsdp.one_group(_SOURCE, why="states are sharded over all data ranks of a layer", fix="use fsdp"),
)


def _refused(job: Job) -> tuple[Problem, ...]:
    """What Galvatron cannot run of a plan."""
    if len(job.plan.pipelines) > 1:
        return (unequal_pipelines(TITLE, job),)
    problems = list(_shape_problems(job, job.plan.pipelines[0]))
    if problems:
        return tuple(problems)
    for strategy in dict.fromkeys(_by_layer(job)):
        problems += setting_problems(TITLE, _plan_of(job, strategy), SAYS, RULES)
    kinds = {strategy.data.zero for strategy in _by_layer(job)} - {3}
    if len(kinds) > 1:
        why = "layers that are not zero3 share one type of data parallelism"
        problems.append(Problem(what="plan: data.zero is 0 and 2", why=why, fix="use one of them", field="data.zero"))
    return tuple(dict.fromkeys([*problems, *_model_problems(job)]))


def _by_layer(job: Job) -> list[LayerStrategy]:
    """The strategy of every layer in order."""
    chunks = sorted(job.plan.pipelines[0].chunks(), key=lambda chunk: chunk.layers)
    return [
        effective(job.plan.strategies[run.strategy])
        for chunk in chunks
        for run in chunk.runs
        for _ in range(run.layers)
    ]


def _chunks(pipeline: Pipeline) -> list[Chunk]:
    return [worker.chunks[0] for worker in pipeline.workers]


def _plan_of(job: Job, strategy: LayerStrategy) -> Plan:
    """A plan as if all layers had one strategy."""
    pipeline = job.plan.pipelines[0]
    layers = tuple(chunk.num_layers for chunk in _chunks(pipeline))
    found = Homogeneous(
        strategy=strategy, block=0, pp=len(pipeline.workers), vpp=1, layers=layers, held=(), pipeline=pipeline
    )
    return Plan(job=job, found=found, settings=settings_of(job, found))


def _shape_problems(job: Job, pipeline: Pipeline) -> Iterator[Problem]:
    if any(len(worker.chunks) != 1 for worker in pipeline.workers):
        what = f"plan: vpp is {max(len(worker.chunks) for worker in pipeline.workers)}"
        yield Problem(what=what, why="a worker holds one stage", fix="use vpp1", field="vpp")
    sizes = {worker.num_devices for worker in pipeline.workers}
    if len(sizes) > 1:
        why = "every stage has equally many devices"
        yield Problem(what=f"plan: devices is {sorted(sizes)}", why=why, fix="use equal stages", field="devices")


def _model_problems(job: Job) -> Iterator[Problem]:
    model = job.model
    fix = "use a target that loads the model's own config.json, such as accelerate"
    if model.family not in _FAMILIES or model.is_moe or model.beside_decoder:
        why = f"its models are {', '.join(_FAMILIES)}"
        yield Problem(what=f"model: {model.name} is a {model.family}", why=why, fix=fix, field="model")
    elif not model.learned_positions:
        settings = model.settings
        if settings.rope_base != 10000 or settings.rope_kind not in (None, "default"):
            said = f"{settings.rope_base or 'not stated'}, {settings.rope_kind or 'not stated'}"
            why = "its Llama rotates with a base of 10000 and without scaling, whatever the config says"
            yield Problem(
                what=f"model: rope of {model.name} is {said}", why=why, fix=fix, field="model.settings.rope_base"
            )
    if job.plan.pipelines[0].shapes or not job.workload.training:
        yield Problem(
            what="micro-batches of several shapes", why="they are alike", fix="plan equal ones", field="shapes"
        )


def configuration(job: Job) -> Keys:
    """The keys of the JSON configuration."""
    pipeline, layers = job.plan.pipelines[0], _by_layer(job)
    kinds = [strategy.data.zero for strategy in layers]
    default = next((kind for kind in kinds if kind != 3), 3)
    first = layers[0]

    def each(values: Iterator[object]) -> str:
        return ",".join(str(int(bool(value)) if isinstance(value, bool) else value) for value in values)

    return {
        "pp_deg": len(pipeline.workers),
        "tp_sizes_enc": each(strategy.tp * strategy.cp for strategy in layers),
        "tp_consecutive_flags": each(1 for _ in layers),
        "dp_types_enc": each(kind == 3 and default != 3 for kind in kinds),
        "use_sp": each(strategy.cp > 1 for strategy in layers),
        "checkpoint": each(strategy.recompute.kind == "full" for strategy in layers),
        "global_bsz": job.plan.global_batch,
        "chunks": pipeline.num_micro_batches,
        "pp_division": each(iter(chunk.num_layers for chunk in _chunks(pipeline))),
        "pipeline_type": PIPELINES[pipeline.schedule.name if len(pipeline.workers) > 1 else "1f1b"],
        "default_dp_type": DEFAULT_TYPES[default],
        "vtp": first.tp * first.cp,
        "vsp": int(first.cp > 1),
        # Releases differ in what they call it.
        "embed_sdp": int(kinds[0] == 3 and default != 3),
        "vocab_sdp": int(kinds[0] == 3 and default != 3),
        "world_size": job.plan.devices,
    }


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    if problems := _refused(job):
        raise UnsupportedError(problems, code="MW420")
    model = job.model
    heads, width = _heads_and_width(job)
    script = [
        "#!/usr/bin/env bash",
        f"# {one_line(model.name)}: {job.name or 'layers that differ'}. Run in "
        f"galvatron/models/{_FAMILIES[model.family]}.",
        "set -euo pipefail",
        f"{torchrun(job)} train_dist.py \\",
        f"  --set_model_config_manually 1 --hidden_size {model.hidden} --num_hidden_layers {model.num_layers} \\",
        f"  --num_attention_heads {heads} --vocab_size {model.vocab} --seq_length {job.workload.seq_len} \\",
        f"  --ffn_hidden_size {width} --mixed_precision bf16 --sequence-parallel --use-flash-attn \\",
        f'  --galvatron_config_path {CONFIG} "$@"',
        "",
    ]
    files = (CONFIG, json_text(configuration(job))), ("train.sh", "\n".join(script))
    return target_files(job, files, notes=(), start="bash train.sh, in the folder of the model")


def _heads_and_width(job: Job) -> tuple[int, int]:
    kind = next(job.model.layers())
    return next((count for _, count in kind.attention.divided), 1), kind.mlp.tensor_width


TARGET = JobTarget(
    name="galvatron",
    title=TITLE,
    version="2.4.0",
    unequal_nodes=True,
    translate=_files,
    untold=_refused,
    read=read,
    recognised=lambda name, text: FILE.recognised(name, text) or trainer.recognised(name, text),
    named=trainer.named,
    edited=lambda name, text: key_text(name, text) if name.endswith(".json") else None,
    overrides=lambda launch: by_equals(launch.words),
    option=lambda name, value: (f"{name}={value}",),
    software="megatron-core",
)
