"""torchtitan: a Python module with a function that returns a `Trainer.Config`, and the schedule as CSV beside it.

Keys are those of torchtitan 0.3.0 (2026-11), https://github.com/pytorch/torchtitan.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.plan_json import write_job
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.specs.job import Job
from meshwright.targets import pytorch_pipeline
from meshwright.targets.contract import PLAN_FILE, Files, Target, TargetFiles, file_of
from meshwright.targets.sayable import ANY, Plan, Rule, only, refusals
from meshwright.targets.torchtitan.flavors import flavor_names, flavor_of, rope_changes
from meshwright.targets.torchtitan.module import MODULE, module_text
from meshwright.targets.torchtitan.read import read_module

TITLE = "torchtitan"
SAYS = {
    "tp": ANY,
    "cp": ANY,
    "pp": ANY,
    "vpp": ANY,
    "dp": ANY,
    "layers": ANY,
    "schedule": ANY,
    "tensor.sequence_parallel": ANY,
    "tensor.overlap": only("ring", "bulk", fix="use tpov, or leave it out"),
    "context.kinds": only(("ag",), (), why="keys and values are gathered over context ranks", fix="use cp with ag"),
    "expert.ep": ANY,
    "data.zero": only(0, 3, why="data ranks hold whole copies, or shards of everything (FSDP2)", fix="use fsdp"),
    "data.family": ANY,
    "data.reshard": ANY,
    "recompute.kind": only(
        "none", "full", why="its selective kind keeps every second product, which no plan says", fix="use rc-full"
    ),
    "offload.optimizer": only(0.0, 1.0),
    "offload.gradients": only(0.0, 1.0),
    "offload.weights": only(0.0, 1.0),
    "optimizer": only("adamw", "adam"),
    "precision": only("bf16", "fp32"),
}
_CONFIGS = "torchtitan/config/configs.py and trainer.py of torchtitan 0.3.0"
RULES = (
    *pytorch_pipeline.RULES,
    Rule(
        field="data.family",
        holds=lambda plan: (plan.strategy.data.zero == 3) == (plan.strategy.data.family == "fsdp"),
        why="FSDP2 keeps the fp32 shard as the main copy of the weights",
        fix="use fsdp",
        source=_CONFIGS,
    ),
    Rule(
        field="expert.ep",
        holds=lambda plan: (
            (plan.strategy.data.shard * plan.strategy.cp * plan.strategy.tp) % plan.strategy.expert.ep == 0
        ),
        why="expert ranks are taken from those that shard weights, context and tensors of one copy",
        fix="use an ep that divides shard x cp x tp",
        source=_CONFIGS,
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.data.zero == 3,
        why="context ranks shard the weights as data ranks do",
        fix="use fsdp",
        source=_CONFIGS,
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            len({plan.strategy.offload.optimizer, plan.strategy.offload.gradients, plan.strategy.offload.weights}) == 1
        ),
        why="enable_cpu_offload moves weights, gradients and optimizer states together",
        fix="use off-wog, or none",
        source=_CONFIGS,
    ),
    Rule(
        field="offload.weights",
        holds=lambda plan: plan.strategy.offload.weights == 0 or plan.strategy.data.zero == 3,
        why="only FSDP2 offloads",
        fix="use fsdp",
        source=_CONFIGS,
    ),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or not plan.model.mtp_layers,
        why="multi-token-prediction modules are not cut into pipeline stages",
        fix="use pp1, or a config without num_nextn_predict_layers",
        source="torchtitan/models/deepseek_v3/mtp.py of torchtitan 0.3.0",
    ),
)


def refused(job: Job) -> tuple[Problem, ...]:
    """What torchtitan cannot run of a plan."""
    plan, problems = refusals(TITLE, job, SAYS, RULES)
    return (*problems, *_model_problems(plan)) if plan else problems


def _model_problems(plan: Plan) -> Iterator[Problem]:
    flavor = flavor_of(plan.model)
    if flavor is not None:
        for unlike in rope_changes(plan.model, flavor)[1]:
            why, fix = f"its {flavor.name} has {unlike}", "use --target accelerate, which takes the model's own config"
            yield Problem(what=f"model: {plan.model.name}", why=why, fix=fix, field="model.settings.rope_kind")
    else:
        why = f"a config names one of its own models: {flavor_names()}"
        fix = "plan one of these, or use --target accelerate, which takes any model of the transformers library"
        yield Problem(what=f"torchtitan 0.3.0 has no {plan.model.name}", why=why, fix=fix, field="model")


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    problems = refused(job)
    plan, _ = refusals(TITLE, job, SAYS, RULES)
    flavor = flavor_of(job.model)
    if problems or plan is None or flavor is None:
        raise UnsupportedError(problems, code="MW420")
    files = (
        (PLAN_FILE, write_job(job)),
        (f"{MODULE}.py", module_text(plan, flavor)),
        *pytorch_pipeline.schedule_files(plan),
    )
    nodes = f" --nnodes {plan.nodes} --node-rank $NODE_RANK --master-addr $MASTER_ADDR" if plan.nodes > 1 else ""
    start = (
        f"PYTHONPATH=. torchrun --nproc-per-node {plan.per_node}{nodes} -m torchtitan.train "
        f"--module {MODULE} --config plan --hf_assets_path FOLDER_OF_TOKENIZER"
    )
    return TargetFiles(files=files, notes=tuple(_notes(plan)), start=start)


def _notes(plan: Plan) -> Iterator[str]:
    yield "--comm.mode fake_backend starts it on one process without the other devices"
    if not plan.strategy.data.overlap:
        yield "FSDP2 overlaps its collectives"
    if plan.workload.optimizer == "adam":
        yield "its optimizer is AdamW"


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    schedule = next((text for name, text in files.items() if name.endswith(COMPUTE_FILE)), None)
    return read_module(file_of(files, f"{MODULE}.py", _recognised), devices, schedule)


def _recognised(name: str, text: str) -> bool:
    if PurePath(name).suffix == ".py":
        return "torchtitan" in text and "ParallelismConfig(" in text
    return PurePath(name).suffix == ".toml" and "[parallelism]" in text and "_parallel_degree" in text


TARGET = Target(
    name="torchtitan",
    title=TITLE,
    version="0.3.0 (2026-11)",
    files=_files,
    refused=refused,
    read=_read,
    recognised=_recognised,
    beside=(COMPUTE_FILE,),
    software="pytorch-compiled",
)
