"""ms-swift: scripts that start `swift sft` or `megatron sft`, whose options say model, batch, adapters and engine.

Names and defaults are those of swift/arguments of ms-swift 4 (2026), https://github.com/modelscope/ms-swift. Its
Megatron takes the options of Megatron-LM with `_` for `-`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Launch, Script, launches, processes
from meshwright.formats.shell.asking import Open, questions_for
from meshwright.formats.shell.values import Value, known_text, unknown_of
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import deepspeed, fine_tuning, fsdp, hugging_face
from meshwright.targets.contract import ReadTarget
from meshwright.targets.deepspeed.read import launch_of
from meshwright.targets.key_texts import Keys, table_of
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import commands, shared, swift_names
from meshwright.targets.trainers.commands import Command
from meshwright.targets.trainers.swift_megatron import megatron_launch
from meshwright.units import whole_number

TITLE = "ms-swift"
_VERBS = "sft|pt|rlhf|infer|export|eval|deploy|rollout|sample"
_STARTS = re.compile(
    rf"^[^#\n]*(?:(?:^|[\s/])(?:swift|megatron)\s+(?:{_VERBS})\b|swift/cli/\w+\.py|swift/cli/_megatron/\w+\.py)", re.M
)
_TRAINS = ("sft", "pt")
_ZERO: dict[str, Keys] = {
    "zero0": {"stage": 0},
    **shared.zero_files("zero", overlap=False),
}
"""Files of DeepSpeed that come with it, by the name that `--deepspeed` takes (swift/config)."""
_FREEZE = (
    *("freeze_parameters", "freeze_parameters_regex", "freeze_parameters_ratio", "trainable_parameters"),
    *("trainable_parameters_regex", "freeze_llm", "target_regex", "target_parameters"),
)
_OTHERS = (
    *(
        "galore_quantization",
        "galore_optim_per_parameter",
        "galore_with_embedding",
        "optimizer",
        "lisa_activated_layers",
        "llamapro_num_new_blocks",
        "device_map",
        "max_memory",
    ),
    *("num_labels", "problem_type", "teacher_model", "enable_channel_loss", "use_ray"),
)
_DEFAULT_STEPS = 16
"""Sequences of a step that accumulation makes where no option says how often it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started(Command):
    """One start of a program of ms-swift."""

    megatron: bool
    verb: str


def read(script: Script, devices: int | None = None) -> LaunchFile:
    """What a script starts, as a plan.

    Args:
        script: the script as bash means it.
        devices: the number of devices of the job; by default those that the script says.
    """
    found = [one for launch in launches(script.commands) if (one := _started(launch)) is not None]
    training = [one for one in found if one.verb in _TRAINS]
    problems = commands.unread(script)
    if not training:
        return commands.not_read((*problems, _no_training(found, script)))
    last = commands.chosen(training, script)
    if isinstance(last, Problem):
        return commands.not_read(problems, (last,))
    if asked := last.questions(_NEEDED, "model"):
        return commands.not_read(problems, asked, last.text("model"))
    reader = KeyReader(keys=last.keys(), problems=problems)
    world, question = _world(reader, last, devices)
    if question is not None:
        return commands.not_read(problems, (question,), last.text("model"))
    _refuse(reader)
    if last.megatron:
        launched = megatron_launch(reader, last.options, _lora(reader, "full"), world)
    else:
        launched = _trainer(reader, script.files, world)
    known = {one.option for one in launched.said}
    said = (*launched.said, *(one for one in reader.said() if one.option not in known))
    known |= {one.option for one in said}
    return replace(
        launched,
        said=tuple(last.placed(one) for one in said if one.option in last.options),
        unpriced=tuple(last.placed(one) for one in reader.unpriced() if one.option not in known),
        started=_own_processes(last),
    )


def _started(launch: Launch) -> _Started | None:
    words, program = launch.words, launch.program
    stem = program.rpartition("/")[2]
    if stem in ("swift", "megatron") and words:
        return _Started(
            megatron=stem == "megatron", verb=words[0].text, options=swift_names.options(words[1:]), launch=launch
        )
    path = program.replace(".", "/") if not program.endswith(".py") else program.removesuffix(".py")
    match = re.search(r"swift/cli/(_megatron/)?(\w+)$", path)
    if match is None:
        return None
    verb = words[0].text if match[2] == "main" and words else match[2]
    return _Started(megatron=bool(match[1]), verb=verb, options=swift_names.options(words), launch=launch)


def _no_training(found: list[_Started], script: Script) -> Problem:
    if not found:
        return commands.nothing_started(TITLE, script, "check a script of sft or pt")
    verb, why = found[-1].verb, "it serves, evaluates or converts a model"
    if verb == "rlhf":
        why = "it trains on pairs or rewards: more than one pass runs a sequence, which no plan here prices"
    return Problem(what=f"{TITLE} starts {verb}", why=why, fix="check a script of sft or pt", field="source")


_NEEDED = re.compile(
    "parallel|batch|accumulation|model$|length|deepspeed|fsdp|dtype|lora|tuner|train_type|recompute|checkpointing|quant"
    "|packing|target|offload|optim|fp8|layout|pipeline|expert|attention|attn"
)


def _count(one: _Started, name: str) -> tuple[int | None, Open | None]:
    value = one.launch.environment.get(name)
    if not value:
        return None, None
    unknown, text = unknown_of(value), known_text(value)
    if unknown is not None:
        return None, Open(what=name, unknown=unknown, place=one.launch.place, field="devices")
    return whole_number(text) or None, None


def _own_processes(one: _Started) -> int | None:
    """Processes that the script starts; None where it leaves them open."""
    by_launcher = processes(one.launch.launcher)[0]
    (each, hidden), (nodes, other) = _count(one, "NPROC_PER_NODE"), _count(one, "NNODES")
    if by_launcher is not None or hidden is not None or other is not None:
        return by_launcher
    visible = known_text(one.launch.environment.get("CUDA_VISIBLE_DEVICES") or ())
    if each is None:
        return 1 if visible.isdecimal() and not one.launch.distributed else None  # one process, which sees one device
    return each * (nodes or 1)


def _world(reader: KeyReader, one: _Started, devices: int | None) -> tuple[int, Problem | None]:
    """Processes of the job, and the question where a variable hides them."""
    own = _own_processes(one)
    hidden = _count(one, "NPROC_PER_NODE")[1] or _count(one, "NNODES")[1]
    if devices is None and own is None and hidden is not None:
        return 1, next(questions_for([hidden]))
    visible = known_text(one.launch.environment.get("CUDA_VISIBLE_DEVICES") or ())
    config = next((word.text for word in one.launch.launcher if word.text.startswith("--config_file")), None)
    if config is not None:
        why = "the file of Accelerate says what shards, and is not read from a script of ms-swift"
        reader.refuse("config_file", config, why, "check that file with --from accelerate")
    alone = own is None and hidden is None and not one.launch.distributed
    if alone and not one.megatron and "," in visible:
        why = "NPROC_PER_NODE is not set: one process spreads layers over the devices, one computing at a time"
        reader.refuse("device_map", visible, why, "set NPROC_PER_NODE")
    return devices or own or 1, None


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do."""
    fine_tuning.refuse_seeing(reader, "model")
    task = reader.word("task_type", "causal_lm")
    if task != "causal_lm":
        reader.refuse("task_type", task, "it has no head of the vocabulary, or compares pairs", "use causal_lm")
    whole = _only_towers(reader.get("freeze_parameters"))  # as its default has it, where a model sees or hears
    names = [name for name in _FREEZE if not (whole and name == "freeze_parameters")]
    fine_tuning.refuse_on(reader, names, "which part of the model is trained is not read", "leave it out")
    fine_tuning.refuse_on(reader, _OTHERS, "its memory and kernels are not known", "leave it out")
    if reader.get("to_cached_dataset") is True:
        reader.refuse("to_cached_dataset", True, "it prepares data, and trains nothing", "check the script that trains")
    if reader.word("loss_type") not in ("", "cross_entropy"):
        reader.refuse("loss_type", reader.get("loss_type"), "its passes are not read", "leave it out")


_TOWERS = re.compile(r"vis(?:ion|ual)|audio|image|projector|aligner|mm_|multi_modal|merger")
"""Words in names of modules that are not of the text's decoder."""


def _only_towers(names: object) -> bool:
    """Whether modules by their prefixes are those that images or sound go through."""
    parts = names.split() if isinstance(names, str) else names if isinstance(names, list) else []
    return bool(parts) and all(_TOWERS.search(str(one)) is not None for one in parts)


def _lora(reader: KeyReader, usual: str) -> dict[str, Any] | None:
    """Adapters as a workload has them; None where all of the model is trained."""
    named = next(
        (name for name in ("tuner_type", "train_type", "sft_type") if reader.get(name) is not None), "tuner_type"
    )
    kind = reader.word(named, usual)
    if kind == "full":
        return None
    if kind != "lora":
        reader.refuse(named, kind, "full and lora can be planned", "use lora")
    four, method = reader.get("quant_bits"), reader.word("quant_method", "bnb")
    base = None
    if four is not None:
        if method != "bnb" or four not in (4, 8):
            reader.refuse("quant_bits", four, "bnb in 4 or 8 bits can be planned", "use 4 with quant_method bnb")
        base = "int8" if four == 8 else reader.word("bnb_4bit_quant_type", "nf4")
        if four == 4 and not reader.switch("bnb_4bit_use_double_quant", default=True):
            base += "-single"
    saved = reader.get("modules_to_save")
    if reader.get("target_modules") == "DEFAULT":
        why = "which modules it means differs from model to model"
        reader.refuse("target_modules", "DEFAULT", why, "name the modules, or say --set target_modules=q_proj,v_proj")
    found = {
        "r": reader.degree("lora_rank", 8),
        "targets": ["all-linear"]
        if reader.word("target_modules", "all-linear") in ("all-linear", "default")
        else fine_tuning.targets_of(reader.get("target_modules")),
        "dora": reader.switch("use_dora"),
        "dropout": reader.get("lora_dropout", 0.05),
        "train": fine_tuning.targets_of(saved) if saved else None,
        "base": base,
    }
    return {name: value for name, value in found.items() if value}


def _trainer(reader: KeyReader, files: Mapping[str, Value], world: int) -> LaunchFile:
    """`swift sft`: the trainer of transformers with DeepSpeed, FSDP2 or copies of the weights.

    Args:
        reader: the reader of its options.
        files: the files beside the script, or written by it.
        world: processes of the job.
    """
    lora = _lora(reader, "lora")
    cp = reader.degree("sequence_parallel_size")
    mbs = reader.degree("per_device_train_batch_size")
    dp = shared.data_ranks(reader, world, cp=("sequence_parallel_size", cp))
    model = reader.get("model")
    if dp is None:
        return reader.launch(None, model={"name": str(model)} if model else {})
    said = reader.get("gradient_accumulation_steps")
    steps = reader.degree("gradient_accumulation_steps") if said is not None else -(-_DEFAULT_STEPS // (mbs * world))
    again = "full" if reader.switch("gradient_checkpointing", default=True) else "none"
    half = reader.word("torch_dtype", "bfloat16")
    fields: dict[str, Any] = {"mbs": mbs, "gbs": mbs * steps * dp, "recompute": again}
    row, sharded, questions = _engine(reader, files, dp, cp, fields, steps)
    summed = hugging_face.Arguments(given=True, synced=hugging_face.synced(reader))
    deferrable = row is not None and row.sharding == "fsdp" and steps > 1
    return shared.launched(
        reader,
        row,
        precision=_precision(reader, half, sharded=sharded or lora is not None),
        model=str(model) if model else None,
        optimizer=_optimizer(reader),
        seq_len=reader.get("max_length") if isinstance(reader.get("max_length"), int) else None,
        lora=lora,
        attention_kernel="materialised" if reader.word("attn_impl") == "eager" else None,
        mlp_tiles=reader.degree("tiled_mlp_num_shards", 4) if reader.switch("use_tiled_mlp") else None,
        questions=questions,
        software=hugging_face.software_of(reader, summed, deferrable=deferrable).get("software"),
    )


def _optimizer(reader: KeyReader) -> str:
    """The trainer's optimizer, or GaLore with its usual settings in swift/arguments/tuner_args.py."""
    names = ("galore_rank", "galore_update_proj_gap")
    said = {name: reader.get(name) for name in names}
    own = hugging_face.optimizer_of(reader)
    return (
        hugging_face.galore(said, rank=names[0], every=names[1], usual=(128, 50))
        if reader.switch("use_galore")
        else own
    )


def _precision(reader: KeyReader, dtype: str, *, sharded: bool) -> Precision:
    """Formats: an engine of shards keeps fp32 copies of weights that are loaded in 16 bits, DDP does not."""
    if dtype in ("float32", "fp32"):
        on = reader.switch("bf16") or reader.switch("fp16")
        return PRECISIONS["bf16" if reader.switch("bf16") else "fp16"] if on else PRECISIONS["fp32"]
    if dtype in ("float16", "fp16"):
        return PRECISIONS["fp16"]
    return PRECISIONS["bf16"] if sharded else fsdp.ALL_IN_16_BITS


def _of_file(reader: KeyReader, name: str, text: str, dp: int, fields: Mapping[str, Any], steps: int) -> LaunchFile:
    """What a configuration of DeepSpeed says, with the batch that the options say."""
    keys = table_of(text, "JSON", "configuration of DeepSpeed")
    own = KeyReader(keys=keys, problems=reader.problems, file=(name, text))
    trainer = hugging_face.Arguments(
        given=True,
        mbs=fields["mbs"],
        steps=steps,
        recompute=fields["recompute"],
        dtype="bf16",
        stated=("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    )
    return launch_of(own, trainer, dp)


def _engine(
    reader: KeyReader, files: Mapping[str, Value], dp: int, cp: int, fields: Mapping[str, Any], steps: int
) -> tuple[PlanRow | None, bool, tuple[Problem, ...]]:
    """The plan of an engine, and whether it keeps fp32 copies."""
    name = swift_names.engine(str(reader.get("deepspeed") or ""))
    words = str(reader.get("fsdp") or "").lower()
    if name:
        keys, text = _ZERO.get(name), known_text(files.get(name.rpartition("/")[2]) or ())
        if keys is None and text.lstrip().startswith("{"):
            found = _of_file(reader, name.rpartition("/")[2], text, dp, fields, steps)
            row = found.row
            return None if row is None else replace(row, cp=(("a2a", cp),) if cp > 1 else row.cp), True, found.questions
        if keys is None:
            why = "it says what is sharded and offloaded, and is not next to the script"
            fix = f"put it there, or use one of {', '.join(_ZERO)}"
            question = Problem(what=f"{name[:80]} is not here", why=why, fix=fix, field="deepspeed")
            return None, True, (question,)
        tp = reader.degree("deepspeed_autotp_size")
        if tp > 1:
            reader.refuse("deepspeed_autotp_size", tp, "tensor ranks of AutoTP are not read here", "leave it out")
        letters = ("w" if "offload_param" in keys else "") + ("og" if "offload_optimizer" in keys else "")
        zero = f"z{keys['stage']}"
        context = (("a2a", cp),) if cp > 1 else ()
        row = PlanRow(dp=dp, cp=context, sharding=zero, offload=letters, dp_overlap=False, **fields)
        return row, True, ()
    if words == "fsdp2":
        return shared.sharded_row(dp, sharded=True, context=("a2a", cp), **{**fields, "recompute": "full"}), True, ()
    if words.endswith(".json"):
        return _of_shards(reader, files, dp, cp, fields)
    elif words:
        return _of_words(reader, words, "fsdp_", dp, cp, fields), True, ()
    return shared.sharded_row(dp, sharded=False, context=("a2a", cp), **fields), False, ()


def _of_shards(
    reader: KeyReader, files: Mapping[str, Value], dp: int, cp: int, fields: Mapping[str, Any]
) -> tuple[PlanRow | None, bool, tuple[Problem, ...]]:
    """The plan that a JSON of the trainer's `fsdp` and `fsdp_config` says."""
    name = str(reader.get("fsdp")).rpartition("/")[2]
    text = known_text(files.get(name) or ())
    if not text.lstrip().startswith("{"):
        why = "it says what is sharded and offloaded, and is not next to the script"
        question = Problem(what=f"{name[:80]} is not here", why=why, fix="put it there, or use fsdp2", field="fsdp")
        return None, True, (question,)
    own = KeyReader(keys=table_of(text, "JSON", "configuration of FSDP"), problems=reader.problems, file=(name, text))
    return _of_words(own, own.word("fsdp", "full_shard"), "fsdp_config.", dp, cp, fields), True, ()


def _of_words(reader: KeyReader, words: str, config: str, dp: int, cp: int, fields: Mapping[str, Any]) -> PlanRow:
    """The plan of the words of `fsdp`, with the settings of `fsdp_config` under names that begin with `config`."""
    held = fsdp.of_words(reader, words, dp, cp=cp, nodes="nnodes")
    if not reader.switch(f"{config}reshard_after_forward", default=True) and held["sharding"] == "fsdp":
        held["sharding"] = "fsdp-keep"
    made = {"recompute": "full"} if reader.switch(f"{config}activation_checkpointing") else {}
    return PlanRow(dp=dp, cp=(("a2a", cp),) if cp > 1 else (), **held, **{**fields, **made})


TARGET = ReadTarget(
    name="swift",
    title=TITLE,
    version="4 (2026)",
    like="megatron",
    script=read,
    recognised=commands.bash_with(_STARTS),
    beside=(deepspeed.CONFIG,),
    software="pytorch-eager-no-sync",
)
