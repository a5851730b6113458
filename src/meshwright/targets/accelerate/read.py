"""A YAML configuration of Accelerate as a plan, with the trainer's arguments beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import adapters, fsdp, hugging_face, zero_offload
from meshwright.targets.accelerate import CONFIG, CONTEXT, MARKS, SIZES, TITLE
from meshwright.targets.accelerate.around import REPLICATES
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.key_texts import Keys, table_of
from meshwright.targets.keys import KeyFile, KeyReader

_EARLIER = {"fsdp_backward_prefetch_policy": "fsdp_backward_prefetch"}


def _todays_names(keys: Keys) -> Keys:
    """Keys with the names of today where a file has earlier ones, which Accelerate still takes."""
    # YAML takes a bare NO for false, and so does Accelerate.
    keys = {**keys, **{name: "NO" for name in ("distributed_type", "mixed_precision") if keys.get(name) is False}}
    shards = keys.get("fsdp_config")
    if not isinstance(shards, dict):
        return keys
    return {**keys, "fsdp_config": {_EARLIER.get(name, name): value for name, value in shards.items()}}


FILE = KeyFile(
    title=TITLE,
    name=CONFIG,
    also=(".json",),
    plain=_todays_names,
    package=__package__,
    marks=MARKS,
)


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML configuration as a plan, with the trainer's arguments beside it.

    Args:
        files: the configuration, and `training_args.json` where it is there.
        devices: the number of devices of the job; by default `num_processes`.

    Raises:
        InputError: the text is no YAML.
    """
    reader = FILE.read(files)
    trainer = hugging_face.read_arguments(files, reader, devices)
    trainer = replace(trainer, compiled=trainer.compiled or _compiled(reader))
    world = devices or reader.degree("num_processes")
    kind = reader.word("distributed_type", "no")
    engine = kind == "deepspeed" and reader.get("deepspeed_config.deepspeed_config_file") is None
    if kind == "deepspeed" and not engine:
        return _by_deepspeed(reader, files, trainer, devices)
    own = _own_division(reader, files)
    sharded = kind == "fsdp" or (own is not None and own.degree("fsdp_size") > 1)
    tp = reader.degree(f"{SIZES}tp_size") if own is None else own.degree("tp_size")
    cp = reader.degree(f"{SIZES}cp_size")
    if kind not in ("fsdp", "no") and kind.upper() not in REPLICATES and not engine:
        fix = "check the JSON of DeepSpeed" if kind == "deepspeed" else "give the file of that engine"
        reader.refuse("distributed_type", kind.upper(), "FSDP, MULTI_GPU and DEEPSPEED can be planned", fix)
        return reader.launch(None, notes=trainer.notes)
    reader.multiple = tp * cp
    if world % reader.multiple:
        reader.refuse("num_processes", world, f"must be a multiple of tp {tp} x cp {cp}")
        return reader.launch(None, notes=trainer.notes)
    dp = world // (tp * cp)
    held = (
        _engine(reader)
        if engine
        else _divided_shards(own, dp)
        if own is not None
        else _shards(reader, dp, cp)
        if sharded
        else fsdp.sharding(False, dp=dp, replicate=dp)
    )
    steps = trainer.steps or 1
    said = reader.get("deepspeed_config.gradient_accumulation_steps", "auto")
    if engine and said != "auto":
        steps = reader.degree("deepspeed_config.gradient_accumulation_steps")
    strategy = reader.word(f"{SIZES}cp_comm_strategy", "allgather")
    kinds = {said: ours for ours, said in CONTEXT.items()}
    row = PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=((kinds.get(strategy, "ag"), cp),) if cp > 1 else (),
        dp=dp,
        **held,
        mbs=trainer.mbs or 1,
        gbs=(trainer.mbs or 1) * steps * dp,
        recompute="full" if reader.switch("fsdp_config.fsdp_activation_checkpointing") else trainer.recompute,
    )
    dtype = trainer.dtype or reader.word("mixed_precision", "no")
    workload: dict[str, Any] = {
        "precision": PRECISIONS.get(dtype, PRECISIONS["fp32"]),
        "optimizer": trainer.optimizer,
        "seq_len": trainer.seq_len,
        "attention_kernel": trainer.attention,
        **hugging_face.software_of(reader, trainer, deferrable=sharded and steps > 1),
        **adapters.read_adapters(files, reader),
    }
    if trainer.loaded in ("bfloat16", "bf16") and row.sharding == "z0" and dtype in ("bf16", "no"):
        # Copies are in the format they are loaded in; FSDP and DeepSpeed keep others in fp32.
        workload["precision"] = fsdp.ALL_IN_16_BITS
    if not trainer.given:
        why = "the configuration of Accelerate does not say it, and training_args.json is not beside it"
        fix = "give --set per_device_train_batch_size=N, or check the script that starts the trainer"
        what = "per_device_train_batch_size is not known"
        question = Problem(what=what, why=why, fix=fix, field="per_device_train_batch_size")
        return reader.launch(None, questions=(question,), started=_started(reader))
    workload["global_batch"] = row.gbs
    started = reader.get("num_processes")
    notes = trainer.notes + (
        (f"the file starts {started} processes, the plan is read for {world} devices",)
        if started not in (None, world)
        else ()
    )
    if steps != trainer.steps != 1:
        notes = (
            *notes,
            f"DeepSpeed sums {steps} micro-batches as Accelerate's file says; the program says {trainer.steps}",
        )
    if not trainer.dtype and reader.get("mixed_precision") is None:
        notes = (*notes, "no number format is said: mixed_precision no, the default of Accelerate, is assumed")
    if sharded and own is None and dtype == "bf16" and world > 1:
        notes = (
            *notes,
            "FSDP sums gradients in bf16 with mixed_precision bf16; --reduce-dtype bf16 prices that, not fp32",
        )
    if kind == "fsdp" and reader.get(_VERSION, 1) == 1:
        notes = (*notes, "FSDP1 is priced as FSDP2, which shards alike")
    return reader.launch(row, workload=workload, notes=notes, started=_started(reader))


def _started(reader: KeyReader) -> int | None:
    """Processes that the file says it starts."""
    count = reader.get("num_processes")
    return count if type(count) is int and count > 0 else None


def _own_division(reader: KeyReader, files: Files) -> KeyReader | None:
    """How the transformers library divides the model, where a file beside the configuration says that it does."""
    text = text_beside(files, hugging_face.DISTRIBUTED)
    if text is None:
        return None
    keys = table_of(text, "JSON", "division of the model")
    own = KeyReader(keys=keys, problems=reader.problems, file=(hugging_face.DISTRIBUTED, text))
    reader.beside.append(own)
    own.switch("fsdp_mixed_precision")
    return own


def _divided_shards(own: KeyReader, dp: int) -> dict[str, Any]:
    """Fields of a row that say what the transformers library shards."""
    shard, replicate = own.degree("fsdp_size"), own.degree("dp_replicate_size")
    if shard * replicate != dp:
        why = f"must make {dp} data ranks with dp_replicate_size {replicate}"
        own.refuse("fsdp_size", shard, why, f"use {max(1, dp // replicate)}")
        replicate = 1
    offload = "wog" if own.switch("fsdp_cpu_offload") else ""
    return {"offload": offload, **fsdp.sharding(shard > 1, dp=dp, replicate=replicate)}


_JSON = "deepspeed_config_file:"


def files_named(text: str) -> tuple[str, ...]:
    """The file of DeepSpeed that a configuration names."""
    lines = [line.strip() for line in text.splitlines()]
    return tuple(line.partition(":")[2].partition(" #")[0].strip(" \"'") for line in lines if line.startswith(_JSON))


def _by_deepspeed(reader: KeyReader, files: Files, trainer: hugging_face.Arguments, devices: int | None) -> LaunchFile:
    """A configuration that leaves its engine to the file of DeepSpeed that it names."""
    name = str(reader.get("deepspeed_config.deepspeed_config_file"))
    text = text_beside(files, PurePath(name).name)
    if text is None:
        why = "it says what is sharded and offloaded, and is not next to the file that names it"
        fix = f"put it at {name[:80]} from there, or check it with --from deepspeed"
        question = Problem(what=f"{name[:80]} is not here", why=why, fix=fix, field="deepspeed_config")
        return reader.launch(None, questions=(question,))
    keys = table_of(text, "JSON", "configuration of DeepSpeed")
    own = KeyReader(keys=keys, problems=reader.problems, file=(PurePath(name).name, text))
    reader.beside.append(own)
    started = reader.degree("num_processes") if reader.get("num_processes") else None
    mixed = reader.word("mixed_precision", "no")
    if not trainer.dtype and mixed in ("bf16", "fp16"):  # Accelerate's own stands where the file says "auto"
        trainer = replace(trainer, dtype=mixed)
    from meshwright.targets.deepspeed.read import launch_of  # few of its files name one of DeepSpeed

    read = launch_of(own, trainer, devices or started)
    return replace(read, said=reader.said(), unpriced=reader.unpriced())


def _compiled(reader: KeyReader) -> bool:
    """Whether PyTorch's compiler makes the kernels: `inductor` does, other backends are for debugging."""
    for key in ("dynamo_config.dynamo_backend", "dynamo_backend"):
        backend = reader.word(key, "no")
        if backend == "inductor":
            return True
        if backend not in ("no", "eager", "aot_eager"):
            reader.refuse(key, backend.upper(), "kernels of eager layers and of inductor are priced", "use INDUCTOR")
    return False


_VERSION = "fsdp_config.fsdp_version"


def _shards(reader: KeyReader, dp: int, cp: int) -> dict[str, Any]:
    """Fields of a row that say what FSDP shards."""
    offload = {"offload": "wog" if reader.switch("fsdp_config.fsdp_offload_params") else ""}
    if reader.number(_VERSION, 1) == 1:
        names = ("fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward")
        key = next(
            (name for name in names if isinstance(reader.get(name), (int, str)) and reader.get(name) is not True), ""
        )
        said = str(reader.get(key) if key else 1).upper()
        name = fsdp.STRATEGIES[int(said) - 1] if said in tuple("12345") else said
        return offload | fsdp.of_strategy(reader, key, name, dp, nodes="num_machines")
    replicate = reader.degree(f"{SIZES}dp_replicate_size")
    shard = reader.degree(f"{SIZES}dp_shard_size") if reader.get(f"{SIZES}dp_shard_size") is not None else None
    if dp % replicate or (shard is not None and shard * replicate != dp):
        why = f"must make {dp} data ranks with dp_replicate_size {replicate}"
        reader.refuse(f"{SIZES}dp_shard_size", shard, why, f"use {max(1, dp // replicate)}")
        replicate = 1
    reshard = reader.switch("fsdp_config.fsdp_reshard_after_forward", default=True)
    return offload | fsdp.sharding(True, dp=dp, replicate=replicate, cp=cp, reshard=reshard)


def _engine(reader: KeyReader) -> dict[str, Any]:
    """Fields of a row that say what DeepSpeed shards and offloads, as Accelerate's own keys have it."""
    zero = reader.number("deepspeed_config.zero_stage", 2)
    if zero > 3:
        reader.refuse("deepspeed_config.zero_stage", zero, "must be 0, 1, 2 or 3", "use 3")
    optimizer, weights = (
        reader.word(f"deepspeed_config.offload_{name}_device", "none") for name in ("optimizer", "param")
    )
    return {
        "sharding": f"z{min(zero, 3)}",
        "offload": zero_offload.words(optimizer=optimizer, weights=weights, zero=zero),
        "dp_overlap": zero == 3,
    }
