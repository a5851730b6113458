"""MaxText: YAML over its base.yml, with degrees inside nodes (ici) and between them (dcn).

Keys are those of maxtext 0.2.5 (2026-11), https://github.com/AI-Hypercomputer/maxtext.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from meshwright.errors import Problem
from meshwright.specs.layers.moe import MoeMlp
from meshwright.targets import fsdp
from meshwright.targets.contract import Note, OneStrategyTarget, overlaps
from meshwright.targets.key_texts import Keys, yaml_text
from meshwright.targets.maxtext import kernels
from meshwright.targets.maxtext.models import MODELS, maxtext_name
from meshwright.targets.maxtext.read import CONFIG, CONTEXTS, QUANTIZATIONS, TITLE, read, recognised
from meshwright.targets.overrides import by_equals
from meshwright.targets.sayable import ANY, Plan, Rule, only

KEPT = "minimal_with_context"
"""Keeps results of products and of attention; what is in between is computed again."""
_SOURCE = "maxtext/configs/types.py of maxtext 0.2.5"
SAYS = {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "vpp": ANY,
    "dp": ANY,
    "layers": only("even", why="every stage holds equally many layers", fix="give stages equally many layers"),
    "schedule": only("gpipe", "breadth-first", why="a pipeline runs all forwards, then all backwards", fix="use gpipe"),
    "context.kinds": only("p2p", "ag", (), why="ulysses runs on TPUs alone", fix="use cp with p2p or ag"),
    "expert.ep": ANY,
    "data.zero": only(0, 3, why="data ranks hold whole copies, or shards of everything", fix="use fsdp"),
    "data.family": ANY,
    "recompute.kind": only("none", "full", why="other policies name tensors, which no plan says", fix="use rc-full"),
    "optimizer": only("adamw", "adam"),
    "attention_kernel": only("flash", "materialised"),
    "precision": only("bf16", "fp32", *QUANTIZATIONS),
}
RULES = (
    fsdp.main_copy(_SOURCE, why="weights are kept in fp32 and cast for products, so that the shard is the main copy"),
    Rule(
        field="data.zero",
        holds=lambda plan: plan.sharded or plan.strategy.expert.ep * plan.strategy.cp == 1,
        why="weights are sharded over the expert and context axes too",
        fix="use fsdp",
        source="logical_axis_rules in maxtext/configs/base.yml of maxtext 0.2.5",
    ),
    Rule(
        field="schedule",
        holds=lambda plan: (
            plan.found.pp == 1
            or (plan.found.pipeline.schedule.name == ("gpipe" if plan.found.vpp == 1 else "breadth-first"))
        ),
        why="a pipeline is gpipe, or circular (breadth-first) where it repeats",
        fix="use gpipe with vpp1, breadth-first with more",
        source=_SOURCE,
    ),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or plan.found.pipeline.num_micro_batches % plan.found.pp == 0,
        why="micro-batches must be a multiple of the pipeline stages",
        fix="use another batch or pp",
        source=_SOURCE,
    ),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or not _dense_first(plan),
        why="dense layers before experts are not piped: they run on all stages as data ranks",
        fix="use pp1",
        source=_SOURCE,
    ),
    Rule(
        field="context.kinds",
        holds=lambda plan: len(plan.strategy.context) <= 1,
        why="a context axis has one kind",
        fix="use p2p or ag",
        source=_SOURCE,
    ),
    *kernels.RULES,
    Rule(
        field="expert.ep",
        holds=lambda plan: plan.strategy.expert.ep == 1 or plan.strategy.data.shard % plan.strategy.expert.ep == 0,
        why="the expert axis is part of the ranks that share data",
        fix="use an ep that divides them",
        source=_SOURCE,
    ),
)


def _dense_first(plan: Plan) -> bool:
    return len({isinstance(kind.mlp, MoeMlp) for kind in plan.model.kinds()}) > 1


def _model_problems(plan: Plan) -> Iterator[Problem]:
    if maxtext_name(plan.model) is None:
        why = f"a config names one of its own models: {', '.join(MODELS.values())}"
        yield Problem(what=f"MaxText 0.2.5 has no {plan.model.name}", why=why, field="model")


def degrees(plan: Plan) -> dict[str, int]:
    """Degree of each axis of the mesh; expert ranks are data ranks too, and have an axis of their own."""
    strategy = plan.strategy
    data, ep = strategy.data, strategy.expert.ep
    return {
        "tensor": strategy.tp,
        "context": strategy.cp,
        "expert": ep,
        "fsdp": data.shard // ep if plan.sharded else 1,
        "pipeline": plan.found.pp,
        "data": data.replicate if plan.sharded else strategy.dp // ep,
    }


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML configuration."""
    pipeline, strategy = plan.found.pipeline, plan.strategy
    devices, steps = plan.job.plan.devices, pipeline.num_micro_batches
    piped = plan.found.pp > 1
    wide = plan.precision.activations == "fp32"
    batch = plan.workload.global_batch / devices / (1 if piped else steps)
    keys: Keys = {
        "base_config": "base.yml",
        "model_name": maxtext_name(plan.model),
        **kernels.kernel_keys(plan),
        "per_device_batch_size": int(batch) if batch == int(batch) else as_read(batch, devices),
        "gradient_accumulation_steps": 1 if piped else steps,
        "max_target_length": plan.workload.seq_len,
        "dtype": "float32" if wide else "bfloat16",
        "weight_dtype": "float32",
        "remat_policy": "full" if plan.recomputed else KEPT,
        "opt_type": "adamw",
        "steps": 20,
        "dataset_type": "synthetic",
        "enable_checkpointing": False,
    }
    if plan.precision.name in QUANTIZATIONS:
        keys["quantization"] = QUANTIZATIONS[plan.precision.name]
    keys |= _constants(plan)
    room = kernels.slice_devices(plan)
    for axis, degree in degrees(plan).items():
        inside = math.gcd(degree, room)
        room //= inside
        keys |= {f"ici_{axis}_parallelism": inside, f"dcn_{axis}_parallelism": degree // inside}
    if strategy.cp > 1:
        keys["context_parallel_strategy"] = CONTEXTS[strategy.context[0].kind]
    if piped:
        keys |= {
            "num_layers_per_pipeline_stage": plan.found.layers[0],
            "num_pipeline_repeats": plan.found.vpp,
            "num_pipeline_microbatches": steps,
            "pipeline_fsdp_ag_once": False,
        }
    return keys


def as_read(batch: float, devices: int) -> float:
    """The sequences of a device as a number whose product with all devices MaxText cuts to no sequence less.

    Args:
        batch: sequences of a micro-batch by devices.
        devices: the number of devices of the job.
    """
    return batch if int(devices * batch) == round(devices * batch) else math.nextafter(batch, math.inf)


def _constants(plan: Plan) -> Keys:
    """What MaxText's configs leave to their defaults and the model has otherwise."""
    keys: Keys = {}
    if plan.model.settings.rope_kind == "llama3":
        # Llama-3.3's config has none of it, Llama-3.1's by its name alone.
        keys["rope_type"] = "llama3.1"
    experts = next((kind.mlp for kind in plan.model.kinds() if isinstance(kind.mlp, MoeMlp)), None)
    if experts is not None and experts.groups:
        keys |= {"n_routing_groups": experts.groups, "topk_routing_group": experts.groups_per_token}
    return keys


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    head = (f"keys of maxtext 0.2.5; plan: {plan.job.name or plan.model.name}", f"devices: {plan.job.plan.devices}")
    return ((CONFIG, yaml_text(configuration(plan), head)),)


NOTES = (
    Note(
        text="attention cudnn_flash_te needs Transformer Engine for JAX, of a version other than 2.12 and 2.13",
        when=lambda plan: kernels.kernel_keys(plan).get("attention") == "cudnn_flash_te",
    ),
    Note(
        text="its table has 128 rows more than the model's vocabulary",
        when=lambda plan: plan.model.name.startswith("gemma-"),
    ),
    Note(
        text=f"remat_policy {KEPT} keeps results of products and attention; norms and activations are computed again",
        when=lambda plan: plan.strategy.recompute.kind == "none",
    ),
    overlaps("XLA overlaps collectives as it sees fit"),
)


_PROGRAM = re.compile(r"(?i)(?:^|/|src\.)maxtext[./](?:[\w./]*[./])?train(?:_compile|_sft|_sft_native)?(?:\.py)?$")
"""MaxText's trainers, as a module or a file, in the places of several releases; that of fine-tuning trains the same
way."""


TARGET = OneStrategyTarget(
    name="maxtext",
    title=TITLE,
    # XLA compiles for TPUs and, with CUDA or ROCm, for GPUs
    vendors=frozenset(("Google", "NVIDIA", "AMD")),
    version="0.2.5 (2026-11)",
    says=SAYS,
    rules=RULES,
    beyond=_model_problems,
    write=_files,
    start=lambda plan: f"python3 -m maxtext.trainers.pre_train.train {CONFIG} run_name=plan base_output_directory=out",
    notes=NOTES,
    read=read,
    overrides=lambda launch: by_equals(launch.words),
    configs=lambda launch: () if _PROGRAM.search(launch.program) else None,
    recognised=recognised,
    software="xla",
    option=lambda name, value: (f"{name}={value}",),
)
