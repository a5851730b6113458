"""OLMo: the YAML that its `scripts/train.py` is started with, by FSDP1 or DDP of PyTorch.

Keys are those of olmo/config.py, and their meaning that of olmo/model.py, olmo/train.py and scripts/train.py of OLMo
0.6 (2025), https://github.com/allenai/OLMo. Gradients are reduced after each micro-batch under FSDP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, fsdp, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "OLMo"
_recognised = marked_lines(
    r"^model:",
    r"^[ \t]+d_model:",
    r"^[ \t]+(?:block_type|layer_norm_type|mlp_hidden_size|mlp_ratio|activation_type|init_fn):",
    r"^(?:global_train_batch_size|device_train_microbatch_size|max_duration):",
)
_BATCH, _MICRO = "global_train_batch_size", "device_train_microbatch_size"
_OPTIMIZERS = {"adamw": "adamw", "lionw": "lion"}
_WRAPPED = ("by_block", "by_block_and_size")
_AGAIN = {
    "none": (0, 1),
    "false": (0, 1),
    "true": (1, 1),
    "whole_layer": (1, 1),
    "one_in_two": (1, 2),
    "one_in_three": (1, 3),
    "one_in_four": (1, 4),
    "one_in_eight": (1, 8),
    "two_in_three": (2, 3),
    "three_in_four": (3, 4),
}
"""Share of the layers that are recomputed."""


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML, or the model's sizes contradict each other.
    """
    reader = shared.yaml_reader(file_of(files, "olmo.yaml", _recognised), files, TITLE)
    config = _model(reader)
    row = _row(reader, devices or 1)
    optimizer = reader.word("optimizer.name", "lionw")
    if optimizer not in _OPTIMIZERS:
        reader.refuse("optimizer.name", optimizer, f"{', '.join(_OPTIMIZERS)} can be planned", "use adamw")
    return shared.launched(
        reader,
        row,
        precision=_precision(reader),
        config=config,
        optimizer=_OPTIMIZERS.get(optimizer, "adamw"),
        seq_len=reader.degree("model.max_sequence_length", 1024),
        software="pytorch-compiled" if reader.get("compile") else None,
    )


def _row(reader: KeyReader, world: int) -> PlanRow:
    batch = reader.degree(_BATCH, 512)
    each = max(1, batch // world)
    mbs = min(reader.degree(_MICRO, 16), each)
    gbs = shared.steps_of(reader, _BATCH, batch, mbs, world)
    strategy = reader.word("distributed_strategy", "fsdp")
    if strategy not in ("fsdp", "ddp", "single"):
        reader.refuse("distributed_strategy", strategy, "must be fsdp, ddp or single", "use fsdp")
    held = _shards(reader, world) if strategy == "fsdp" and world > 1 else {"sharding": "z0"}
    return PlanRow(dp=world, mbs=mbs, gbs=gbs, **held, **_recompute(reader))


def _shards(reader: KeyReader, world: int) -> dict[str, Any]:
    """What FSDP shards: where blocks are not wrapped each, all of the model is gathered at once."""
    key = "fsdp.wrapping_strategy"
    wrapped, named = reader.word(key, "none"), reader.word("fsdp.sharding_strategy", "full_shard")
    if wrapped not in _WRAPPED and named != "no_shard":
        reader.refuse(key, wrapped, "weights of several blocks are gathered at once", "use by_block")
    nodes = "fsdp.hybrid_sharding_num_model_replicas"
    return fsdp.of_strategy(reader, "fsdp.sharding_strategy", named.upper().removeprefix("_"), world, nodes=nodes)


def _recompute(reader: KeyReader) -> dict[str, Any]:
    said = reader.word("activation_checkpointing", "none")
    if said not in _AGAIN:
        why = f"{', '.join(_AGAIN)} can be planned"
        reader.refuse("activation_checkpointing", said, why, "use whole_layer")
        return {}
    some, of = _AGAIN[said]
    if some == of:
        return {"recompute": "full"}
    layers = -(-reader.degree("model.n_layers", 12) * some // of)
    return {"recompute": "block", "recompute_layers": layers} if some else {}


def _precision(reader: KeyReader) -> Precision:
    """Formats: FSDP shards fp32 weights, computes in 16 bits and reduces in those or in fp32."""
    name, own = reader.word("precision", "fp32"), reader.word("fsdp.precision", "pure")
    if name not in ("amp_bf16", "amp_fp16", "fp32"):
        reader.refuse("precision", name, "must be amp_bf16, amp_fp16 or fp32", "use amp_bf16")
    if name == "fp32":
        return PRECISIONS["fp32"]
    if name == "amp_fp16":
        return PRECISIONS["fp16"]
    pure = own == "pure" and reader.word("distributed_strategy", "fsdp") == "fsdp"
    return stated(PRECISIONS["bf16"], {"grad_dtype": "fp32", "reduce_dtype": "bf16" if pure else "fp32"})


_DROPS = "a tenth of its values is dropped unless it says otherwise, and that is not read"
_DROPPED = ("attention_dropout", "residual_dropout", "embedding_dropout")


def _model(reader: KeyReader) -> Mapping[str, Any] | None:
    """The model in the words of the transformers library; None of blocks that none of its families has."""
    hidden, heads = reader.degree("model.d_model", 768), reader.degree("model.n_heads", 12)
    fine_tuning.refuse_on(reader, ("model.alibi", "model.embedding_layer_norm"), "it is not read", "use false")
    plain = (
        ("model.rope", reader.switch("model.rope"), "positions that are learned are not read", "use true"),
        ("model.activation_type", reader.word("model.activation_type", "swiglu") == "swiglu", "MLPs are not gated", ""),
        (
            "model.block_type",
            reader.word("model.block_type", "sequential") in ("sequential", "llama"),
            "blocks one behind the other are read",
            "use sequential",
        ),
        *((f"model.{name}", not reader.get(f"model.{name}", 0.1), _DROPS, "write 0.0") for name in _DROPPED),
    )
    for path, right, why, fix in plain:
        if not right:
            reader.refuse(path, reader.get(path), why, fix)
    norm = reader.word("model.layer_norm_type", "default")
    keyed = reader.switch("model.attention_layer_norm")
    family = "olmo2" if norm == "rms" and keyed else "llama" if norm == "rms" else "olmo"
    if family == "olmo" and (keyed or reader.switch("model.layer_norm_with_affine", default=True)):
        why = "LayerNorm without weights, or RMSNorm, is read"
        reader.refuse("model.layer_norm_with_affine", True, why, "use false")
    biased = reader.switch("model.include_bias", default=True)
    wide = reader.get("model.mlp_hidden_size") is not None
    # The width is that of both halves of the gate.
    width = reader.degree("model.mlp_hidden_size") if wide else reader.degree("model.mlp_ratio", 4) * hidden
    alone = 1 if reader.switch("model.multi_query_attention") else heads
    embedded = reader.get("model.embedding_size", 50304)
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": reader.degree("model.n_layers", 12),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.degree("model.n_kv_heads", alone),
        "intermediate_size": max(1, width // 2),
        "vocab_size": embedded if isinstance(embedded, int) else reader.degree("model.vocab_size", 50257),
        "max_position_embeddings": reader.degree("model.max_sequence_length", 1024),
        "tie_word_embeddings": reader.switch("model.weight_tying", default=True),
        "rope_theta": reader.degree("model.rope_theta", 10_000),
        "attention_bias": biased,
        **({"mlp_bias": biased} if family == "llama" else {}),
    }


def _says(row: PlanRow, text: str) -> dict[str, object]:
    sharded = {"fsdp": "FULL_SHARD", "fsdp-keep": "SHARD_GRAD_OP", "hsdp": "HYBRID_SHARD"}.get(row.sharding, "NO_SHARD")
    copies = {"fsdp.hybrid_sharding_num_model_replicas": shared.copies(row)} if row.sharding == "hsdp" else {}
    return {
        _BATCH: row.gbs,
        _MICRO: row.mbs,
        "fsdp.sharding_strategy": sharded,
        **copies,
        "activation_checkpointing": "whole_layer" if row.recompute == "full" else None,
    }


TARGET = ReadTarget(
    name="olmo",
    title=TITLE,
    version="0.6 (2025)",
    like="accelerate",
    says=_says,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="pytorch-eager",
)
