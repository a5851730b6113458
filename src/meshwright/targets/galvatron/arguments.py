"""Options of Galvatron's trainer in the names of its later YAML, and the models that its folders name by a size.

Releases up to 2.4 say in options what the YAML says later. A model is that of `--model_size`, whatever other options
say of it, unless a `--set_..._manually` is 1.

Source: galvatron/core/runtime/arguments.py and galvatron/models/*/meta_configs of hetu-galvatron 2.4.0.
"""

from __future__ import annotations

from typing import Any

from meshwright.formats.huggingface import read_config
from meshwright.formats.shell import Launch, Word, word
from meshwright.specs.model import ModelSpec
from meshwright.targets.keys import KeyReader
from meshwright.targets.overrides import by_flags

_MARKS = ("global_tp_deg", "galvatron_config_path", "default_dp_type")
"""Options that only its trainer has, one at least."""
_RENAMED = {
    **{
        name: f"parallel.{name}"
        for name in (
            "pp_deg",
            "global_tp_deg",
            "global_cp_deg",
            "sdp",
            "default_dp_type",
            "pipeline_type",
            "mixed_precision",
            "global_checkpoint",
            "vocab_tp",
            "use_ulysses",
            "galvatron_config_path",
            "embed_sdp",
        )
    },
    **{name: f"train.{name}" for name in ("chunks", "seq_length", "sequence_parallel", "use_flash_attn")},
    **{
        name: f"model.{name}"
        for name in (
            "model_size",
            "set_model_config_manually",
            "set_layernum_manually",
            "set_seqlen_manually",
            "hidden_size",
            "num_attention_heads",
            "vocab_size",
        )
    },
    "num_hidden_layers": "model.num_layers",
    "global_train_batch_size": "train.global_batch_size",
}
_DEFAULTS = {"parallel.pp_deg": "2", "train.global_batch_size": "32", "train.use_flash_attn": "false"}
"""What its options are where a command leaves them out, and the YAML has otherwise."""
BY_OPTIONS = "model.set_seqlen_manually"
"""A key that stands only where options said the others."""
_LLAMA, _GPT = "llama", "gpt2"
_SIZES = {
    "llama-0.3b": (_LLAMA, 24, 1024, 16, 16, 2816, 32000, 2048),
    "llama-7b": (_LLAMA, 32, 4096, 32, 32, 11008, 32000, 2048),
    "llama-13b": (_LLAMA, 40, 5120, 40, 40, 13824, 32000, 4096),
    "llama-30b": (_LLAMA, 48, 8192, 64, 8, 22016, 32000, 4096),
    "llama2-70b": (_LLAMA, 80, 8192, 64, 8, 28672, 32000, 4096),
    "qwen2.5-1.5b": (_LLAMA, 28, 1536, 12, 2, 8960, 151936, 4096),
    "qwen2.5-3b": (_LLAMA, 36, 2048, 16, 2, 11008, 151936, 8192),
    "qwen2.5-7b": (_LLAMA, 28, 3584, 28, 4, 18944, 152064, 131072),
    "qwen2.5-72b": (_LLAMA, 80, 8192, 64, 8, 29568, 152064, 131072),
    "gpt-0.3b": (_GPT, 24, 1024, 16, 16, 4096, 50257, 1024),
    "gpt-1.5b": (_GPT, 48, 1600, 32, 32, 6400, 50257, 1024),
    "gpt-2.7b": (_GPT, 32, 2560, 32, 32, 10240, 50257, 2048),
    "gpt-6.7b": (_GPT, 32, 4096, 32, 32, 16384, 50257, 2048),
}
"""Family, layers, hidden, heads, heads of keys and values, inner width, tokens, positions; its Qwen are Llamas."""


def said(launch: Launch) -> dict[str, Word]:
    """Options of its trainer by the keys of its YAML, with the defaults that differ; none for another program.

    Args:
        launch: a command.
    """
    options = by_flags(launch.words)
    if not any(name in options for name in _MARKS):
        return {}
    given = {name: value for name, value in options.items() if name != "global_tp_deg" or value.text != "-1"}
    found = {key: given[name] for name, key in _RENAMED.items() if name in given}
    usual = {key: value for key, value in _DEFAULTS.items() if key not in found}
    if "parallel.galvatron_config_path" in found:
        usual = {key: value for key, value in usual.items() if key == "train.use_flash_attn"}
    found |= {key: word(value, launch.place) for key, value in usual.items()}
    return {BY_OPTIONS: word("0", launch.place), **found}


def model(reader: KeyReader) -> tuple[ModelSpec | None, int | None]:
    """The model that options name or describe, and tokens of a sequence; None of what is left open.

    Args:
        reader: keys as `said` has them.
    """
    size = reader.word("model.model_size")
    manual = reader.get("model.set_model_config_manually") == 1
    found = _SIZES.get(size)
    if not size:
        return None, reader.get("train.seq_length")  # another program of its library makes the model
    if found is None:
        why = f"Galvatron's sizes of {', '.join(_SIZES)} are known"
        reader.refuse("model.model_size", size, why, "name the model: check MODEL FILE")
        return None, reader.get("train.seq_length")
    family, layers, hidden, heads, grouped, inner, vocab, positions = found
    if manual:
        hidden, heads = (reader.degree(f"model.{name}") for name in ("hidden_size", "num_attention_heads"))
        vocab, grouped = reader.degree("model.vocab_size"), grouped if grouped != found[3] else heads
        inner = hidden * 8 // 3 if family == _LLAMA else 4 * hidden
    if manual or reader.get("model.set_layernum_manually") == 1:
        layers = reader.degree("model.num_layers")
    if manual or reader.get(BY_OPTIONS) == 1:
        positions = reader.degree("train.seq_length")
    config: dict[str, Any] = {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": grouped,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": family == _GPT,
    }
    return read_config(config, size, source="options of Galvatron's trainer"), positions
