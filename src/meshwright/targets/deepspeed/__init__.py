"""DeepSpeed: its JSON configuration, with the trainer of the transformers library around it.

Keys are those of deepspeed 0.19.8 (2026-11), https://github.com/deepspeedai/DeepSpeed.
"""

from __future__ import annotations

from functools import partial

from meshwright.catalogue import later
from meshwright.targets import adapters, fsdp, hugging_face, seeing
from meshwright.targets.contract import Note, OneStrategyTarget
from meshwright.targets.key_texts import Keys, json_text, nested_tables
from meshwright.targets.sayable import ANY, Plan, Rule, only

TITLE = "DeepSpeed"
CONFIG = "ds_config.json"
SAYS = (
    hugging_face.RECOMPUTE
    | seeing.BESIDE
    | {
        "tp": ANY,
        "cp": ANY,
        "dp": ANY,
        "tensor.sequence_parallel": only(False, True),
        "context.kinds": only(("a2a",), (), why="sequences are cut by heads (Ulysses) only", fix="use cp with a2a"),
        "expert.ep": ANY,
        "data.zero": ANY,
        "data.overlap": ANY,
        "data.secondary_shard": ANY,
        "data.gather_dtype": only("int8", why="weights cross the network as they are, or in int8 (qwZ)"),
        "data.reduce_dtype": only("int4", why="gradients cross the network as they are, or in int4 (qgZ)"),
        "offload.optimizer": ANY,
        "offload.gradients": ANY,
        "offload.weights": only(0.0, 1.0, why="all weights are offloaded or none"),
        "offload.tier": ANY,
        "optimizer": hugging_face.BATCHES,
        "attention_kernel": ANY,
        "loss_tiles": ANY,
        "tuning": ANY,
        "precision": only("bf16", "fp16", "fp32"),
    }
)
_CONFIG = "deepspeed/runtime/config.py and runtime/zero/config.py of deepspeed 0.19.8"


def _by_zero_3(plan: Plan) -> bool:
    return plan.strategy.data.zero == 3 and plan.strategy.data.family == "zero"


def _shards_all(name: str, plan: Plan) -> bool:
    """Whether a setting of the exchange of shards is unused, or everything is sharded by ZeRO."""
    return not getattr(plan.strategy.data, name) or _by_zero_3(plan)


SHARDS_AND_OFFLOAD = (
    Rule(
        field="data.reshard",
        holds=lambda plan: plan.strategy.data.reshard or plan.strategy.data.zero < 3,
        why="ZeRO-3 frees gathered weights as the limits on live parameters say",
        fix="use z3",
        source=_CONFIG,
    ),
    *(
        Rule(
            field=f"data.{name}",
            holds=partial(_shards_all, name),
            why="ZeRO++ changes how ZeRO-3 exchanges weights and gradients",
            fix="use z3, or leave it out",
            source="deepspeed/runtime/zero/stage3.py of deepspeed 0.19.8",
        )
        for name in ("gather_dtype", "reduce_dtype", "secondary_shard")
    ),
    Rule(
        field="offload.tier",
        holds=lambda plan: plan.settings["offload.tier"] != "nvme" or _by_zero_3(plan) or plan.job.plan.devices == 1,
        why="states on drives need ZeRO 3 (ZeRO-Infinity)",
        fix="use z3, or leave out nvme",
        source="deepspeed/runtime/zero/stage3.py of deepspeed 0.19.8",
    ),
    Rule(
        field="offload.gradients",
        holds=lambda plan: plan.strategy.offload.gradients == plan.strategy.offload.optimizer,
        why="an optimizer on the host takes its gradients there",
        fix="offload both (off-og), or neither",
        source="ZeRO-Offload, arXiv 2101.06840, section 4",
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: plan.strategy.offload.optimizer == 0 or _stage(plan) >= 1,
        why="offloading the optimizer needs ZeRO 1 or more",
        fix="use z1",
        source=_CONFIG,
    ),
)
"""What DeepSpeed asks whatever program it runs in."""
RULES = (
    hugging_face.whole_sequences(
        _CONFIG, why="AutoTP splits matrices and keeps the whole sequence on every tensor rank"
    ),
    Rule(
        field="data.zero",
        holds=lambda plan: plan.strategy.expert.ep == 1 or plan.strategy.tp == 1 or plan.strategy.data.zero <= 2,
        why="AutoTP goes with ZeRO 3 where experts are not spread over ranks (AutoEP)",
        fix="use z2, or tp1",
        source="deepspeed/runtime/engine.py of deepspeed 0.19.8",
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.tp == 1 or plan.strategy.cp == 1,
        why="AutoTP and Ulysses do not go together",
        fix="use one of tp and cp",
        source=_CONFIG,
    ),
    fsdp.one_group(
        _CONFIG,
        why="ZeRO shards over all data ranks; MiCS, which kept copies, was removed",
        fix="use z3 with --pin sharding=z3",
    ),
    *SHARDS_AND_OFFLOAD,
    Rule(
        field="offload.optimizer",
        holds=lambda plan: plan.strategy.offload.optimizer in (0, 1) or plan.strategy.data.zero == 3,
        why="a part of the optimizer is offloaded with ZeRO 3 only (ratio)",
        fix="offload all of it, or use z3",
        source=_CONFIG,
    ),
    Rule(
        field="optimizer",
        holds=lambda plan: not _own_optimizer(plan) or plan.workload.optimizer in ("adam", "adamw"),
        why="with experts on several ranks ZeRO 1 and 2 need an optimizer that DeepSpeed makes, here its AdamW",
        fix="use adamw, or z3",
        source="deepspeed/runtime/zero/stage_1_and_2.py of deepspeed 0.19.8",
    ),
    fsdp.offloads_shards(_CONFIG, why="offloading weights needs ZeRO 3", fix="use z3", alone=True),
    Rule(
        field="optimizer",
        holds=lambda plan: (
            plan.strategy.offload.optimizer == 0
            or plan.strategy.data.family == "fsdp"
            or plan.workload.optimizer in ("adam", "adamw")
        ),
        why="where the optimizer is on the host, Accelerate puts DeepSpeed's Adam for it, whatever the trainer names",
        fix="use adamw, or leave out the offload",
        source="accelerate/utils/deepspeed.py of accelerate 1.15.0",
    ),
)


_UNTESTED = ("adamw-8bit", "paged-adamw-8bit", "adafactor", "lion", "sgd")
"""Optimizers of the trainer that ZeRO takes on demand."""


_OWN_ADAM = {
    "type": "AdamW",
    "params.torch_adam": True,
    **{f"params.{name}": "auto" for name in ("lr", "betas", "eps", "weight_decay")},
}
"""An optimizer that DeepSpeed makes, with the numbers of the trainer."""


def _own_optimizer(plan: Plan) -> bool:
    """Whether DeepSpeed makes the optimizer: ZeRO 1 and 2 take experts of several ranks in groups that it marks."""
    return plan.strategy.expert.ep > 1 and plan.strategy.data.zero in (1, 2)


def _stage(plan: Plan) -> int:
    """Stage of ZeRO; one device, which has nothing to shard, needs 2 for an optimizer on the host, 3 for weights or
    drives."""
    offload = plan.strategy.offload
    if plan.job.plan.devices > 1 or not offload.optimizer:
        return plan.strategy.data.zero
    return 3 if offload.weights or offload.tier == "nvme" else max(2, plan.strategy.data.zero)


def configuration(plan: Plan) -> Keys:
    """The keys of the JSON configuration."""
    strategy, pipeline = plan.strategy, plan.found.pipeline
    data, offload = strategy.data, strategy.offload
    activations = plan.precision.activations
    device = "nvme" if offload.tier == "nvme" else "cpu"
    where = {"device": device, "pin_memory": True} | ({"nvme_path": "/local_nvme"} if device == "nvme" else {})
    ratio = {"ratio": offload.optimizer} if 0 < offload.optimizer < 1 else {}
    zero = {
        "stage": _stage(plan),
        "overlap_comm": data.overlap,
        "contiguous_gradients": True,
        "offload_optimizer": where | ratio if offload.optimizer else None,
        "offload_param": where if offload.weights else None,
        "zero_hpz_partition_size": data.secondary_shard or None,
        "zero_quantized_weights": True if data.gather_dtype else None,
        "zero_quantized_gradients": True if data.reduce_dtype else None,
    }
    return nested_tables(
        {
            # The trainer compares it with what all devices would take, tensor and sequence ranks among them.
            "train_batch_size": None if hugging_face.shared_batches(plan) else plan.workload.global_batch,
            "train_micro_batch_size_per_gpu": pipeline.micro_batch,
            "gradient_accumulation_steps": pipeline.num_micro_batches,
            "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True if plan.workload.optimizer in _UNTESTED else None,
            "bf16.enabled": True if activations == "bf16" else None,
            "fp16.enabled": True if activations == "fp16" else None,
            **{f"zero_optimization.{name}": value for name, value in zero.items()},
            "tensor_parallel.autotp_size": strategy.tp if strategy.tp > 1 else None,
            "sequence_parallel_size": strategy.cp if strategy.cp > 1 else None,
            **({f"optimizer.{name}": value for name, value in _OWN_ADAM.items()} if _own_optimizer(plan) else {}),
            "expert_parallel.enabled": True if strategy.expert.ep > 1 else None,
            "expert_parallel.autoep_size": strategy.expert.ep if strategy.expert.ep > 1 else None,
        }
    )


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    trainer = hugging_face.trainer_files(plan, gradient_checkpointing=plan.recomputed, deepspeed=CONFIG)
    return (CONFIG, json_text(configuration(plan))), *trainer


NOTES = (
    *seeing.NOTES,
    Note(
        text="set nvme_path to a folder on the local disks of every node",
        when=lambda plan: plan.strategy.offload.tier == "nvme",
    ),
    Note(
        text="AutoEP of deepspeed 0.19.8 starts with transformers up to 5.22: 5.23 keeps what it reads in another way",
        when=lambda plan: plan.strategy.expert.ep > 1,
    ),
)


TARGET = OneStrategyTarget(
    name="deepspeed",
    title=TITLE,
    # deepspeed.ai/tutorials/accelerator-setup-guide; docs.habana.ai, DeepSpeed
    vendors=frozenset(("NVIDIA", "AMD", "Intel", "Huawei")),
    version="0.19.8 (2026-11)",
    unequal_nodes=True,
    says=SAYS,
    rules=RULES,
    beyond=lambda plan: hugging_face.trainer_problems(plan, TITLE),
    predicts_ahead=False,
    adapted=adapters.BY_PEFT,
    write=_files,
    start=hugging_face.start,
    notes=NOTES,
    read=later("meshwright.targets.deepspeed.read:read"),
    recognised=later("meshwright.targets.deepspeed.read:FILE.recognised"),
    # The trainer compares the batch of a step with what all devices would take, those that share one among them.
    left_out=frozenset(("train_batch_size",)),
    edited=hugging_face.edited,
    beside=(hugging_face.ARGUMENTS, hugging_face.SCRIPT, *adapters.FILES),
    software="pytorch-eager",
)
