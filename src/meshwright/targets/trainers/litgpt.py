"""LitGPT: the YAML of a fine-tuning or a pretraining, whose programs choose sharding and recompute themselves.

Keys are those of litgpt/args.py, finetune/full.py, finetune/lora.py and pretrain.py of litgpt (2026), whose programs
shard over all devices wherever there are two or more, https://github.com/Lightning-AI/litgpt. A pretraining shards over
the devices of a node and copies between nodes (HYBRID_SHARD). Adapters are sharded by FSDP2, where mixed precision is
that of products alone.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import fine_tuning, fsdp, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "LitGPT"
_recognised = marked_lines(
    r"^train:",
    r"^[ \t]+micro_batch_size:",
    r"^[ \t]+(?:lr_warmup_steps|lr_warmup_fraction|max_norm|min_lr):",
    r"^(?:checkpoint_dir|model_name|logger_name|initial_checkpoint_dir):",
)
_PARTS = {
    "lora_query": "q_proj",
    "lora_key": "k_proj",
    "lora_value": "v_proj",
    "lora_projection": "o_proj",
}
_BATCHES = {True: (512, 4), False: (16, 1)}
"""Sequences of a step and of a micro-batch where a file leaves them out: of a pretraining, and of the others."""
_DEFAULTS = {"lora_query": True, "lora_value": True}
_MLP = ("gate_proj", "up_proj", "down_proj")
_OPTIMIZERS = {
    "adamw": "adamw",
    "torch.optim.adamw": "adamw",
    "bitsandbytes.optim.pagedadamw": "adamw",
    "bitsandbytes.optim.adamw8bit": "adamw-8bit",
    "bitsandbytes.optim.pagedadamw8bit": "paged-adamw-8bit",
    "sgd": "sgd",
}


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job, where the file does not say how many.

    Raises:
        InputError: the text is no YAML.
    """
    reader = shared.yaml_reader(file_of(files, "litgpt.yaml", _recognised), files, TITLE)
    trained, lora = reader.get("model_name"), _lora(reader)
    pretrains = trained is not None and reader.get("checkpoint_dir") is None
    world, nodes = _world(reader, devices, pretrains), reader.degree("num_nodes")
    precision, wide = _precision(reader, lora)
    stored = reader.word("quantize")
    if stored and lora is None:
        reader.refuse("quantize", stored, "all weights are trained", "leave it out")
    if stored and world > 1:
        reader.refuse(
            "quantize", stored, "its programs store frozen weights in 4 bits on one device only", "leave it out"
        )
    usual = _BATCHES[pretrains]
    mbs = reader.degree("train.micro_batch_size", usual[1])
    batch = reader.degree("train.global_batch_size", usual[0])
    steps = batch // world // mbs
    if steps < 1:
        why = f"must hold a micro-batch of {mbs} on each of {world} devices"
        reader.refuse("train.global_batch_size", batch, why, f"use {mbs * world}")
    gbs = max(1, steps) * mbs * world
    notes = () if gbs == batch or steps < 1 else (f"a step has {gbs} sequences: what is left of {batch} is dropped",)
    if lora is not None and reader.switch("lora_head"):
        notes = (*notes, "the adapter of lm_head is not priced")
    if world > 1 and steps > 1:
        why = f"{2 if not wide else 4} bytes per trained parameter"
        notes = (*notes, f"gradients stay whole on every device between the {steps} micro-batches of a step: {why}")
    copies = nodes if pretrains and nodes < world else 1
    if copies > 1:
        notes = (*notes, f"shards are those of a node, which is taken to have {world // nodes} devices (HYBRID_SHARD)")
    row = shared.sharded_row(
        world,
        mbs=mbs,
        gbs=gbs,
        sharded=world > 1,
        replicate=copies,
        recompute="full" if world > 1 and not pretrains else "none",
    )
    model = str(trained or PurePath(str(reader.get("checkpoint_dir") or "")).name)
    return shared.launched(
        reader,
        row,
        started=world if isinstance(reader.get("devices"), int) else None,
        precision=precision if not wide else PRECISIONS["fp32"],
        model=model or None,
        optimizer=_optimizer(reader),
        seq_len=reader.get("train.max_seq_length"),
        lora=lora,
        software="pytorch-compiled-no-sync" if pretrains else None,
        notes=notes,
    )


def _world(reader: KeyReader, devices: int | None, pretrains: bool) -> int:
    """Devices of the job: those that the file says, else those of the cluster."""
    said, nodes = reader.get("devices", "auto" if pretrains else 1), reader.degree("num_nodes")
    if said in ("auto", -1):
        return devices or 1
    world = reader.degree("devices") * nodes
    if devices is not None and devices != world:
        why = f"the cluster has {devices} devices, and the program starts on {world}"
        reader.refuse("devices", said, why, f"say --set devices={devices // nodes}, or --gpus for {world}")
    return world


def _precision(reader: KeyReader, lora: dict[str, Any] | None) -> tuple[Precision, bool]:
    """Formats of the training, and whether all is in fp32; frozen weights in fp32 are said of the adapters."""
    name = reader.word("precision", "bf16-mixed")
    reduced = "bf16" if lora is None else "fp32"  # FSDP2 is given no policy: what is kept is sent
    known = {
        "bf16-true": fsdp.ALL_IN_16_BITS,
        "bf16-mixed": stated(PRECISIONS["bf16"], {"grad_dtype": "fp32", "reduce_dtype": reduced}),
        "32-true": PRECISIONS["fp32"],
        "32": PRECISIONS["fp32"],
    }
    if name not in known:
        reader.refuse("precision", name, f"{', '.join(known)} can be planned", "use bf16-true")
    if lora is not None and name == "bf16-mixed":
        if lora.get("base"):
            reader.refuse("quantize", lora["base"], "its program takes no mixed precision beside it", "use bf16-true")
        lora.setdefault("base", "fp32")
    return known.get(name, fsdp.ALL_IN_16_BITS), name in ("32-true", "32")


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    if reader.get("lora_r") is None:
        fine_tuning.refuse_on(
            reader,
            ("adapter_prompt_length", "adapter_start_layer"),
            "adapters of other kinds are not priced",
            "use LoRA",
        )
        return None
    targets = [ours for key, ours in _PARTS.items() if reader.switch(key, _DEFAULTS.get(key, False))]
    mlp = reader.switch("lora_mlp")
    # All of them are all products, whatever the model calls those of its MLP.
    targets = [ALL_LINEAR] if mlp and len(targets) == len(_PARTS) else [*targets, *(_MLP if mlp else ())]
    if not targets:
        reader.refuse("lora_query", False, "no product has an adapter", "use true")
        targets = ["q_proj"]
    stored = reader.word("quantize")
    bases = {"bnb.nf4": "nf4-single", "bnb.nf4-dq": "nf4", "bnb.fp4": "fp4-single", "bnb.fp4-dq": "fp4"}
    if stored and stored not in bases:
        reader.refuse("quantize", stored, f"{', '.join(bases)} can be planned", "use bnb.nf4")
    found = {
        "r": reader.degree("lora_r", 8),
        "targets": targets,
        "dropout": reader.get("lora_dropout", 0.0),
        "base": bases.get(stored),
    }
    return {name: value for name, value in found.items() if value}


def _optimizer(reader: KeyReader) -> str:
    said = reader.get("optimizer", "AdamW")
    path = "optimizer.class_path" if isinstance(said, dict) else "optimizer"
    name = reader.word(path, "AdamW")
    if name not in _OPTIMIZERS:
        reader.refuse(path, name, f"{', '.join(_OPTIMIZERS)} can be planned", "use AdamW")
    return _OPTIMIZERS.get(name, "adamw")


def _says(row: PlanRow, text: str) -> dict[str, object]:
    return {"train.micro_batch_size": row.mbs, "train.global_batch_size": row.gbs}


TARGET = ReadTarget(
    name="litgpt",
    title=TITLE,
    version="0.5 (2026)",
    like="accelerate",
    says=_says,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="pytorch-eager-no-sync",
)
