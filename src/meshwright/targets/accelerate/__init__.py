"""Hugging Face Accelerate: FSDP2 or DDP in its YAML configuration, and the trainer of the transformers library.

Keys are those of accelerate 1.15.0 and transformers 5.23.0 (2026-11), https://github.com/huggingface/accelerate.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.catalogue import later
from meshwright.errors import Problem
from meshwright.library.software import software
from meshwright.targets import adapters, fsdp, hugging_face, seeing
from meshwright.targets.contract import Note, OneStrategyTarget, marked, overlaps
from meshwright.targets.key_texts import Keys, nested_tables, yaml_text
from meshwright.targets.sayable import ANY, Plan, Rule, only

TITLE = "Accelerate"
CONFIG = "accelerate.yaml"
MARKS = (
    ("compute_environment", "mixed_precision:", "deepspeed_config:", "fsdp_config:", "num_processes:"),
    ("distributed_type",),
)
"""What the text of a configuration holds, each in one of several spellings."""
SIZES = "parallelism_config.parallelism_config_"
CONTEXT = {"ag": "allgather", "p2p": "alltoall"}
"""How keys and values go round: gathered, or passed on ring by ring."""
_SOURCE = "accelerate/parallelism_config.py and utils/dataclasses.py of accelerate 1.15.0"
_DIVISION = "transformers/distributed/configuration_utils.py and fsdp.py of transformers 5.23.0"
SAYS = (
    fsdp.SAYS
    | seeing.BESIDE
    | {
        **hugging_face.RECOMPUTE,
        "tp": ANY,
        "cp": ANY,
        "dp": ANY,
        "tensor.sequence_parallel": only(False, True),
        "context.kinds": only(
            "ag", "p2p", why="keys and values are gathered (ag) or passed round (p2p)", fix="use p2p"
        ),
        "data.zero": only(0, 3, why="data ranks hold whole copies, or shards of everything", fix="use fsdp"),
        "optimizer": hugging_face.BATCHES,
        "attention_kernel": ANY,
        "loss_tiles": ANY,
        "tuning": ANY,
        "precision": only("bf16", "fp16", "fp32", "bf16 reduce=bf16"),
    }
)
RULES = (
    fsdp.main_copy(_SOURCE),
    hugging_face.whole_sequences(
        "transformers/integrations/tensor_parallel.py of transformers 5.23.0",
        why="tensor plans of the transformers library keep the whole sequence on every tensor rank",
    ),
    Rule(
        field="data.replicate",
        holds=lambda plan: plan.sharded or plan.strategy.dp == 1 or plan.strategy.tp * plan.strategy.cp == 1,
        why="copies of the weights (DDP) go with neither tensor nor context parallelism",
        fix="use fsdp",
        source=_SOURCE,
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.tp == 1 or plan.strategy.cp == 1,
        why="the transformers library cuts the matrices of a model as it loads it, and cuts no sequences",
        fix="use one of tp and cp",
        source=_DIVISION,
    ),
    Rule(
        field="data.reshard",
        holds=lambda plan: plan.strategy.tp == 1 or plan.strategy.data.reshard,
        why="where the transformers library cuts matrices, it frees gathered weights after the forward",
        fix="use fsdp",
        source=_DIVISION,
    ),
    Rule(
        field="precision",
        holds=lambda plan: plan.strategy.tp == 1 or not plan.sharded or plan.precision.name in ("bf16", "fp32"),
        why="where the transformers library cuts matrices, shards are computed with in bf16, and summed in fp32",
        fix="use bf16",
        source=_DIVISION,
    ),
    Rule(
        field="precision",
        holds=lambda plan: plan.sharded or plan.precision.reduce != "bf16",
        why="whole copies (DDP) sum gradients in the format of the weights, which are fp32",
        fix="use fsdp, or bf16",
        source=_SOURCE,
    ),
    fsdp.context_shards(_SOURCE, why="context parallelism needs FSDP2"),
    Rule(
        field="data.shard",
        holds=lambda plan: (
            plan.strategy.data.zero == 0 or plan.strategy.data.replicate == 1 or plan.strategy.data.shard > 1
        ),
        why="copies beside shards of one rank are not a mesh it takes",
        fix="use fsdp, or hsdp of 2 or more",
        source=_SOURCE,
    ),
    fsdp.offloads_together(),
    fsdp.offloads_shards(_SOURCE),
)


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML configuration."""
    strategy = plan.strategy
    data, sharded = strategy.data, plan.sharded and not _divided(plan)
    activations = plan.precision.activations
    kinds = [level.kind for level in strategy.context]
    flat = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if plan.job.plan.devices > 1 else "NO",
        "mixed_precision": "no" if activations == "fp32" else activations,
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
            "fsdp_config.fsdp_activation_checkpointing": plan.recomputed,
            "fsdp_config.fsdp_offload_params": bool(strategy.offload.weights),
            "fsdp_config.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
        flat |= {
            f"{SIZES}dp_replicate_size": data.replicate,
            f"{SIZES}dp_shard_size": data.shard,
            f"{SIZES}cp_size": strategy.cp,
        }
    if kinds:
        flat[f"{SIZES}cp_comm_strategy"] = CONTEXT[kinds[0]]
    return nested_tables(flat)


def _divided(plan: Plan) -> bool:
    """Whether the transformers library divides the model as it loads it: Accelerate cuts no matrices itself."""
    return plan.strategy.tp > 1


def _synced(plan: Plan) -> bool:
    """Whether shards of gradients are summed in every micro-batch, which the trainer does only where it is told."""
    several = plan.sharded and plan.found.pipeline.num_micro_batches > 1
    return several and software(plan.workload.software).whole_gradients != "always"


def _division(plan: Plan) -> Keys:
    """Fields of its `DistributedConfig`."""
    data = plan.strategy.data
    return {
        "tp_size": plan.strategy.tp,
        "fsdp_size": data.shard if plan.sharded else 1,
        "dp_replicate_size": data.replicate if plan.sharded else 1,
        "fsdp_cpu_offload": bool(plan.strategy.offload.weights),
        "fsdp_mixed_precision": plan.sharded and plan.precision.activations == "bf16",
    }


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    head = (
        f"accelerate launch --config_file {CONFIG}; keys of accelerate 1.15.0",
        f"plan: {plan.job.name or plan.model.name}",
    )
    # FSDP2 wraps layers for recompute itself; twice would compute them a third time.
    by_fsdp = plan.sharded and not _divided(plan)
    trainer = hugging_face.trainer_files(
        plan,
        weights="float32",
        distributed=_division(plan) if _divided(plan) else None,
        gradient_checkpointing=plan.recomputed and not by_fsdp,
        **hugging_face.accumulation(_synced(plan)),
    )
    return (CONFIG, yaml_text(configuration(plan), head)), *trainer


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from hugging_face.trainer_problems(plan, TITLE)
    if _divided(plan) and plan.model.tuning is not None:
        why, fix = "adapters are put on whole matrices, before they would be cut over tensor ranks", "use tp1"
        yield Problem(what=f"plan: tp is {plan.strategy.tp}", why=why, fix=fix, field="tp")


def _start(plan: Plan) -> str:
    rank = (
        " --machine_rank $NODE_RANK --main_process_ip $MASTER_ADDR --main_process_port 6000" if plan.nodes > 1 else ""
    )
    launch = hugging_face.started_by(f"accelerate launch --config_file {CONFIG}{rank}")
    return f"{launch} {hugging_face.SCRIPT} {hugging_face.ARGUMENTS}"


NOTES = (
    *seeing.NOTES,
    Note(
        text="with mixed_precision bf16 gradients cross the network in bf16, planned are fp32: it sends half as much",
        when=lambda plan: (
            plan.sharded
            and not _divided(plan)
            and (plan.precision.activations, plan.precision.reduce) == ("bf16", "fp32")
        ),
    ),
    overlaps("FSDP2 and DDP overlap their collectives"),
)


TARGET = OneStrategyTarget(
    name="accelerate",
    title=TITLE,
    # huggingface.co/docs/accelerate/usage_guides/gaudi; hiascend.com, Hugging Face on Ascend
    vendors=frozenset(("NVIDIA", "AMD", "Intel", "Huawei")),
    version="1.15.0 (2026-11)",
    says=SAYS,
    rules=RULES,
    beyond=_beyond,
    predicts_ahead=False,
    adapted=adapters.BY_PEFT,
    write=_files,
    start=_start,
    notes=NOTES,
    read=later("meshwright.targets.accelerate.read:read"),
    recognised=marked((".yaml", ".yml", ".json"), *MARKS),
    named=later("meshwright.targets.accelerate.read:files_named"),
    edited=hugging_face.edited,
    beside=(hugging_face.ARGUMENTS, hugging_face.SCRIPT, hugging_face.DISTRIBUTED, *adapters.FILES),
    software="pytorch-eager-no-sync",
)
