"""Hugging Face Accelerate: FSDP2 or DDP in its YAML configuration, and the trainer of the transformers library.

Keys are those of accelerate 1.15.0 and transformers 5.23.0 (2026-11), https://github.com/huggingface/accelerate.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.plan_json import write_job
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import hugging_face
from meshwright.targets.contract import PLAN_FILE, Files, Target, TargetFiles, file_of
from meshwright.targets.keys import KeyReader, Keys, json_text, key_problems, known_keys, nested, table_of, yaml_text
from meshwright.targets.sayable import ANY, Plan, Rule, only, refusals

TITLE = "Accelerate"
CONFIG = "accelerate.yaml"
_SIZES = "parallelism_config.parallelism_config_"
_CONTEXT = {"ag": "allgather", "p2p": "alltoall"}
"""How keys and values go round: gathered, or passed on ring by ring."""
_SOURCE = "accelerate/parallelism_config.py and utils/dataclasses.py of accelerate 1.15.0"
SAYS = hugging_face.RECOMPUTE | {
    "tp": ANY,
    "cp": ANY,
    "dp": ANY,
    "tensor.sequence_parallel": only(False, True),
    "context.kinds": only("ag", "p2p", why="keys and values are gathered (ag) or passed round (p2p)", fix="use p2p"),
    "data.zero": only(0, 3, why="data ranks hold whole copies (DDP) or shards of everything (FSDP2)", fix="use fsdp"),
    "data.family": ANY,
    "data.reshard": ANY,
    "offload.optimizer": only(0.0, 1.0),
    "offload.gradients": only(0.0, 1.0),
    "offload.weights": only(0.0, 1.0),
    "optimizer": hugging_face.BATCHES,
    "attention_kernel": ANY,
    "precision": only("bf16", "fp16", "fp32", "bf16 reduce=bf16"),
}
RULES = (
    Rule(
        field="data.family",
        holds=lambda plan: (plan.strategy.data.zero == 3) == (plan.strategy.data.family == "fsdp"),
        why="FSDP2 keeps the fp32 shard as the main copy of the weights",
        fix="use fsdp",
        source=_SOURCE,
    ),
    Rule(
        field="tensor.sequence_parallel",
        holds=lambda plan: plan.strategy.tp == 1 or not plan.settings["tensor.sequence_parallel"],
        why="tensor plans of the transformers library keep the whole sequence on every tensor rank",
        fix="add nosp",
        source="transformers/integrations/tensor_parallel.py of transformers 5.23.0",
    ),
    Rule(
        field="data.replicate",
        holds=lambda plan: (
            plan.strategy.data.zero == 3 or plan.strategy.dp == 1 or plan.strategy.tp * plan.strategy.cp == 1
        ),
        why="copies of the weights (DDP) go with neither tensor nor context parallelism",
        fix="use fsdp",
        source=_SOURCE,
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.data.zero == 3,
        why="context parallelism needs FSDP2",
        fix="use fsdp",
        source=_SOURCE,
    ),
    Rule(
        field="data.shard",
        holds=lambda plan: (
            plan.strategy.data.zero == 0 or plan.strategy.data.replicate == 1 or plan.strategy.data.shard > 1
        ),
        why="copies beside shards of one rank are not a mesh it takes",
        fix="use fsdp, or hsdp of 2 or more",
        source=_SOURCE,
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            len({plan.strategy.offload.optimizer, plan.strategy.offload.gradients, plan.strategy.offload.weights}) == 1
        ),
        why="FSDP2 offloads weights, gradients and optimizer states together",
        fix="use off-wog, or none",
        source="torch.distributed.fsdp.CPUOffloadPolicy of PyTorch 2.13",
    ),
    Rule(
        field="offload.weights",
        holds=lambda plan: plan.strategy.offload.weights == 0 or plan.strategy.data.zero == 3,
        why="only FSDP2 offloads",
        fix="use fsdp",
        source=_SOURCE,
    ),
)


def refused(job: Job) -> tuple[Problem, ...]:
    """What Accelerate cannot run of a plan."""
    plan, problems = refusals(TITLE, job, SAYS, RULES)
    return (*problems, *hugging_face.shape_problems(plan)) if plan else problems


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML configuration."""
    strategy = plan.strategy
    data, sharded = strategy.data, strategy.data.zero == 3
    precision = strategy.precision or plan.workload.precision
    kinds = [level.kind for level in strategy.context]
    flat = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if plan.job.plan.devices > 1 else "NO",
        "mixed_precision": "no" if precision.activations == "fp32" else precision.activations,
        "num_machines": plan.nodes,
        "num_processes": plan.job.plan.devices,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": False,
    }
    if sharded:
        flat |= {
            "fsdp_config.fsdp_version": 2,
            "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.fsdp_reshard_after_forward": data.reshard,
            "fsdp_config.fsdp_activation_checkpointing": strategy.recompute.kind == "full",
            "fsdp_config.fsdp_offload_params": bool(strategy.offload.weights),
            "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    if sharded or strategy.tp > 1:
        flat |= {
            f"{_SIZES}dp_replicate_size": data.replicate,
            f"{_SIZES}dp_shard_size": data.shard,
            f"{_SIZES}tp_size": strategy.tp,
            f"{_SIZES}cp_size": strategy.cp,
        }
    if kinds:
        flat[f"{_SIZES}cp_comm_strategy"] = _CONTEXT[kinds[0]]
    return nested(flat)


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    problems = refused(job)
    plan, _ = refusals(TITLE, job, SAYS, RULES)
    if problems or plan is None:
        raise UnsupportedError(problems, code="MW420")
    sharded = plan.strategy.data.zero == 3
    # FSDP2 wraps layers for recompute itself; twice would compute them a third time.
    arguments = hugging_face.arguments(
        plan, gradient_checkpointing=plan.strategy.recompute.kind == "full" and not sharded
    )
    head = (
        f"accelerate launch --config_file {CONFIG}; keys of accelerate 1.15.0",
        f"plan: {job.name or job.model.name}",
    )
    files = (
        (PLAN_FILE, write_job(job)),
        (CONFIG, yaml_text(configuration(plan), head)),
        (hugging_face.ARGUMENTS, json_text(arguments)),
        (hugging_face.SCRIPT, hugging_face.script(plan)),
    )
    rank = (
        " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 6000" if plan.nodes > 1 else ""
    )
    start = f"accelerate launch --config_file {CONFIG}{rank} {hugging_face.SCRIPT} {hugging_face.ARGUMENTS}"
    return TargetFiles(files=files, notes=tuple(_notes(plan)), start=f"MODEL=id/or/folder {start}")


def _notes(plan: Plan) -> Iterator[str]:
    precision = plan.strategy.precision or plan.workload.precision
    if plan.strategy.data.zero == 3 and precision.activations == "bf16" and precision.reduce == "fp32":
        yield "with mixed_precision bf16 gradients cross the network in bf16, planned are fp32: it sends half as much"
    if not plan.strategy.data.overlap:
        yield "FSDP2 and DDP overlap their collectives"


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML configuration as a plan, with the trainer's arguments beside it.

    Args:
        files: the configuration, and `training_args.json` where it is there.
        devices: of the job; by default `num_processes`.

    Raises:
        InputError: the text is no YAML.
    """
    file = file_of(files, CONFIG, _recognised)
    keys = table_of(file[1], "YAML", "Accelerate configuration")
    reader = KeyReader(keys=keys, file=file, problems=list(key_problems(TITLE, keys, known_keys(__name__))))
    trainer = hugging_face.read_arguments(files, reader)
    world = devices or reader.degree("num_processes")
    kind = reader.word("distributed_type", "no")
    sharded = kind == "fsdp"
    tp, cp = reader.degree(f"{_SIZES}tp_size"), reader.degree(f"{_SIZES}cp_size")
    if kind not in ("fsdp", "multi_gpu", "no"):
        reader.refuse("distributed_type", kind, "FSDP and MULTI_GPU can be planned", "give the file of that engine")
    if sharded and int(reader.get("fsdp_config.fsdp_version", 1)) != 2:
        reader.refuse(
            "fsdp_config.fsdp_version", reader.get("fsdp_config.fsdp_version", 1), "FSDP2 is planned", "use 2"
        )
    if world % (tp * cp):
        reader.refuse("num_processes", world, f"must be a multiple of tp {tp} x cp {cp}")
        return LaunchFile(
            row=None, layout=None, unresolved=trainer.unresolved, said=reader.said(), problems=tuple(reader.problems)
        )
    dp = world // (tp * cp)
    replicate = reader.degree(f"{_SIZES}dp_replicate_size") if sharded else dp
    reshard = reader.switch("fsdp_config.fsdp_reshard_after_forward", default=True)
    hybrid = sharded and 1 < replicate < dp
    strategy = reader.word(f"{_SIZES}cp_comm_strategy", "allgather")
    kinds = {said: ours for ours, said in _CONTEXT.items()}
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=((kinds.get(strategy, "ag"), cp),) if cp > 1 else (),
        dp=dp,
        sharding="hsdp" if hybrid else ("fsdp" if reshard else "fsdp-keep") if sharded else "z0",
        shard_group=dp // replicate * cp if hybrid else 0,
        mbs=trainer.mbs or 1,
        gbs=(trainer.mbs or 1) * (trainer.steps or 1) * dp,
        recompute="full" if reader.switch("fsdp_config.fsdp_activation_checkpointing") else trainer.recompute,
        offload="wog" if reader.switch("fsdp_config.fsdp_offload_params") else "",
    )
    dtype = reader.word("mixed_precision", "no")
    workload = {"precision": PRECISIONS.get(dtype, PRECISIONS["fp32"]), "optimizer": trainer.optimizer}
    if trainer.given:
        workload["global_batch"] = row.gbs
    return LaunchFile(
        row=row,
        layout=None,
        workload=workload,
        unresolved=trainer.unresolved,
        said=reader.said(),
        problems=tuple(reader.problems),
    )


def _recognised(name: str, text: str) -> bool:
    return PurePath(name).suffix in (".yaml", ".yml") and "compute_environment" in text and "distributed_type" in text


TARGET = Target(
    name="accelerate",
    title=TITLE,
    version="1.15.0 (2026-11)",
    files=_files,
    refused=refused,
    read=read,
    recognised=_recognised,
    beside=(hugging_face.ARGUMENTS,),
    software="pytorch-eager",
)
