"""torchtune: the YAML of a recipe, which names model, adapters, batch and sharding.

Keys are those of recipes/full_finetune_distributed.py, lora_finetune_distributed.py and their single-device kin in
torchtune (2025-09), https://github.com/pytorch/torchtune.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.shell import Launch
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, fsdp, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "torchtune"
_SEVERAL = (
    *("teacher_model", "kd_ratio", "ref_checkpointer", "ref_policy_checkpointer", "reward_checkpointer"),
    *("reward_and_value_model", "ppo_epochs", "reward_functions", "grpo_samples", "num_generations"),
)
"""Keys of recipes that run several models, or sample answers."""
_OF_PAIRS = re.compile(r"dpo|preference|ppo|grpo", re.IGNORECASE)
_ADAMW = re.compile(r"torch\.optim\.AdamW|bitsandbytes\.optim\.(?:Paged)?AdamW(?:32bit)?")
_OPTIMIZERS = (
    (_ADAMW, "adamw"),
    (re.compile(r"bitsandbytes\.optim\.AdamW8bit|torchao\.[\w.]{0,60}AdamW8bit"), "adamw-8bit"),
    (re.compile(r"bitsandbytes\.optim\.PagedAdamW8bit"), "paged-adamw-8bit"),
    (re.compile(r"torch\.optim\.SGD"), "sgd"),
)
_IN_PIECES = ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss")
_PROJECTIONS = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")


def _recognised(name: str, text: str) -> bool:
    return marked((".yaml", ".yml"), ("_component_: torchtune.models",), ("checkpointer:",))(name, text)


def _configs(launch: Launch) -> tuple[str, ...] | None:
    """`tune run RECIPE --config NAME`, where the name is that of a configuration which comes with torchtune."""
    return ("torchtune.yaml",) if launch.program == "tune" else None


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML of a recipe as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML.
    """
    reader = shared.yaml_reader(file_of(files, "torchtune.yaml", _recognised), files, TITLE)
    _refuse(reader)
    component = str(reader.get("model._component_", ""))
    name, lora = _model(reader, component.rpartition(".")[2])
    wide = reader.word("dtype", "bf16") in ("fp32", "float32")
    if reader.word("dtype", "bf16") not in ("bf16", "fp32", "bfloat16", "float32"):
        reader.refuse("dtype", reader.get("dtype"), "recipes train in bf16 or in fp32", "use bf16")
    single = "single_device" in PurePath(reader.file[0]).stem
    row = _row(reader, 1 if single else devices, lora is not None)
    if single and devices not in (None, 1):
        why = f"a recipe for one device, by the name of its file, is not started on {devices}"
        reader.refuse("devices", devices, why, "say --gpus 1xH100, or check the recipe for several devices")
    return shared.launched(
        reader,
        row,
        precision=PRECISIONS["fp32"] if wide else fsdp.ALL_IN_16_BITS,
        model=name,
        optimizer=_optimizer(reader) + (":layerwise=1" if reader.switch("optimizer_in_bwd") else ""),
        seq_len=reader.get("tokenizer.max_seq_len") or reader.get("dataset.max_seq_len"),
        lora=lora,
        notes=("the adapter of lm_head is not priced",) if reader.switch("model.apply_lora_to_output") else (),
        software="pytorch-compiled" if reader.switch("compile") else None,
        loss_tiles=_pieces(reader),
    )


def _pieces(reader: KeyReader) -> int | None:
    """Pieces in which the loss makes the logits; None of a loss that takes them whole.

    Source: torchtune/modules/loss/cross_entropy_loss.py, whose losses have eight unless the file says otherwise.
    """
    loss = str(reader.get("loss._component_", "")).rpartition(".")[2]
    return reader.degree("loss.num_output_chunks", 8) if loss in _IN_PIECES else None


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do, or does not train."""
    if reader.get("optimizer._component_") is None:
        why = "no optimizer is named: the recipe evaluates, generates or converts"
        reader.refuse("optimizer", None, why, "check the recipe that trains")
    fine_tuning.refuse_on(
        reader, _SEVERAL, "more than one model runs, or answers are sampled", "check a recipe of fine-tuning"
    )
    for key in ("loss._component_", "dataset._component_"):
        if _OF_PAIRS.search(str(reader.get(key, ""))):
            reader.refuse(key, reader.get(key), "a step runs more than one pass over pairs", "check a recipe of SFT")
    fine_tuning.refuse_on(
        reader,
        ("quantizer._component_",),
        "weights and inputs are rounded in training, which is not priced",
        "check a recipe without it",
    )
    fine_tuning.refuse_on(
        reader, ("enable_fp8_training",), "which products run in fp8 follows from its recipe", "use False"
    )


def _model(reader: KeyReader, builder: str) -> tuple[str | None, dict[str, Any] | None]:
    """The model's name, and its adapters."""
    match = re.fullmatch(r"(q?lora_)?(\w+?)(_instruct|_base)?", builder)
    assert match is not None or not builder
    name = match[2] if match else ""
    if "vision" in name or "classifier" in name:
        why = "images go through a tower before the text" if "vision" in name else "it has no head of the vocabulary"
        reader.refuse("model._component_", builder, why, "check a recipe of a text model")
    if match is None or not match[1]:
        return name or None, None
    named = reader.get("model.lora_attn_modules") or []
    targets = [_PROJECTIONS[one] for one in named if one in _PROJECTIONS]
    targets += _MLP if reader.switch("model.apply_lora_to_mlp") else ()
    stored = match[1] == "qlora_" or reader.switch("model.quantize_base")
    found = {
        "r": reader.degree("model.lora_rank", 8),
        "targets": targets,
        "dora": reader.switch("model.use_dora"),
        "dropout": reader.get("model.lora_dropout", 0.0),
        "base": "nf4" if stored else None,
    }
    return name, {key: value for key, value in found.items() if value}


def _row(reader: KeyReader, devices: int | None, tuned: bool) -> Any:
    tp, cp = reader.degree("tensor_parallel_dim"), reader.degree("context_parallel_dim")
    replicate = reader.degree("data_parallel_replicate_dim")
    shard = reader.get("data_parallel_shard_dim", -1)
    dp = shared.data_ranks(
        reader,
        devices,
        tp=("tensor_parallel_dim", tp),
        cp=("context_parallel_dim", cp),
        replicate=("data_parallel_replicate_dim", replicate),
    )
    if dp is None:
        return None
    if shard not in (-1, None) and shard * replicate != dp:
        reader.refuse(
            "data_parallel_shard_dim", shard, f"must be {dp // replicate} on {dp * tp * cp} devices", "use -1"
        )
        return None
    _refuse_at_start(reader, tp, tuned)
    mbs, steps = reader.degree("batch_size"), reader.degree("gradient_accumulation_steps")
    again = reader.switch("enable_activation_checkpointing")
    letters = "wog" if reader.switch("fsdp_cpu_offload") else ""
    letters += "a" if reader.switch("enable_activation_offloading") else ""
    rotate = reader.word("context_parallel_rotate_method", "allgather")
    return shared.sharded_row(
        dp,
        mbs=mbs,
        gbs=mbs * steps * dp,
        sharded=True,
        replicate=replicate,
        context=("p2p" if rotate == "alltoall" else "ag", cp),
        reshard=reader.switch("fsdp_reshard_after_forward", default=True),
        tp=tp,
        sp=True,
        recompute="full" if again else "none",
        offload="".join(one for one in "waog" if one in letters),
    )


def _refuse_at_start(reader: KeyReader, tp: int, tuned: bool) -> None:
    """What the recipes themselves stop on, or read past."""
    if tp > 1 and tuned:
        why = "recipes of adapters have no tensor ranks"
        reader.refuse("tensor_parallel_dim", tp, why, "use 1")
    elif tp > 1 and reader.get("tensor_parallel_plan") is None:
        why = "which matrices are cut, and how, is said by tensor_parallel_plan, which is not there"
        reader.refuse("tensor_parallel_dim", tp, why, "name a plan of torchtune.models, or use 1")
    if reader.switch("enable_activation_offloading") and not reader.switch("enable_activation_checkpointing"):
        why = "only inputs of layers that are computed again are offloaded"
        reader.refuse("enable_activation_offloading", True, why, "set enable_activation_checkpointing to True")


def _optimizer(reader: KeyReader) -> str:
    said = str(reader.get("optimizer._component_", "torch.optim.AdamW"))
    for known, ours in _OPTIMIZERS:
        if known.fullmatch(said):
            return ours
    reader.refuse(
        "optimizer._component_", said, "AdamW, its 8-bit forms and SGD can be planned", "use torch.optim.AdamW"
    )
    return "adamw"


def _says(row: PlanRow, text: str) -> dict[str, object]:
    # The last release, 0.6.1, reads past keys of copies and context ranks: they are set where a file has them. It takes
    # no fused optimizer beside tensor ranks.
    letters = row.offload.partition("-")[0]
    rotates = {"context_parallel_rotate_method": "alltoall" if row.cp[0][0] == "p2p" else "allgather"} if row.cp else {}
    newer: dict[str, dict[str, object]] = {
        "context_parallel_dim": {"context_parallel_dim": row.cp_degree, **rotates},
        "data_parallel_replicate_dim": {"data_parallel_replicate_dim": shared.copies(row)},
        "data_parallel_shard_dim": {"data_parallel_shard_dim": -1},
    }
    keys = [name for name in newer if re.search(rf"^{name}:", text, re.MULTILINE)]
    return {
        "tensor_parallel_dim": row.tp,
        **({"optimizer.fused": False} if row.tp > 1 and re.search(r"^\s+fused:", text, re.MULTILINE) else {}),
        **{name: value for key in keys for name, value in newer[key].items()},
        "batch_size": row.mbs,
        "gradient_accumulation_steps": row.micro_batches,
        "enable_activation_checkpointing": row.recompute == "full",
        "enable_activation_offloading": "a" in letters,
        "fsdp_cpu_offload": set("wog") <= set(letters),
        "fsdp_reshard_after_forward": row.sharding != "fsdp-keep",
    }


TARGET = ReadTarget(
    name="torchtune",
    title=TITLE,
    version="0.7 (2025-09)",
    like="accelerate",
    says=_says,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_equals(launch.words),
    configs=_configs,
    option=lambda name, value: (f"{name}={value}",),
    software="pytorch-eager",
)
