"""What targets share that run models of the transformers library: its trainer's arguments, and a script to start.

The script builds the model from its own config.json, so that rope, norms, routers and windows are those of the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import Problem
from meshwright.formats.processes import torchrun
from meshwright.targets import adapters, seeing
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.key_texts import Keys, json_text, table_of
from meshwright.targets.sayable import Plan, Rule, Says, only
from meshwright.units import number_or_word

if TYPE_CHECKING:
    from meshwright.formats.key_text import KeyText
    from meshwright.targets.keys import KeyReader

ARGUMENTS = adapters.ARGUMENTS
SCRIPT = adapters.SCRIPT
DISTRIBUTED = "distributed_config.json"
"""Fields of `DistributedConfig` of transformers 5.23, by which `from_pretrained` divides a model over ranks."""

OPTIMIZERS = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw-8bit": "adamw_bnb_8bit",
    "paged-adamw-8bit": "paged_adamw_8bit",
    "adafactor": "adafactor",
    "lion": "lion_32bit",
    "sgd": "sgd",
}
"""`TrainingArguments.optim` of transformers 5.23 (2026-11); its Adam decouples weight decay."""
_ALSO = {
    **dict.fromkeys(("adamw", "adamw_hf", "adamw_apex", "paged_adamw", "paged_adamw_32bit"), "adamw"),
    **dict.fromkeys(("adamw_8bit", "adamw_torch_8bit"), "adamw-8bit"),
}
"""Other names that files have; states that are paged leave the device only where memory runs out."""
BATCHES = only(
    *("adam", "adamw", "adamw-8bit", "paged-adamw-8bit", "adafactor", "lion", "sgd"),
    why="the trainer's optimizers are these",
    fix="use adamw",
)
RECOMPUTE: dict[str, Says] = {
    "recompute.kind": only(
        "none",
        "full",
        why="layers are recomputed whole or not at all",
        fix="use rc-full, or rc-none",
    ),
}


def arguments(plan: Plan, **more: Any) -> Keys:
    """Fields of `transformers.TrainingArguments`."""
    pipeline = plan.found.pipeline
    return {
        "output_dir": "out",
        "per_device_train_batch_size": pipeline.micro_batch,
        "gradient_accumulation_steps": pipeline.num_micro_batches,
        "bf16": plan.precision.activations == "bf16",
        "fp16": plan.precision.activations == "fp16",
        "optim": OPTIMIZERS[plan.workload.optimizer],
        "max_steps": 20,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        **({"use_liger_kernel": True} if plan.workload.loss_tiles > 1 else {}),
        **more,
    }


def trainer_files(
    plan: Plan, *, weights: str = "", distributed: Keys | None = None, **more: Any
) -> tuple[tuple[str, str], ...]:
    """The trainer's arguments, the script that takes them, and its adapters.

    Args:
        plan: the plan that they say.
        weights: format in which the script makes weights that are trained whole; that of activations by default.
        distributed: how the transformers library itself divides the model over ranks; nothing by default.
        more: arguments beside those of `arguments`.
    """
    from meshwright.targets.training_script import script  # who only asks what a target runs writes nothing

    named, devices = DISTRIBUTED if distributed is not None else "", plan.job.plan.devices
    text = script(plan, weights, named, devices if shared_batches(plan) else None)
    made = (ARGUMENTS, json_text(arguments(plan, **more))), (SCRIPT, text)
    divided = () if distributed is None else ((DISTRIBUTED, json_text(distributed)),)
    return *made, *divided, *adapters.files(plan)


def start(plan: Plan) -> str:
    """The command that starts the script under torchrun."""
    return f"{started_by(torchrun(plan.job, port=6000))} {SCRIPT} {ARGUMENTS}"


def started_by(command: str) -> str:
    """A command that is told the model."""
    return f"MODEL=id/or/folder {command}"


def whole_sequences(source: str, why: str) -> Rule:
    """Matrices are cut over tensor ranks, sequences are not."""
    return Rule(
        field="tensor.sequence_parallel",
        holds=lambda plan: plan.strategy.tp == 1 or not plan.settings["tensor.sequence_parallel"],
        why=why,
        fix="add nosp",
        source=source,
    )


def shared_batches(plan: Plan) -> bool:
    """Whether several devices share a micro-batch, so that the batch of a step does not tell how many there are."""
    return plan.strategy.tp * plan.strategy.cp > 1


def shape_problems(plan: Plan) -> Iterator[Problem]:
    """Prediction modules, which models of the transformers library leave out of training."""
    if plan.model.mtp_layers:
        why = "models of the transformers library have no multi-token-prediction modules in training"
        fix = "plan a config without num_nextn_predict_layers"
        yield Problem(what=f"model: mtp_layers is {plan.model.mtp_layers}", why=why, fix=fix, field="model.mtp_layers")


def trainer_problems(
    plan: Plan,
    title: str,
    seen: frozenset[str] | None = None,
    makes: adapters.ByPeft = adapters.BY_PEFT,
) -> Iterator[Problem]:
    """What neither the trainer nor PEFT does of a plan.

    Args:
        plan: the plan of any model.
        title: the title of the program that runs the trainer.
        seen: `model_type` of the models that see which it trains; None for all classes.
        makes: the adapters that it makes where it is asked for some.
    """
    yield from shape_problems(plan)
    if plan.workload.loss_tiles > 1:
        from meshwright.targets import liger  # few questions ask for pieces

        yield from liger.problems(plan)
    yield from seeing.problems(plan, title, seen)
    optimizer = plan.workload.optimizer
    if plan.strategy.data.family == "fsdp" and (optimizer.endswith("-8bit") or optimizer in ("lion", "adafactor")):
        # torchtune refuses those of 8 bits, for the same reason (its recipes, 2025); Adafactor adds sharded tensors to
        # whole ones (transformers/optimization.py of transformers 5.23).
        owner = (
            "Adafactor of the transformers library takes" if optimizer == "adafactor" else "those of bitsandbytes take"
        )
        why, fix = f"{owner} no sharded tensors of FSDP2", "use adamw, or z2"
        yield Problem(what=f"plan: optimizer is {plan.workload.optimizer}", why=why, fix=fix, field="optimizer")
    yield from adapters.untrainable_by_peft(plan, makes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a trainer's arguments say of a plan."""

    given: bool
    recompute: str = "none"
    optimizer: str = "adamw"
    dtype: str = ""
    """`bf16` or `fp16` where they say so: then it holds whatever the configuration says."""
    loaded: str = ""
    """Format that the program loads the weights in, where an option of its own says it."""
    mbs: int = 0
    """0 where they do not say it."""
    steps: int = 0
    seq_len: int | None = None
    """None where no program of ours is there to say it."""
    devices: int | None = None
    """Devices of the job; None where no program of ours is there to say it."""
    attention: str | None = None
    """Attention, `materialised` or `flash`; None where no program of ours is there to say it."""
    compiled: bool = False
    """Whether PyTorch's compiler makes the kernels."""
    synced: bool | None = False
    """Whether ranks sum gradients in every micro-batch; None where a file says it that is not read."""
    stated: tuple[str, ...] = ()
    """Batch and accumulation by the names that DeepSpeed has for them, where they are said and not usual."""
    notes: tuple[str, ...] = ()
    """What was taken for granted, where they are not there."""

    @property
    def software(self) -> dict[str, str]:
        """The framework that prices the kernels, where it is not that of eager layers."""
        return {"software": "pytorch-compiled-no-sync"} if self.compiled else {}

    @property
    def synced_software(self) -> dict[str, str]:
        """The framework that prices a step whose gradients are scattered in every micro-batch."""
        return {"software": "pytorch-compiled" if self.compiled else "pytorch-eager"}


def read_arguments(files: Files, reader: KeyReader, world: int | None = None) -> Arguments:
    """The trainer's arguments among the files of a run; what is missing there is named.

    Args:
        files: the files of the run.
        reader: keys of the engine; takes what is wrong.
        world: devices of the job; None where nobody says them.
    """
    text, seq_len, attention = text_beside(files, ARGUMENTS), _constant("SEQ_LEN", files, reader), _attends(files)
    devices = _constant("DEVICES", files, reader)
    stops = f"{SCRIPT} stops unless it is started on {devices} devices, the plan is read for {world}"
    notes = (stops,) if None not in (devices, world) and devices != world else ()
    if text is None:
        note = f"taken as trained without gradient checkpointing, with AdamW: {ARGUMENTS} is not beside it"
        return Arguments(given=False, seq_len=seq_len, devices=devices, attention=attention, notes=(note, *notes))
    keys = table_of(text, "JSON", "trainer's arguments")
    own = reader.another(keys, (ARGUMENTS, text))
    reader.beside.append(own)
    return replace(arguments_of(own, seq_len), devices=devices, attention=attention, notes=notes)


def arguments_of(own: KeyReader, seq_len: int | None = None, recompute: str = "gradient_checkpointing") -> Arguments:
    """The trainer's arguments as the keys of a file.

    Args:
        own: the keys.
        seq_len: tokens of a sequence, where another file says them.
        recompute: the key that says it, or that it is left out.
    """
    return Arguments(
        given=True,
        recompute="full" if own.switch(recompute) != recompute.startswith("disable") else "none",
        optimizer=optimizer_of(own),
        dtype="fp16" if own.switch("fp16") else "bf16" if own.switch("bf16") else "",
        loaded=own.word("torch_dtype" if own.get("torch_dtype") is not None else "dtype").removeprefix("torch."),
        mbs=own.degree("per_device_train_batch_size", 8),
        steps=own.degree("gradient_accumulation_steps", 1),
        seq_len=seq_len,
        compiled=own.switch("torch_compile") or own.get("torch_compile_backend") is not None,
        synced=synced(own),
        stated=tuple(name for name, key in _STATED.items() if own.get(key) is not None),
    )


def software_of(reader: KeyReader, trainer: Arguments, *, deferrable: bool) -> dict[str, str]:
    """The framework that prices a step, where it is not that of eager layers that sum gradients once.

    Args:
        reader: takes what is wrong.
        trainer: its arguments.
        deferrable: whether ranks shard gradients of several micro-batches, which are kept whole unless they are summed
            in every one.
    """
    if not deferrable or trainer.synced is False:
        return trainer.software
    if trainer.synced is None:
        why = "that file says whether gradients are summed in every micro-batch, and is not read"
        reader.refuse(ACCELERATOR, "a file's name", why, "write the JSON of that file in its place")
    return trainer.synced_software if trainer.synced else trainer.software


def accumulation(in_each: bool) -> Keys:
    """The trainer's arguments by which ranks sum gradients in every micro-batch, or none."""
    return {ACCELERATOR: {_ACCUMULATION: {_SYNCED: True}}} if in_each else {}


def synced(own: KeyReader) -> bool | None:
    """Whether ranks sum gradients in every micro-batch, as `accelerator_config` says: a table, its JSON, or a file."""
    own.get(f"{ACCELERATOR}.{_ACCUMULATION}.{_SYNCED}")  # told and edited by its own name
    said = own.get(ACCELERATOR)
    if isinstance(said, str):
        if not said.lstrip().startswith("{"):
            return None
        said = table_of(said, "JSON", ACCELERATOR)
    kept = said.get(_ACCUMULATION) if isinstance(said, Mapping) else None
    value = kept.get(_SYNCED, False) if isinstance(kept, Mapping) else False
    if not isinstance(value, bool):
        own.refuse(f"{ACCELERATOR}.{_ACCUMULATION}.{_SYNCED}", value, "must be true or false", "write true or false")
    return value is True


ACCELERATOR = "accelerator_config"
_ACCUMULATION, _SYNCED = "gradient_accumulation_kwargs", "sync_each_batch"

_STATED = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


def _constant(name: str, files: Files, reader: KeyReader) -> int | None:
    """Tokens of a sequence, or devices, as the program says them that is written with a plan."""
    text = text_beside(files, SCRIPT)
    found = text and re.search(rf"^{name} = (\S{{1,40}})$", text, re.MULTILINE)
    if not text or not found:
        return None
    own = reader.another({name: number_or_word(found[1])}, (SCRIPT, text))
    reader.beside.append(own)
    return own.degree(name)


def edited(name: str, text: str) -> KeyText | None:
    """A file of the trainer as one that can be edited: of the program beside it, its constants.

    Args:
        name: the name of the file.
        text: the text of the file, which has been read without an error.
    """
    from meshwright.formats.key_text import key_text  # only who edits a file parses it

    if name != SCRIPT:
        return key_text(name, text)
    from meshwright.targets.program_constants import constants_of

    return constants_of(text, _CONSTANTS)


_CONSTANTS = ("SEQ_LEN", "DEVICES")


def _attends(files: Files) -> str | None:
    """The kernel of attention, as the program says it that is written with a plan."""
    found = re.search(r'^ATTENTION = "(\w+)"$', text_beside(files, SCRIPT) or "", re.MULTILINE)
    return found and ("materialised" if found[1] == "eager" else "flash")


def optimizer_of(reader: KeyReader, path: str = "optim") -> str:
    """The optimizer that the trainer's arguments name."""
    name = reader.word(path, "adamw_torch").removesuffix("_fused")
    if name in ("galore_adamw", "galore_adamw_layerwise"):
        found = galore(_settings(reader), rank="rank", every="update_proj_gap")
        return found + (",layerwise=1" if name.endswith("layerwise") else "")
    known = {said: ours for ours, said in OPTIMIZERS.items() if ours != "adam"} | _ALSO
    if name not in known:
        reader.refuse(path, name, f"{', '.join(known)} can be planned")
        return "adamw"
    return known[name]


def _settings(reader: KeyReader) -> dict[str, object]:
    """What `optim_args` says: `rank=64, update_proj_gap=100`."""
    parts = (part.partition("=") for part in str(reader.get("optim_args") or "").split(","))
    return {name.strip(): number_or_word(said.strip()) for name, _, said in parts}


def galore(said: Mapping[str, object], *, rank: str, every: str, usual: tuple[int, int] = (128, 200)) -> str:
    """GaLore as an optimizer is named here.

    Args:
        said: its settings.
        rank, every: what they are called: the rank, and the steps between two projections.
        usual: both, where nothing says them.
    """
    held = zip((said.get(rank), said.get(every)), usual, strict=True)
    found = [value if isinstance(value, int) else default for value, default in held]
    return f"galore:rank={found[0]},every={found[1]}"
