"""LLaMA-Factory: the YAML of a fine-tuning, with the JSON of DeepSpeed where data ranks share states.

Keys are those of its hparams (model_args.py, finetuning_args.py, data_args.py) in llamafactory 0.9.5 (2026-11),
https://github.com/hiyouga/LLaMA-Factory; arguments of the trainer stand among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import adapters, deepspeed, fine_tuning, fsdp, hugging_face, seeing
from meshwright.targets.contract import Files, Note, OneStrategyTarget, file_of, marked
from meshwright.targets.key_texts import Keys, nested_tables, yaml_text
from meshwright.targets.sayable import Plan, only

if TYPE_CHECKING:
    from meshwright.formats.key_text import KeyText
    from meshwright.formats.launch_file import LaunchFile
    from meshwright.formats.shell import Launch, Word
    from meshwright.targets.keys import KeyReader

TITLE = "LLaMA-Factory"
CONFIG = "train.yaml"
_OF_DEEPSPEED = (
    *("dp", "data.zero", "data.overlap", "data.secondary_shard", "data.gather_dtype", "data.reduce_dtype"),
    *("offload.optimizer", "offload.gradients", "offload.weights", "offload.tier"),
    *("recompute.kind", "optimizer", "attention_kernel", "loss_tiles", "tuning"),
)
SAYS = {name: deepspeed.SAYS[name] for name in (*_OF_DEEPSPEED, *seeing.BESIDE)} | {
    "precision": only("bf16", "fp16", "fp32", *fine_tuning.AS_LOADED),
    "sequence_lengths": fine_tuning.PACKED,
}
_SEEN = frozenset(
    (
        *("gemma3", "glm4v", "glm4v_moe", "internvl", "llava", "llava_next", "mistral3", "mllama"),
        *("qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"),
    )
)
"""Classes that see whose parts it knows to freeze (COMPOSITE_MODELS of model/model_utils/visual.py)."""
_ADAPTED = adapters.ByPeft(listed=True)
_RANK, _LENGTH, _BATCH = 8, 2048, 8
"""Defaults of lora_rank, cutoff_len and per_device_train_batch_size."""


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML."""
    lora = plan.model.lora
    flat: Keys = {
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if lora is None else "lora",
        "cutoff_len": plan.workload.seq_len,
        "packing": seeing.images_of(plan) is None,
        "per_device_train_batch_size": plan.found.pipeline.micro_batch,
        "gradient_accumulation_steps": plan.found.pipeline.num_micro_batches,
        "disable_gradient_checkpointing": not plan.recomputed,
        "flash_attn": "disabled" if plan.workload.attention_kernel == "materialised" else "sdpa",
        "optim": hugging_face.OPTIMIZERS[plan.workload.optimizer],
        **(
            {"pure_bf16": True}
            if fine_tuning.copies_as_loaded(plan)
            else {**fine_tuning.dtype_keys(plan), "deepspeed": deepspeed.CONFIG}
        ),
        **({"enable_liger_kernel": True} if plan.workload.loss_tiles > 1 else {}),
        "max_steps": 20,
        "output_dir": "out",
    }
    if lora is not None:
        given = adapters.given(plan).targets
        four = lora.base is not None and lora.base != "int8"
        flat |= {
            "lora_rank": lora.rank,
            "lora_target": "all" if ALL_LINEAR in given else ",".join(given),
            "lora_dropout": lora.dropout,
            "use_dora": lora.dora,
            "additional_target": ",".join(adapters.SAVED[part] for part in lora.train) or None,
            "quantization_bit": 4 if four else 8 if lora.base else None,
            "quantization_type": str(lora.base)[:3] if four else None,
            "double_quantization": not str(lora.base).endswith("-single") if four else None,
        }
    return nested_tables(flat | _of_images(plan))


def _of_images(plan: Plan) -> Keys:
    """Keys of a model that sees: what is trained of it, and the largest image."""
    if not seeing.sees(plan):
        return {}
    tuning = plan.model.tuning
    parts = {one.part for one in tuning.frozen} if tuning else set()
    used = seeing.images_of(plan) is not None and plan.model.lora is None
    keys: Keys = {
        "freeze_vision_tower": not used or "vision" in parts,
        "freeze_multi_modal_projector": not used or "projector" in parts,
        "freeze_language_model": "text" in parts,
    }
    if seeing.images_of(plan) is not None:
        width, height = seeing.size_in_pixels(plan)
        keys["image_max_pixels"] = width * height
    return keys


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    head = ("model, data and template are given on the command line", f"plan: {plan.job.name or plan.model.name}")
    return (CONFIG, yaml_text(configuration(plan), head)), *fine_tuning.engine_files(plan)


def _start(plan: Plan) -> str:
    many = (
        f" NNODES={plan.nodes} NODE_RANK=$NODE_RANK MASTER_ADDR=$MASTER_ADDR MASTER_PORT=6000" if plan.nodes > 1 else ""
    )
    said = "model_name_or_path=id/or/folder dataset=NAME template=NAME"
    return f"FORCE_TORCHRUN=1{many} llamafactory-cli train {CONFIG} {said}"


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from hugging_face.trainer_problems(plan, TITLE, _SEEN, _ADAPTED)
    if plan.model.lora is not None and adapters.given(plan).parameters:
        why, fix = f"{TITLE} gives PEFT names of modules alone", "name modules"
        yield Problem(what="plan: adapters are on parameters", why=why, fix=fix, field="tuning")
    lora = plan.model.lora
    if lora is not None and lora.layers:
        why, fix = f"{TITLE} puts adapters on all layers", "leave layers out"
        yield Problem(what="plan: adapters are on some layers", why=why, fix=fix, field="tuning")
    tuning, seen = plan.model.tuning, plan.model.settings.seen_by
    parts = {one.part for one in tuning.frozen} if tuning else set()
    if seen in ("qwen3_vl", "qwen3_vl_moe") and "vision" in parts and "projector" not in parts:
        why, fix = f"{TITLE} freezes what joins the levels of its tower with it", "freeze the projector, too"
        yield Problem(what="plan: the tower is frozen without the projector", why=why, fix=fix, field="tuning")
    if plan.strategy.data.family == "fsdp":
        why = "its file has no key of FSDP, which is said to `accelerate launch` around it"
        yield Problem(
            what="plan: data.family is fsdp", why=why, fix="use z3 with --pin sharding=z3", field="data.family"
        )


_MARKS = ("model_name_or_path", "finetuning_type", "cutoff_len")
_RECOGNISED = marked(
    (".yaml", ".yml"), ("model_name_or_path:", "finetuning_type:"), ("finetuning_type:", "cutoff_len:")
)

_RECOGNISED_V1 = marked((".yaml", ".yml"), ("dist_config:", "model_class:"), ("micro_batch_size:",))
"""Files of its second trainer."""


def _recognised(name: str, text: str) -> bool:
    return _RECOGNISED(name, text) or _RECOGNISED_V1(name, text)


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML file as a plan, with the JSON of DeepSpeed that it names.

    Args:
        files: the YAML, and the JSON where it is there.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML.
    """
    file = file_of(files, CONFIG, _recognised)
    # Those of version 1 are recognised by keys of their own.
    reader = fine_tuning.reader_of(files, file, TITLE, () if _RECOGNISED_V1(*file) else _MARKS)
    if _RECOGNISED_V1(*file):
        from meshwright.targets.llamafactory.v1 import read_v1

        return read_v1(reader, files, devices)
    _refuse(reader)
    trainer = hugging_face.arguments_of(reader, recompute="disable_gradient_checkpointing")
    trainer = replace(trainer, optimizer=_optimizer(reader, trainer.optimizer))
    lora = _lora(reader)
    eager = reader.choice("flash_attn", ("auto", "disabled", "sdpa", "fa2", "fa3")) == "disabled"
    said = {
        "seq_len": reader.degree("cutoff_len", _LENGTH),
        "lora": lora,
        "attention_kernel": "materialised" if eager else None,
    }
    model = reader.get("model_name_or_path")
    if reader.get("deepspeed") is not None:
        said["software"] = trainer.software.get("software")
        if reader.switch("pure_bf16"):
            reader.refuse("pure_bf16", True, "which formats DeepSpeed keeps then is not read", "use bf16")
        engine = fine_tuning.of_deepspeed(reader, files, trainer, devices)
        if engine is None:
            return reader.launch(
                None, model={"name": str(model)} if model else {}, questions=(fine_tuning.engine_missing(reader),)
            )
        return reader.launch(engine.row, **fine_tuning.with_fields(engine, reader, model, files, **said))
    dp = devices or 1
    shards = reader.word("fsdp")
    held = fsdp.of_words(reader, shards, dp, nodes="nnodes") if shards else {}
    gbs = trainer.mbs * trainer.steps * dp
    row = PlanRow(dp=dp, mbs=trainer.mbs, gbs=gbs, recompute=trainer.recompute, **held)
    pure = reader.switch("pure_bf16")
    if pure and shards:
        reader.refuse("pure_bf16", True, "which formats FSDP keeps is not read", "use bf16")
    workload = {
        "precision": fsdp.ALL_IN_16_BITS if pure and lora is None else PRECISIONS[trainer.dtype or "fp32"],
        "optimizer": trainer.optimizer,
        "global_batch": row.gbs,
        **{name: value for name, value in said.items() if value is not None},
        **hugging_face.software_of(reader, trainer, deferrable=bool(shards) and dp > 1 and trainer.steps > 1),
    }
    if shards:
        return reader.launch(row, model={"name": str(model)} if model else {}, workload=workload)
    note = "no key names what shards: every device holds a whole copy, unless `accelerate launch` around it says FSDP"
    return reader.launch(row, model={"name": str(model)} if model else {}, workload=workload, notes=(note,))


_OF_MEGATRON = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
_OTHERS = (
    *("use_apollo", "use_badam", "use_unsloth", "fp8", "mixture_of_depths", "use_kt"),
    *("use_llama_pro", "use_asft_loss", "freeze_language_model"),
)


def _optimizer(reader: KeyReader, trained: str) -> str:
    """The optimizer that a switch names, else the trainer's.

    Usual settings of GaLore are those of hparams/finetuning_args.py of llamafactory 0.9.5 (2026-11).
    """
    if reader.switch("use_galore"):
        if trained not in ("adamw", "adam"):
            reader.refuse("optim", trained, "GaLore is priced with moments of 32 bits", "use adamw_torch")
        names = ("galore_rank", "galore_update_interval")
        said = {name: reader.get(name) for name in names}
        found = hugging_face.galore(said, rank=names[0], every=names[1], usual=(16, 200))
        return found + (",layerwise=1" if reader.switch("galore_layerwise") else "")
    switches = {"use_adam_mini": "adam-mini", "use_muon": "muon"}
    return next((name for switch, name in switches.items() if reader.switch(switch)), trained)


_OTHER_WORK = ("do_predict", "do_eval")


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do."""
    for key in _OTHER_WORK:
        if reader.switch(key) and not reader.switch("do_train"):
            reader.refuse(key, True, "no weights are trained, so there is no step to plan", "check a file that trains")
    stage = reader.word("stage", "sft")
    if stage not in ("pt", "sft"):
        reader.refuse(
            "stage", stage, "more than one model runs, or a sequence runs twice", "check a file of stage sft or pt"
        )
    kind = reader.word("finetuning_type", "lora")
    if kind not in ("lora", "full"):
        reader.refuse("finetuning_type", kind, "full and lora can be planned", "use lora or full")
    degree = next((name for name in _OF_MEGATRON if reader.get(name) is not None), None)
    if degree is not None:
        why = "the file is of its Megatron backends, whose degrees and memory are others"
        fix = "check the script of Megatron-LM or Megatron-Bridge that does the same"
        reader.refuse(degree, reader.get(degree), why, fix)
    fine_tuning.refuse_seeing(reader, "model_name_or_path")
    fine_tuning.refuse_on(reader, _OTHERS, "its memory and kernels are not known")


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    if reader.word("finetuning_type", "lora") != "lora":
        return None
    bits, base = reader.get("quantization_bit"), None
    if bits == 4:
        base = reader.word("quantization_type", "nf4")
        base += "" if reader.switch("double_quantization", default=True) else "-single"
    elif bits is not None:
        base = "int8"
        if bits != 8:
            reader.refuse("quantization_bit", bits, "frozen weights in 4 or 8 bits can be planned", "use 4")
    more = reader.get("additional_target")
    found = {
        "r": reader.degree("lora_rank", _RANK),
        "targets": fine_tuning.targets_of(reader.get("lora_target", "all")),
        "dora": reader.switch("use_dora"),
        "dropout": reader.get("lora_dropout", 0.0),
        "train": fine_tuning.targets_of(more) if more else None,
        "base": base,
    }
    return {name: value for name, value in found.items() if value}


def _edited(name: str, text: str) -> KeyText | None:
    """The file by its keys; None of a launcher's, which holds the trainer's in a table of its own."""
    from meshwright.formats.key_text import key_text  # searches read no files

    keys = key_text(name, text)
    within = keys is not None and _recognised(name, text) and not _RECOGNISED_V1(name, text)
    return None if within and keys is not None and not any(mark in keys.values for mark in _MARKS) else keys


def _overrides(launch: Launch) -> dict[str, Word]:
    from meshwright.targets.overrides import by_equals, by_flags, nodes

    return {**nodes(launch), **by_flags(launch.words), **by_equals(launch.words)}


TARGET = OneStrategyTarget(
    name="llamafactory",
    title=TITLE,
    # README of hiyouga/LLaMA-Factory, 2025: for Ascend NPU users
    vendors=frozenset(("NVIDIA", "AMD", "Huawei")),
    version="0.9.5 (2026-11)",
    says=SAYS,
    rules=(*deepspeed.RULES, fine_tuning.as_loaded("hparams/parser.py of llamafactory 0.9.5")),
    beyond=_beyond,
    write=_files,
    start=_start,
    notes=(
        Note(
            text="sequences are packed to cutoff_len: without packing they are as long as the data",
            when=lambda plan: seeing.images_of(plan) is None,
        ),
        *seeing.NOTES,
        Note(
            text="set nvme_path to a folder on the local disks of every node",
            when=lambda plan: plan.strategy.offload.tier == "nvme",
        ),
    ),
    predicts_ahead=False,
    adapted=_ADAPTED,
    read=read,
    recognised=_recognised,
    overrides=_overrides,
    beside=(deepspeed.CONFIG, hugging_face.ARGUMENTS),
    named=fine_tuning.engine_named,
    edited=_edited,
    suggested=False,
    software="pytorch-eager-no-sync",
)
