"""DeepSpeed: its JSON configuration, with the trainer of the transformers library around it.

Keys are those of deepspeed 0.19.8 (2026-11), https://github.com/deepspeedai/DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.data_words import in_order
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import adapters, fsdp, hugging_face
from meshwright.targets.contract import Files
from meshwright.targets.keys import KeyFile, KeyReader, Keys, json_text, nested_tables
from meshwright.targets.one_strategy import Note, OneStrategyTarget
from meshwright.targets.sayable import ANY, Plan, Rule, only, value_of

TITLE = "DeepSpeed"
CONFIG = "ds_config.json"
SAYS = hugging_face.RECOMPUTE | {
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
    "tuning": ANY,
    "precision": only("bf16", "fp16", "fp32"),
}
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
        holds=lambda plan: plan.settings["offload.tier"] != "nvme" or _by_zero_3(plan),
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
        holds=lambda plan: plan.strategy.offload.optimizer == 0 or plan.strategy.data.zero >= 1,
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
        holds=lambda plan: plan.strategy.tp == 1 or plan.strategy.data.zero <= 2,
        why="AutoTP goes with ZeRO 0 to 2",
        fix="use z2, or tp1",
        source=_CONFIG,
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
    fsdp.offloads_shards(_CONFIG, why="offloading weights needs ZeRO 3", fix="use z3"),
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


def configuration(plan: Plan) -> Keys:
    """The keys of the JSON configuration."""
    strategy, pipeline = plan.strategy, plan.found.pipeline
    data, offload = strategy.data, strategy.offload
    activations = plan.precision.activations
    device = "nvme" if offload.tier == "nvme" else "cpu"
    where = {"device": device, "pin_memory": True} | ({"nvme_path": "/local_nvme"} if device == "nvme" else {})
    ratio = {"ratio": offload.optimizer} if 0 < offload.optimizer < 1 else {}
    zero = {
        "stage": data.zero,
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
    Note(
        text="set nvme_path to a folder on the local disks of every node",
        when=lambda plan: plan.strategy.offload.tier == "nvme",
    ),
    Note(
        text="AutoEP of deepspeed 0.19.8 starts with transformers up to 5.22: 5.23 keeps what it reads in another way",
        when=lambda plan: plan.strategy.expert.ep > 1,
    ),
)


_BOTH_NAMES = frozenset(
    (
        *("prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters"),
        *("max_reuse_distance", "gather_16bit_weights_on_model_save", "module_granularity_threshold"),
        *("use_all_reduce_for_fetch_params", "allgather_sequential"),
    )
)
"""Keys of `zero_optimization` that DeepSpeed takes with `stage3_` before them and without."""


def _one_name(keys: Keys) -> Keys:
    """Keys by the name that the table of facts has, without comments, which DeepSpeed passes over."""
    found = {name: value for name, value in keys.items() if not name.startswith(("_", "//"))}
    zero = found.get("zero_optimization")
    if isinstance(zero, dict):
        named = {f"stage3_{name}" if name in _BOTH_NAMES else name: value for name, value in zero.items()}
        found["zero_optimization"] = named
    return found


FILE = KeyFile(
    title=TITLE,
    name=CONFIG,
    package=__name__,
    marks=(('"zero_optimization"', '"train_micro_batch_size'),),
    plain=_one_name,
)


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A JSON configuration as a plan, and what the trainer's arguments beside it say.

    Args:
        files: the configuration, and `training_args.json` where it is there.
        devices: of the job; by default those that the batch sizes imply.

    Raises:
        InputError: the text is no JSON.
    """
    reader = FILE.read(files)
    return launch_of(reader, hugging_face.read_arguments(files, reader), devices, adapters.read_adapters(files, reader))


def launch_of(
    reader: KeyReader,
    trainer: hugging_face.Arguments,
    devices: int | None,
    tuning: Mapping[str, Any] = MappingProxyType({}),
) -> LaunchFile:
    """A configuration as a plan.

    Args:
        reader: its keys.
        trainer: what the program around it says.
        devices: of the job.
        tuning: fields of a workload that say the adapters.
    """
    tp, cp = max(1, reader.number("tensor_parallel.autotp_size")), reader.degree("sequence_parallel_size")
    ep = reader.degree("expert_parallel.autoep_size") if reader.switch("expert_parallel.enabled") else 1
    etp = reader.degree("expert_parallel.expert_tensor_parallel_size")
    if open_to_trainer := _left_to_trainer(reader, trainer):
        return reader.launch(None, questions=(open_to_trainer,), notes=trainer.notes)
    batch, mbs, steps = _batches(reader, devices or trainer.devices, tp * cp, trainer)
    if batch is None:
        return reader.launch(None)
    dp = batch // (mbs * steps)
    zero = reader.get("zero_optimization.stage", 0)
    sharding = f"z{zero}" if zero in (0, 1, 2, 3) else "z0"
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=(("a2a", cp),) if cp > 1 else (),
        ep=ep,
        etp=etp,
        dp=dp,
        sharding=sharding,
        mbs=mbs,
        gbs=batch,
        offload=_offload(reader),
        dp_overlap=reader.switch("zero_optimization.overlap_comm", default=zero == 3),
        recompute=trainer.recompute,
        data_words=_exchanges(reader) if zero == 3 else (),
    )
    workload = {
        "global_batch": batch,
        "precision": PRECISIONS[_dtype(reader, trainer)],
        "optimizer": _optimizer(reader, trainer.optimizer),
        "seq_len": trainer.seq_len,
        "attention_kernel": trainer.attention,
        **tuning,
    }
    return reader.launch(row, workload=workload, notes=trainer.notes)


def _exchanges(reader: KeyReader) -> tuple[str, ...]:
    """What of ZeRO++ is used: weights in int8, gradients in int4, a second shard near by."""
    near = reader.number("zero_optimization.zero_hpz_partition_size", 1)
    words = [f"hpz{near}"] if near > 1 else []
    words += ["qw-int8"] if reader.switch("zero_optimization.zero_quantized_weights") else []
    words += ["qg-int4"] if reader.switch("zero_optimization.zero_quantized_gradients") else []
    return in_order(tuple(words))


def _dtype(reader: KeyReader, trainer: hugging_face.Arguments) -> str:
    """Format of the weights that are computed with; "auto" is what the trainer's own arguments say."""
    names = [f"{name}.enabled" for name in ("bf16", "fp16")]
    auto = [name for name in names if reader.word(name) == "auto"]
    on = [name for name in names if (trainer.dtype == name[:4] if name in auto else reader.switch(name))]
    if len(on) > 1:
        reader.refuse(on[1], True, "DeepSpeed starts with bf16 or with fp16, not with both", "leave one out")
    return on[0][:4] if on else "fp32"


def _left_to_trainer(reader: KeyReader, trainer: hugging_face.Arguments) -> Problem | None:
    """Asks for what is "auto" where no trainer's arguments are there; None where nothing is."""
    if trainer.given:
        return None
    names = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "bf16.enabled")
    ways = ("per_device_train_batch_size=N", "gradient_accumulation_steps=N", "bf16=true")
    every = (*names, "train_batch_size", "fp16.enabled")
    left = [path for path in every if str(value_of(reader.keys, path, "")).strip().lower() == "auto"]
    asked = [way for name, way in zip(names, ways, strict=True) if name in left]
    if not asked and "fp16.enabled" in left:
        asked = ["fp16=true"]
    if not asked and "train_batch_size" in left and names[0] not in reader.keys:
        asked = [ways[0]]
    if not asked:
        return None
    many = len(left) > 1
    what = f"{', '.join(left[:-1])} and {left[-1]} are 'auto'" if many else f"{left[0]} is 'auto'"
    why = f"the trainer's arguments say {'them' if many else 'it'}, and are not here"
    fix = f"give {' '.join(f'--set {way}' for way in asked)}, as the trainer has {'them' if len(asked) > 1 else 'it'}"
    return Problem(what=what, why=why, fix=fix, field=left[0])


def _batches(
    reader: KeyReader, devices: int | None, model_parallel: int, trainer: hugging_face.Arguments
) -> tuple[int | None, int, int]:
    """Batch of a step, micro-batch, and accumulation steps: any two and the devices say the third."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    given = {name: reader.get(name) for name in names}
    auto = [name for name, value in given.items() if value == "auto"]
    filled: dict[str, int | None] = {}
    if trainer.given:
        # "auto" is what the trainer's own arguments say.
        filled = dict(zip(names, (None, trainer.mbs, trainer.steps), strict=True))
        filled, auto = {name: filled[name] for name in auto}, []
    batch, mbs, steps = (
        filled[name] if name in filled else reader.degree(name) if given[name] and name not in auto else None
        for name in names
    )
    dp = None if devices is None else max(1, devices // model_parallel)
    steps = steps or (max(1, batch // (mbs * dp)) if batch and mbs and dp else 1)
    mbs = mbs or (batch // (steps * dp) if batch and dp else None)
    batch = batch or (mbs * steps * dp if mbs and dp else None)
    if not auto and (batch is None or not mbs):
        reader.refuse("train_batch_size", batch, "the batch is not given", "give two of the three batch keys")
    if batch and mbs and (batch % (mbs * steps) or (dp and batch != mbs * steps * dp)):
        why = f"must be micro-batch {mbs} x accumulation {steps} x data ranks {dp or 'of the job'}"
        reader.refuse("train_batch_size", batch, why)
        return None, 1, 1
    return (batch, mbs, steps) if batch and mbs and not auto else (None, 1, 1)


_OPTIMIZERS = ("adam", "adamw", "lion", "muon", "sgd")


def _optimizer(reader: KeyReader, trained: str) -> str:
    """The optimizer that the configuration names, else the trainer's."""
    kind = reader.word("optimizer.type")
    if kind == "sgd" and reader.get("optimizer.params.momentum"):
        return "sgd-momentum"
    if kind and kind not in _OPTIMIZERS:
        why = f"must be one of {', '.join(_OPTIMIZERS)}, whose memory is known"
        reader.refuse("optimizer.type", kind, why, "check with the nearest of them")
    return kind if kind in _OPTIMIZERS else trained


def _offload(reader: KeyReader) -> str:
    optimizer = reader.word("zero_optimization.offload_optimizer.device", "none")
    weights = reader.word("zero_optimization.offload_param.device", "none")
    # Earlier names, which it still takes for host memory.
    optimizer = "cpu" if optimizer == "none" and reader.switch("zero_optimization.cpu_offload") else optimizer
    weights = "cpu" if weights == "none" and reader.switch("zero_optimization.cpu_offload_param") else weights
    letters = ("w" if weights != "none" else "") + ("og" if optimizer != "none" else "")
    return f"{letters}-nvme" if "nvme" in (optimizer, weights) else letters


TARGET = OneStrategyTarget(
    name="deepspeed",
    title=TITLE,
    version="0.19.8 (2026-11)",
    says=SAYS,
    rules=RULES,
    beyond=hugging_face.trainer_problems,
    write=_files,
    start=hugging_face.start,
    notes=NOTES,
    read=read,
    recognised=FILE.recognised,
    beside=(hugging_face.ARGUMENTS, hugging_face.SCRIPT, *adapters.FILES),
    software="pytorch-eager",
)
