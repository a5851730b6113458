"""LLM Foundry of MosaicML: the YAML that `composer train.py` is started with.

Keys are those of llmfoundry/command_utils/train.py and models/mpt/configuration_mpt.py of llm-foundry 0.22 (2025),
https://github.com/mosaicml/llm-foundry; sharding is that of composer's FSDP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines
from meshwright.targets.keys import KeyReader, value_of
from meshwright.targets.trainers import shared

TITLE = "LLM Foundry"
_marked = marked_lines(
    r"^[ \t]*global_train_batch_size:",
    r"^[ \t]*(?:train_loader|max_duration|device_eval_batch_size):",
    r"^[ \t]*model:",
)
_OF_OLMO = re.compile(r"^[ \t]+(?:block_type|layer_norm_type|mlp_hidden_size|mlp_ratio)[ \t]*:", re.MULTILINE)
"""Keys of the models of OLMo's trainer, whose batch has the same names."""


def _recognised(name: str, text: str) -> bool:
    return _marked(name, text) and _OF_OLMO.search(text) is None


_OPTIMIZERS = {"decoupled_adamw": "adamw", "adamw": "adamw", "decoupled_lionw": "lion"}
_MICRO = "device_train_microbatch_size"


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML, or the model's sizes contradict each other.
    """
    reader = _reader(files)
    started = reader.get("compute.gpus")
    devices = devices or (started if isinstance(started, int) else None)
    name, config = _model(reader)
    lora = _lora(reader)
    dp = devices or 1
    batch = reader.degree("global_train_batch_size")
    said = reader.get(_MICRO, "auto")
    questions: tuple[Problem, ...] = ()
    if said == "auto":
        why = "the program finds it out on the device it runs on"
        fix = f"give --set {_MICRO}=N, as the log of a run has it"
        questions = (Problem(what=f"{_MICRO} is 'auto'", why=why, fix=fix, field=_MICRO),)
        said = 1
    if batch % dp:
        reader.refuse("global_train_batch_size", batch, f"must be a multiple of {dp} devices")
    mbs = min(said, max(1, batch // dp)) if isinstance(said, int) else reader.degree(_MICRO)
    row = _row(reader, dp, mbs, shared.steps_of(reader, "global_train_batch_size", batch, mbs, dp))
    optimizer = reader.word("optimizer.name", "decoupled_adamw")
    if optimizer not in _OPTIMIZERS:
        reader.refuse("optimizer.name", optimizer, f"{', '.join(_OPTIMIZERS)} can be planned", "use decoupled_adamw")
    kernels = [reader.word(path, "flash") for path in ("model.attn_config.attn_impl", "model.attn_impl")]
    torch = "torch" in kernels and config is not None
    return shared.launched(
        reader,
        row,
        precision=_precision(reader),
        model=name,
        config=config,
        optimizer=_OPTIMIZERS.get(optimizer, "adamw"),
        seq_len=reader.get("max_seq_len") or reader.get("train_loader.dataset.max_seq_len"),
        lora=lora,
        attention_kernel="materialised" if torch else None,
        questions=questions,
        started=started if isinstance(started, int) else None,
    )


def _reader(files: Files) -> KeyReader:
    """Keys of the file; those of a job submitted to MosaicML's platform stand under `parameters`."""
    reader = shared.yaml_reader(file_of(files, "foundry.yaml", _recognised), files, TITLE)
    inner = reader.keys.get("parameters")
    if not isinstance(inner, Mapping) or "model" in reader.keys:
        return reader
    said = {path: value_of(reader.keys, path) for path in reader.over if not path.startswith("parameters.")}
    keys, _ = overrides.with_paths({**inner, "compute": reader.keys.get("compute")}, said)
    keys = shared.filled(keys)
    return KeyReader(keys=keys, file=reader.file, over=reader.over)


def _row(reader: KeyReader, dp: int, mbs: int, gbs: int) -> Any:
    fsdp = "fsdp_config." if reader.get("fsdp_config") is not None else "parallelism_config.fsdp."
    given = reader.get(fsdp[:-1]) is not None
    tensors = reader.get("tp_config") or reader.get("parallelism_config.tp")
    if tensors:
        reader.refuse("tp_config", "given", "which products it cuts is said by a strategy of its own", "leave it out")
    strategy = reader.word(f"{fsdp}sharding_strategy", "full_shard").upper()
    if strategy not in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        why = "which ranks hold one copy is not in the file"
        reader.refuse(f"{fsdp}sharding_strategy", strategy, why, "use FULL_SHARD")
    if reader.switch(f"{fsdp}activation_cpu_offload"):
        why = "inputs of layers go to the host, which rows do not say beside recompute"
        reader.refuse(f"{fsdp}activation_cpu_offload", True, why, "use false")
    return shared.sharded_row(
        dp,
        mbs=mbs,
        gbs=gbs,
        sharded=given and strategy != "NO_SHARD",
        reshard=strategy != "SHARD_GRAD_OP",
        recompute="full" if reader.switch(f"{fsdp}activation_checkpointing") else "none",
    )


def _precision(reader: KeyReader) -> Precision:
    name = reader.word("precision", "amp_bf16")
    if name not in ("amp_bf16", "fp32"):
        reader.refuse("precision", name, "amp_bf16 and fp32 can be planned", "use amp_bf16")
    if name == "fp32":
        return PRECISIONS["fp32"]
    mixed = reader.get("fsdp_config.mixed_precision", reader.get("parallelism_config.fsdp.mixed_precision", "DEFAULT"))
    if str(mixed).upper() not in ("PURE", "DEFAULT"):
        reader.refuse("fsdp_config.mixed_precision", mixed, "PURE and DEFAULT can be planned", "use PURE")
    # Gradients cross the network in the format of the weights (PURE), or in fp32 (DEFAULT).
    pure = str(mixed).upper() == "PURE"
    return stated(PRECISIONS["bf16"], {"grad_dtype": "fp32", "reduce_dtype": "bf16" if pure else "fp32"})


def _sheared(reader: KeyReader) -> Mapping[str, Any] | None:
    """A Llama in the keys of LLM-Shearing, a fork of it.

    Source: llmshearing/models/composer_llama.py (2023), https://github.com/princeton-nlp/LLM-Shearing.
    """
    if reader.get("model.l0_module") is not None:
        why = "masks are trained beside the model, and its sizes shrink to those of a target"
        reader.refuse("model.l0_module", "given", why, "check a file of continued pretraining")
        return None
    heads = reader.degree("model.n_heads")
    return {
        "model_type": "llama",
        "hidden_size": reader.degree("model.d_model"),
        "num_hidden_layers": reader.degree("model.n_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": reader.degree("model.intermediate_size"),
        "vocab_size": reader.degree("model.vocab_size", 32000),
        "max_position_embeddings": reader.degree("model.max_seq_len", 4096),
        "tie_word_embeddings": False,
    }


_LENGTHS = {"max_seq_len", "max_position_embeddings", "attn_config", "attn_implementation", "use_cache"}
"""Overrides that leave the sizes of a model with rotary positions as they are."""


def _model(reader: KeyReader) -> tuple[str | None, Mapping[str, Any] | None]:
    """The model's name, or its configuration."""
    kind = reader.word("model.name")
    if kind in ("hf_causal_lm", "hf_prefix_lm"):
        if reader.get("model.pretrained_model_name_or_path") is None:
            reader.refuse("model.pretrained_model_name_or_path", None, "the model is named there")
        changed = set(reader.get("model.config_overrides") or ()) - _LENGTHS
        if changed:
            why = "the model has other sizes than the one that is named"
            reader.refuse("model.config_overrides", ", ".join(sorted(changed)), why, "name the model: check MODEL FILE")
            return None, None
        return str(reader.get("model.pretrained_model_name_or_path") or "") or None, None
    if kind.startswith("mosaic_llama"):
        return None, _sheared(reader)
    if kind != "mpt_causal_lm":
        reader.refuse("model.name", kind, "mpt_causal_lm and hf_causal_lm are read", "name a decoder")
        return None, None
    if reader.get("model.ffn_config.ffn_type", "mptmlp") != "mptmlp":
        why = "gated products, and experts of MegaBlocks, are not read"
        reader.refuse("model.ffn_config.ffn_type", reader.get("model.ffn_config.ffn_type"), why, "use mptmlp")
    if reader.get("model.block_overrides") is not None:
        reader.refuse("model.block_overrides", "given", "its layers differ as a table says", "leave it out")
    kind = reader.word("model.attn_config.attn_type", "multihead_attention")
    if kind not in ("multihead_attention", "multiquery_attention", "grouped_query_attention"):
        reader.refuse("model.attn_config.attn_type", kind, "it is not read", "use grouped_query_attention")
    heads = reader.degree("model.n_heads", 16)
    grouped = reader.get("model.attn_config.kv_n_heads", 1 if kind == "multiquery_attention" else heads)
    if grouped != heads:
        reader.refuse("model.attn_config.kv_n_heads", grouped, "MPT is read with as many heads of keys", "leave it out")
    return None, _mpt(reader, heads)


def _mpt(reader: KeyReader, heads: int) -> Mapping[str, Any]:
    """MPT as the family of the transformers library that has its biases and positions, whose MPT has none of either.

    Sources: MPTConfig (positions are learned without alibi and rope) and resolve_ffn_hidden_size of llm-foundry 0.22.
    """
    attention = "model.attn_config."
    placed = reader.switch(f"{attention}alibi"), reader.switch(f"{attention}rope")
    learned = reader.switch("model.learned_pos_emb", default=True) and not any(placed)
    biased = not reader.switch("model.no_bias")
    hidden, ratio = reader.degree("model.d_model", 2048), reader.get("model.expansion_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not (ratio > 0 and ratio * hidden % 1 == 0):
        reader.refuse("model.expansion_ratio", ratio, f"times d_model {hidden} it must be a whole size", "use 4")
        ratio = 4
    if learned and not biased:
        why = "learned positions without biases are in no family that is read"
        reader.refuse("model.no_bias", True, why, "name the model: check MODEL FILE")
    dropped = reader.get(f"{attention}attn_pdrop", 0.0), reader.get("model.resid_pdrop", 0.0)
    sizes = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_hidden_layers": reader.degree("model.n_layers", 24),
        "intermediate_size": reader.degree("model.ffn_config.ffn_hidden_size", int(ratio * hidden)),
        "max_position_embeddings": reader.degree("model.max_seq_len", 2048),
        "vocab_size": reader.degree("model.vocab_size", 50368),
        "tie_word_embeddings": reader.switch("model.tie_word_embeddings", default=True),
    }
    if biased and learned:
        return {"model_type": "gpt2", **sizes, **dict(zip(("attn_pdrop", "resid_pdrop"), dropped, strict=True))}
    if biased:
        return {"model_type": "xglm", **sizes, **dict(zip(("attention_dropout", "dropout"), dropped, strict=True))}
    return {"model_type": "mpt", **sizes, "resid_pdrop": dropped[1]}


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    if reader.get("model.peft_config") is None:
        return None
    at = "model.peft_config."
    if reader.word(f"{at}peft_type", "lora") != "lora":
        reader.refuse(f"{at}peft_type", reader.get(f"{at}peft_type"), "LoRA can be planned", "use LORA")
    found = {
        "r": reader.degree(f"{at}r", 8),
        "targets": fine_tuning.targets_of(reader.get(f"{at}target_modules") or "q_proj,v_proj"),
        "dropout": reader.get(f"{at}lora_dropout", 0.0),
    }
    return {name: value for name, value in found.items() if value}


def _says(row: PlanRow, text: str) -> dict[str, object]:
    above = "parameters." if re.search(r"^parameters:", text, re.M) else ""
    fsdp = f"{above}{'parallelism_config.fsdp' if 'parallelism_config:' in text else 'fsdp_config'}."
    sharded = {"fsdp": "FULL_SHARD", "fsdp-keep": "SHARD_GRAD_OP"}.get(row.sharding, "NO_SHARD")
    return {
        f"{above}global_train_batch_size": row.gbs,
        f"{above}{_MICRO}": row.mbs,
        f"{fsdp}sharding_strategy": sharded,
        f"{fsdp}activation_checkpointing": row.recompute == "full",
    }


TARGET = ReadTarget(
    name="foundry",
    title=TITLE,
    version="0.22 (2025)",
    like="accelerate",
    says=_says,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_equals(launch.words),
    option=lambda name, value: (f"{name}={value}",),
    software="pytorch-eager",
)
