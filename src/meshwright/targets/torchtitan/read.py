"""A module of torchtitan read as a plan, from its syntax tree, never by running it; and the TOML of older versions."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.formats.launch_file import Dealt, LaunchFile
from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.specs.strategy import HALF_PRODUCTS
from meshwright.targets import fsdp, overrides, pytorch_pipeline
from meshwright.targets.contract import Files
from meshwright.targets.keys import KeyReader, key_problems, known_keys
from meshwright.targets.torchtitan import stages
from meshwright.targets.torchtitan.earlier import EVERY, RECOMPUTE, names_in, with_todays_names
from meshwright.targets.torchtitan.flavors import layers_of, library_name
from meshwright.targets.torchtitan.functions import CONFIG, PART, SECTIONS, module_keys

_P, _T = "parallelism.", "training."
_REDUCE = f"{_T}mixed_precision_reduce"
_TOKENS = f"{_T}num_tokens_per_microbatch_per_dp_rank"


def read_configuration(
    file: tuple[str, str], devices: int | None, schedule: str | None = None, files: Files | None = None
) -> LaunchFile:
    """A configuration as a plan.

    Args:
        file: its name and its text, a Python module with a function that returns a `Trainer.Config`, or TOML of
            versions before 0.2.
        devices: the number of devices of the job; by default what the degrees multiply to.
        schedule: text of the schedule's file, where there is one.
        files: the files of the run, those that stand for words of the command among them.

    Raises:
        InputError: the text is neither.
    """
    name, text = file
    toml = name.endswith(".toml")
    if toml:
        files = with_todays_names(files or {})
    said, over = overrides.laid_over({}, files or {})
    wanted = said.get(CONFIG)
    keys, unresolved = module_keys(text, None if toml or not isinstance(wanted, str) else wanted)
    if wrong := unresolved.get(CONFIG):
        return LaunchFile(row=None, layout=None, questions=(_which(wrong, name, wanted),))
    if wrong := unresolved.get(PART):
        fix = "write its fields by their names, as TrainingConfig and ParallelismConfig have them"
        asked = Problem(what=f"{wrong} in {name} is not known", why="which fields it sets is not", fix=fix, field=PART)
        return LaunchFile(row=None, layout=None, questions=(asked,))
    keys, over = overrides.laid_over(keys, files or {})
    reader = KeyReader(keys=keys, file=(name, text), over=over, names=names_in(text) if toml else {})
    checked = {name: value for name, value in keys.items() if name in SECTIONS.values()}
    reader.problems += key_problems("torchtitan", checked, known_keys("meshwright.targets.torchtitan"))
    forked = _of_a_fork(reader) if toml else ()
    reduced = toml and reader.word(_REDUCE, "float32") == "bfloat16"
    if reduced:  # forks send gradients in 16 bits
        reader.problems = [one for one in reader.problems if one.field != _REDUCE]
    lora, precision, notes = _converted(reader)
    notes += forked
    _refuse_images(reader)
    shipped = (
        str(reader.get("module") or reader.get("model.name", "")),
        str(reader.get("flavor") or reader.get("model.flavor", "")),
    )
    layers = layers_of(*shipped)
    row, rule = _row(reader, devices, schedule, layers)
    layout = None if rule is None or layers is None else _layout(reader, rule, layers)
    if row is not None:
        row, more = _again(reader, row, layers)
        notes += more
    workload = _workload(reader, row, lora, precision)
    if reduced:
        kept = workload["precision"]
        sixteen = kept == fsdp.IN_16_BITS
        workload["precision"] = fsdp.ALL_IN_16_BITS if sixteen else stated(kept, {"reduce_dtype": "bf16"})
    _refuse_other_steps(reader)
    named = {"name": shipped[1]} if "/" in shipped[1] else {}  # a model of the hub, as experiments call theirs
    model = {"num_layers": layers, "name": library_name(*shipped)} if layers else named
    unknown = {path: why for path, why in unresolved.items() if path not in over and path in reader.asked}
    if questions := tuple(_question(path, why, name) for path, why in unknown.items()):
        # What follows from a value nobody knows would be wrong: nothing of it is said.
        return replace(reader.launch(None), problems=(), questions=questions)
    dealt = rule if layers is None else None
    return reader.launch(row, layout, dealt=dealt, model=model, workload=workload, notes=notes)


def _workload(reader: KeyReader, row: PlanRow | None, lora: dict[str, Any] | None, precision: str) -> dict[str, Any]:
    """The workload that a configuration says.

    Args:
        reader: its keys.
        row: its plan; None where it says none.
        lora: adapters, where it converts the model to have some.
        precision: the format of products, where it converts them; empty where it does not.
    """
    wide = reader.word(f"{_T}mixed_precision_param", "bfloat16") == "float32"
    narrow = reader.word(f"{_T}dtype", "float32") == "bfloat16"
    found = fsdp.workload(row, seq_len=_length(reader), wide=wide)
    if not (reader.switch("compile.enable") and "model" in (reader.get("compile.components") or ("model",))):
        found["software"] = "torchtitan-eager"
    if precision:
        found["precision"] = PRECISIONS[precision]
    if lora is not None:
        found["lora"] = lora | ({} if narrow else {"base": "fp32"})
    elif narrow and not precision:
        found["precision"] = fsdp.IN_16_BITS
    elif narrow:
        reader.refuse(f"{_T}dtype", "bfloat16", f"products in {precision} are priced with fp32 copies", "use float32")
    early = any(reader.switch(f"optimizer.{key}") for key in _EARLY)
    if reader.get("optimizer.name") is not None or early:
        found["optimizer"] = _optimizer(reader) + (":layerwise=1" if early else "")
    return found


def _refuse_other_steps(reader: KeyReader) -> None:
    """Refuse steps that are no training."""
    if reader.switch("checkpoint.create_seed_checkpoint"):
        why = "it writes weights for other runs to begin with, and trains none"
        reader.refuse("checkpoint.create_seed_checkpoint", True, why, "check the file of a training")


_EARLY = "early_step_in_backward", "optimizer_in_backward"
"""Switches, by version, of an update of each layer as soon as its gradient is there."""
_OPTIMIZERS = {"adamw": "adamw", "adam": "adam", "adam_mini": "adam-mini", "muon": "muon", "sgd": "sgd", "lion": "lion"}


def _optimizer(reader: KeyReader) -> str:
    """The optimizer that `optimizer.name` says, of torchtitan or of a fork."""
    name = reader.word("optimizer.name", "adamw").lower()
    if name not in _OPTIMIZERS:
        reader.refuse("optimizer.name", name, f"{', '.join(_OPTIMIZERS)} can be planned", "use AdamW")
    return _OPTIMIZERS.get(name, "adamw")


def _layout(reader: KeyReader, rule: Dealt, layers: int) -> tuple[int, ...] | None:
    """Layers of each virtual stage; a problem and None where torchtitan makes no such stages."""
    try:
        return rule(layers)
    except InputError as error:
        reader.problems += error.problems
        return None


def _refuse_images(reader: KeyReader) -> None:
    """Models of images, which have a denoiser and encoders in the place of a decoder of text."""
    name = str(reader.get("module") or reader.get("model.name", ""))
    if "flux" in name.lower() or reader.get(f"{_T}img_size") is not None:
        why = "it trains a model of images: decoders that predict the next token are read"
        reader.refuse("model.name", name or "given", why, "check a configuration of a language model")


_OF_A_PLAN = re.compile(
    r"parallel|_degree|stage|fsdp|prefetch|shard|micro|batch|seq_len|tokens_per|length|dtype|mixed|offload|compile|recompute"
    r"|checkpoint|optim|expert|moe|attn|attention|async|accum|enable|disable|use_"
)
"""Words in keys that may be of a plan."""


def _of_a_fork(reader: KeyReader) -> tuple[str, ...]:
    """Takes keys of a fork that name data or losses; what may be of a plan stays a problem."""
    unknown = [one for one in reader.problems if one.what.startswith("unknown key ")]
    own = [one for one in unknown if not _OF_A_PLAN.search(one.field.partition(".")[2])]
    reader.problems = [one for one in reader.problems if one not in own]
    names = ", ".join(one.field for one in own)
    return (f"keys of a fork of torchtitan, taken as changing no plan: {names}",) if own else ()


def _which(wrong: str, file: str, wanted: object) -> Problem:
    fix = (
        f"give --set {CONFIG}=FUNCTION, or check a script: python -m torchtitan.train --module MODULE --config FUNCTION"
    )
    what = f"which configuration of {file} is meant is not known" if wanted is None else f"--config is {wanted!r:.60}"
    return Problem(what=what, why=f"it holds {wrong}", fix=fix, field=CONFIG)


def _length(reader: KeyReader) -> int | None:
    """Tokens of a sequence; by default those of the release whose names the file uses."""
    usual = 2048 if reader.get(_TOKENS) is not None else None
    found = reader.get(f"{_T}max_context_length", usual) or reader.get(f"{_T}seq_len")
    return found if isinstance(found, int) else None


_FORMATS = {
    **dict.fromkeys(
        ("Float8LinearConverter", "Float8GroupedExpertsConverter", "float8", "quantize.linear.float8"), "fp8"
    ),
    **dict.fromkeys(("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter", "mx", "quantize.linear.mx"), "mxfp8"),
    **dict.fromkeys(("NVFP4LinearConverter", "nvfp4"), "nvfp4"),
}
"""Format of products by what converts them."""
_TARGETS = {
    "wqkv": ("qkv_proj",),
    "wq": ("q_proj",),
    "wkv": ("k_proj", "v_proj"),
    "wo": ("o_proj",),
    "w1": ("mlp.gate_proj",),
    "w2": ("mlp.down_proj",),
    "w3": ("mlp.up_proj",),
}
"""Modules with adapters by torchtitan's names."""


def _converted(reader: KeyReader) -> tuple[dict[str, Any] | None, str, tuple[str, ...]]:
    """Adapters, the format of products where it is not that of activations, and what was taken for granted."""
    said = reader.get("converters") or reader.get("model.converters") or {}
    lora, precision, notes = None, "", list[str]()
    for name in said if isinstance(said, (list, dict)) else [said]:
        given = said[name] if isinstance(said, dict) else {}
        if name == "LoRAConverter":
            lora, notes = _lora(reader, given)
        elif name not in _FORMATS:
            reader.refuse("converters", name, f"its products are not priced; {', '.join(_FORMATS)} are")
        elif given.get("fqns"):
            reader.refuse("converters", name, "it converts some layers by name, which no plan says", "leave out fqns")
        else:
            precision = _FORMATS[name]
    return lora, precision, tuple(notes)


def _lora(reader: KeyReader, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    named, rank = given.get("target_modules"), given.get("rank", 8)
    if not isinstance(rank, int) or rank < 1:
        reader.refuse("converters", f"LoRAConverter of rank {rank}", "must be a whole number of at least 1")
        rank = 8
    if named is None:
        fused = reader.get("module") in ("llama3", "qwen3")
        targets = ["qkv_proj", "o_proj", "mlp.*"] if fused else ["attention.*", "mlp.*"]
        return {"r": rank, "targets": targets}, ["the adapter of lm_head is not priced"]
    known = [name for name in named if name in _TARGETS] if isinstance(named, list) else []
    if not known or len(known) < len(named):
        reader.refuse("converters", f"LoRAConverter on {named}", f"known are {', '.join(_TARGETS)}")
    return {"r": rank, "targets": [ours for name in known for ours in _TARGETS[name]] or ["all-linear"]}, []


def _question(path: str, said: str, file: str) -> Problem:
    why = f"{said} is not a value written in {file}, and the module is not run"
    return Problem(what=f"{path} is not known", why=why, fix="write the number or word in its place", field=path)


def _row(
    reader: KeyReader, devices: int | None, table: str | None, layers: int | None
) -> tuple[PlanRow | None, Dealt | None]:
    tp, cp, ep, pp, replicate = (
        reader.degree(f"{_P}{name}_degree")
        for name in (
            "tensor_parallel",
            "context_parallel",
            "expert_parallel",
            "pipeline_parallel",
            "data_parallel_replicate",
        )
    )
    shard = reader.get(f"{_P}data_parallel_shard_degree", -1)
    reader.multiple = pp * replicate * math.lcm(tp * cp, ep)
    if shard == -1 and devices is not None:
        shard, rest = divmod(devices, tp * cp * pp * replicate)
        if rest or not shard:
            reader.refuse("devices", devices, f"must be a multiple of {tp * cp * pp * replicate}, the other degrees")
            return None, None
    if not isinstance(shard, int) or shard < 1:
        reader.refuse(f"{_P}data_parallel_shard_degree", shard, "it is what is left of the devices", "say --gpus")
        return None, None
    mbs, gbs = _batches(reader, pp, replicate * shard)
    if mbs is None:
        return None, None
    schedule, vpp, rule = _schedule(reader, pp, layers) if pp > 1 else (None, 1, None)
    micro_batches = gbs // (mbs * replicate * shard)
    if pp > 1 and reader.get(f"{_P}pipeline_parallel_schedule_csv"):
        schedule = _of_file(reader, table, (pp, vpp, micro_batches))
    elif schedule is not None:
        schedule = pytorch_pipeline.in_pytorch_rounds(schedule, pp, micro_batches)
    reshard = reader.word(f"{_P}fsdp_reshard_after_forward", "default")
    # By default weights stay gathered where a pipeline would gather them for every micro-batch.
    kept = reshard == "never" or (reshard == "default" and pp > 1)
    row = PlanRow(
        tp=tp,
        sp=tp == 1 or reader.switch(f"{_P}enable_sequence_parallel", default=True),
        tp_overlap="ring" if tp > 1 and reader.switch("compile.enable_async_tensor_parallel") else "bulk",
        cp=(("ag", cp),) if cp > 1 else (),
        pp=pp,
        vpp=vpp,
        ep=ep,
        dp=replicate * shard,
        **fsdp.sharding(shard * cp > 1, dp=replicate * shard, replicate=replicate, cp=cp, reshard=not kept),
        mbs=mbs,
        gbs=gbs,
        schedule=schedule or default_schedule(vpp),
        offload="wog" if reader.switch("training.enable_cpu_offload") else "",
    )
    return row, rule


def _again(reader: KeyReader, row: PlanRow, layers: int | None) -> tuple[PlanRow, tuple[str, ...]]:
    """The row with what is computed again, and what was taken for it.

    Its selective kind repeats every second product; before version 0.2 it could repeat one layer in some instead.
    """
    kind = reader.get(RECOMPUTE)
    if kind in ("none", "FullAC"):
        return replace(row, recompute="full" if kind == "FullAC" else "none"), ()
    every = reader.get(EVERY)
    if kind == "SelectiveAC" and every is None:
        return replace(row, recompute="sel", recompute_modules=(HALF_PRODUCTS,)), ()
    if kind != "SelectiveAC" or layers is None or every is None:
        why = "a plan cannot express what it recomputes; planned without recompute"
        if kind == "SelectiveAC":
            why = "the number of layers is not known for this model; planned without recompute"
        reader.refuse(RECOMPUTE, kind, why, "use FullAC or None")
        return row, ()
    count = max(1, round(layers / (row.pp * row.vpp) / every))
    note = f"selective recompute: one layer in {every}, as the first {count} of each chunk"
    return replace(row, recompute="block", recompute_layers=count), (note,)


def _schedule(reader: KeyReader, pp: int, layers: int | None) -> tuple[str | None, int, Dealt | None]:
    """The schedule, None for one that plans do not have; chunks of a rank, and how layers are dealt to stages."""
    said = str(reader.get(f"{_P}pipeline_parallel_schedule", "1F1B"))
    ordered = bool(reader.get(f"{_P}pipeline_parallel_schedule_csv"))
    loop = _LOOPS.get(said.lower()) if ordered else None  # the file's order is theirs
    schedule = loop or pytorch_pipeline.schedule_name(said)
    if schedule is None:
        why, fix = "plans do not have it", "use 1F1B, Interleaved1F1B or ZBV"
        reader.refuse(f"{_P}pipeline_parallel_schedule", said, why, fix)
    single = schedule in ("1f1b", "gpipe")
    count, rule = stages.stages_stated(reader, pp, layers, single=single)
    if count % pp or (single and count != pp) or (not single and count < 2 * pp):
        needs = f"{pp}" if single else f"a multiple of {pp}, at least {2 * pp}"
        why, fix = (
            f"{schedule or said} on {pp} ranks needs {needs}",
            "name as many in module_fqns_per_model_part, or none",
        )
        said = stages.PER_STAGE if reader.get(stages.PER_STAGE) is not None else f"{_P}pipeline_parallel_degree"
        reader.refuse(said, reader.get(said), f"it makes {count} stages, and {why}", fix)
        return schedule, 1 if single else 2, None
    return schedule, count // pp, rule


_LOOPS = {
    "pipelineschedulesingle": "1f1b",
    "pipelineschedulemulti": "interleaved",
    "_pipelinescheduleruntime": "interleaved",
}
"""What torchtitan's key may hold beside a file of the schedule: loops over one chunk, or several."""


def _of_file(reader: KeyReader, table: str | None, size: tuple[int, int, int]) -> str | None:
    """The schedule of a file by its order; a problem and the default where it is none that is known."""
    found = None if table is None else pytorch_pipeline.schedule_of_file(table, *size)
    if found is None:
        why = "the file is not there" if table is None else "its order matches no known schedule"
        path = f"{_P}pipeline_parallel_schedule_csv"
        reader.refuse(path, reader.get(path), why, "the steps of the class that is named are taken")
    return found


def _of_tokens(reader: KeyReader, pp: int, dp: int, tokens: int) -> tuple[int | None, int]:
    """Sequences of a micro-batch and of a step, where the file counts tokens."""
    length = _length(reader) or 2048
    steps = reader.degree(f"{_P}num_pp_microbatches") if pp > 1 else 1
    if tokens < 1 or tokens % length:
        reader.refuse(_TOKENS, tokens, f"a plan has whole sequences of {length} tokens", "use a multiple of them")
        return None, 1
    mbs = tokens // length
    total = reader.get(f"{_T}num_tokens_per_train_step", -1)
    gbs = mbs * steps * dp if total in (-1, None) else total // length if isinstance(total, int) else 0
    if gbs < 1 or gbs % (mbs * steps * dp) or (total not in (-1, None) and total % length):
        why = f"must be a multiple of {tokens * steps * dp:,}, the tokens of all data ranks and micro-batches"
        reader.refuse(f"{_T}num_tokens_per_train_step", total, why, "use one")
        return None, 1
    _one_flush(reader, f"{_T}num_tokens_per_train_step", pp, gbs // (mbs * steps * dp))
    return mbs, gbs


def _one_flush(reader: KeyReader, path: str, pp: int, flushes: int) -> None:
    if pp > 1 and flushes > 1:
        why = f"a pipeline runs one local batch at a time, and drains between the {flushes} of a step"
        reader.refuse(path, reader.get(path), why, "let one local batch be the whole step of a data rank")


def _batches(reader: KeyReader, pp: int, dp: int) -> tuple[int | None, int]:
    tokens = reader.get(_TOKENS)
    if isinstance(tokens, int):
        return _of_tokens(reader, pp, dp, tokens)
    local = reader.degree("training.local_batch_size", 8)
    mbs = reader.degree(f"{_P}pipeline_parallel_microbatch_size") if pp > 1 else local
    total = reader.get("training.global_batch_size", -1)
    gbs = local * dp if total in (-1, None) else total
    if not isinstance(gbs, int) or gbs < 1 or gbs % (local * dp) or local % mbs:
        why = f"must be a multiple of local_batch_size {local} x data ranks {dp}"
        reader.refuse("training.global_batch_size", total, why, f"use {math.ceil(dp * local)}")
        return None, 1
    _one_flush(reader, "training.global_batch_size", pp, gbs // (local * dp))
    return mbs, gbs
