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
from meshwright.targets.galvatron import arguments, models, trainer
from meshwright.targets.galvatron.read import CONFIG, FILE, read
from meshwright.targets.key_texts import Keys, json_text
from meshwright.targets.overrides import by_equals
from meshwright.targets.sayable import (
    ANY,
    Plan,
    Rule,
    only,
    setting_problems,
    settings_of,
    unequal_pipelines,
    whole_key_value_heads,
)

TITLE = "Galvatron"
PIPELINES = {"1f1b": "pipedream_flush", "gpipe": "gpipe"}
DEFAULT_TYPES = {0: "ddp", 2: "zero2", 3: "zero3"}
"""Sharding of layers whose entry of `dp_types_enc` is 0; an entry of 1 is zero3."""
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
    whole_key_value_heads("galvatron/core/runtime/tensor_parallel/transformer.py of hetu-galvatron 2.4.0"),
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
    yield from models.problems(job)
    if job.plan.pipelines[0].shapes or not job.workload.training:
        yield Problem(
            what="micro-batches of several shapes", why="they are alike", fix="plan equal ones", field="shapes"
        )
    ends = _by_layer(job)[0]
    if not job.model.learned_positions and job.model.vocab % (ends.tp * ends.cp):
        what = f"plan: {ends.tp * ends.cp} ranks of the first layer hold {job.model.vocab} tokens"
        why = "embedding and head are cut as the first layer is, and its Llama fills no vocabulary up"
        yield Problem(what=what, why=why, fix="use a tp or cp that divides the vocabulary", field="tp")


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
    sharded = any(strategy.data.zero >= 2 for strategy in _by_layer(job))
    several = job.plan.pipelines[0].num_micro_batches > 1
    each = " --no_async_grad_reduce" if sharded and several else ""
    script = [
        "#!/usr/bin/env bash",
        f"# {one_line(job.model.name)}: {job.name or 'layers that differ'}.",
        "set -euo pipefail",
        'cd "$(dirname "$0")"',
        *models.asked(job.model),
        f"{torchrun(job)} {models.PROGRAM} \\",
        f"  --initialize_on_meta 1 --mixed_precision bf16 --reduce_in_fp32{each} \\",
        "  --sequence-parallel --use-flash-attn \\",
        f'  --galvatron_config_path ./{CONFIG} "$@"',  # it makes the folder of the path, which must have a name
        "",
    ]
    files = (
        (CONFIG, json_text(configuration(job))),
        (models.PROGRAM, models.program(job)),
        ("train.sh", "\n".join(script)),
    )
    start = "bash train.sh --train-iters 20 --lr 1e-4 --data-path DATA and options of its tokenizer"
    return target_files(job, files, notes=_notes(job) if each else (), start=start)


def _notes(job: Job) -> tuple[str, ...]:
    """What it does otherwise than the plan where gradients are reduced after each micro-batch."""
    if all(strategy.data.zero >= 2 for strategy in _by_layer(job)):
        return ()
    text = "layers with whole copies sum gradients after each micro-batch too, so that those that are sharded stay so"
    return (text,)


TARGET = JobTarget(
    name="galvatron",
    title=TITLE,
    version="2.4.0",
    unequal_nodes=True,
    translate=_files,
    refusals_of=_refused,
    read=read,
    recognised=lambda name, text: FILE.recognised(name, text) or trainer.recognised(name, text),
    named=trainer.named,
    edited=lambda name, text: key_text(name, text) if name.endswith(".json") else None,
    configs=lambda launch: () if arguments.said(launch) else None,
    overrides=lambda launch: arguments.said(launch) or by_equals(launch.words),
    option=lambda name, value: (f"{name}={value}",),
    software="megatron-core",
)
