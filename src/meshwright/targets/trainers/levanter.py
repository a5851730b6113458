"""Levanter: the YAML of `train_lm.py`, whose weights are sharded over data ranks by names of axes.

Keys are those of src/levanter/trainer.py and models of levanter (2025), https://github.com/stanford-crfm/levanter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.key_text import KeyText, key_text
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, overrides
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines, text_beside
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "Levanter"
_recognised = marked_lines(
    r"^trainer:",
    r"^[ \t]+train_batch_size:",
    r"^[ \t]+(?:num_train_steps|mp|model_axis_size|per_device_parallelism):",
)
_INCLUDE = re.compile(r"!include\s+([^\s\"']+)")
_TOKENIZER = re.compile(r"^[ \t]*tokenizer:\s*[\"']?([\w./-]+)", re.M)
_VOCABULARIES = {"gpt2": 50257, "EleutherAI/gpt-neox-20b": 50277}
"""Tokens of tokenizers; Levanter rounds a vocabulary up to a multiple of the devices that cut it."""
_LLAMA = {"hidden_dim": 4096, "intermediate_dim": 11008, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32}
_MISTRAL = {**_LLAMA, "intermediate_dim": 14336, "num_kv_heads": 8}
_GPT2 = {"hidden_dim": 768, "num_layers": 12, "num_heads": 12}


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML, or the model's sizes contradict each other.
    """
    name, text = file_of(files, "levanter.yaml", _recognised)
    # What is included says data, and is another file; the lines stay where they are.
    plain = _INCLUDE.sub(lambda match: f'"{match[0]}"', text)
    reader = shared.yaml_reader((name, plain), files, TITLE)
    questions = list(_unread(reader))
    config, asked = _model(reader, _tokenizer(reader, files, text))
    questions += asked
    named = reader.get("initialize_from_hf") if config is None else None
    row = _row(reader, devices)
    again = reader.get("model.gradient_checkpointing", True)
    if again not in (True, False, "true", "false", "full", "default"):
        reader.refuse("model.gradient_checkpointing", again, "layers are recomputed one by one, or not", "use true")
    optimizer = reader.word("optimizer.type", "adam")
    if optimizer not in ("adam", "adamw", "lion"):
        reader.refuse("optimizer.type", optimizer, "adam and lion can be planned", "use adam")
    return shared.launched(
        reader,
        row,
        precision=_precision(reader),
        model=named if isinstance(named, str) else None,
        config=config,
        optimizer="lion" if optimizer == "lion" else "adamw",
        seq_len=reader.get("train_seq_len") or reader.get("max_train_length") or reader.get("model.seq_len"),
        questions=tuple(questions),
    )


def _unread(reader: KeyReader) -> list[Problem]:
    """What trains something else."""
    fine_tuning.refuse_on(
        reader,
        ("lora", "peft_save_path"),
        "its adapters are on products that the program chooses",
        "check a file without",
    )
    fine_tuning.refuse_on(reader, ("trainer.quantization",), "products in fewer bits are not read", "leave it out")
    resources = reader.get("trainer.axis_resources") or reader.get("trainer.parameter_axis_resources")
    if resources:
        reader.refuse("trainer.axis_resources", "given", "axes are cut by hand, which is not read", "leave it out")
    return []


def _row(reader: KeyReader, devices: int | None) -> Any:
    tp = reader.degree("trainer.model_axis_size")
    replicate = reader.degree("trainer.replica_ici_axis_size") * reader.degree("trainer.replica_dcn_axis_size")
    dp = shared.data_ranks(
        reader, devices, tp=("trainer.model_axis_size", tp), replicate=("trainer.replica_ici_axis_size", replicate)
    )
    if dp is None:
        return None
    axes = reader.get("trainer.tensor_parallel_axes")
    if tp > 1 and axes and sorted(axes) != ["heads", "mlp"]:
        why = "heads and mlp are cut over tensor ranks in plans"
        reader.refuse("trainer.tensor_parallel_axes", axes, why, "use [mlp, heads]")
    if tp > 1 and not axes:
        why = "no axis is cut over the model axis: its devices repeat each other's work"
        reader.refuse("trainer.model_axis_size", tp, why, "use 1, or tensor_parallel_axes [mlp, heads]")
    if reader.get("trainer.fsdp_axis", "embed") != "embed":
        reader.refuse(
            "trainer.fsdp_axis", reader.get("trainer.fsdp_axis"), "weights are sharded along embed", "use embed"
        )
    batch, each = reader.get("trainer.train_batch_size", 512), reader.get("trainer.per_device_parallelism", -1)
    if not isinstance(batch, int) or not isinstance(each, int) or isinstance(batch, bool):
        reader.refuse(
            "trainer.train_batch_size", batch, "the batch changes in training, and a plan has one", "write one"
        )
        return None
    batch = each * dp if batch == -1 else batch
    mbs = each if each > 0 else max(1, batch // dp)
    return shared.sharded_row(
        dp,
        mbs=mbs,
        gbs=shared.steps_of(reader, "trainer.train_batch_size", batch, mbs, dp),
        sharded=True,
        replicate=replicate,
        tp=tp,
        sp=tp == 1,
        recompute="none" if reader.get("model.gradient_checkpointing", True) in (False, "false") else "full",
    )


_POLICY = re.compile(r"(p|params|c|compute|o|output)=(\w+)")
_WIDE = ("f32", "float32", "fp32")
_HALF = ("bf16", "bfloat16")


def _precision(reader: KeyReader) -> Precision:
    """Weights in fp32 that are computed with in bf16, as the policy of jmp says it."""
    said = reader.word("trainer.mp", "f32")
    parts = {key[0]: value for key, value in _POLICY.findall(said)}
    compute, params = (parts.get("c", parts.get("p", said)), parts.get("p", said))
    if said in _WIDE or compute in _WIDE:
        return PRECISIONS["fp32"]
    if compute not in _HALF or params not in _WIDE:
        reader.refuse(
            "trainer.mp", said, "weights in fp32, computed with in bf16 or fp32, can be planned", "p=f32,c=bfloat16"
        )
    return PRECISIONS["bf16"]


def _named(text: str) -> tuple[str, ...]:
    """Files that it includes, which say its data."""
    return tuple(_INCLUDE.findall(text))


def _tokenizer(reader: KeyReader, files: Files, text: str) -> str:
    """The tokenizer, which the file or one that it includes names; data that stand in the file have GPT-2's by default.

    Source: LMDatasetConfig of src/levanter/data/text.py.
    """
    own = isinstance(reader.get("data"), Mapping)
    said = (reader.get("data.tokenizer") if own else None) or reader.get("tokenizer")
    said = said or ("gpt2" if own and not _named(text) else None)
    included = (text_beside(files, PurePath(path).name) for path in _named(text))
    found = [match[1] for one in included if one is not None and (match := _TOKENIZER.search(one)) is not None]
    return str(said or next(iter(found), ""))


def _model(reader: KeyReader, tokenizer: str) -> tuple[Mapping[str, Any] | None, list[Problem]]:
    """The model's configuration in the words of the transformers library, and what of it is asked for."""
    kind = reader.word("model.type")
    if not kind:
        return None, []
    sizes = {"llama": _LLAMA, "mistral": _MISTRAL, "mixtral": _MISTRAL, "gpt2": _GPT2}.get(kind)
    if sizes is None:
        reader.refuse(
            "model.type", kind, "llama, mistral, mixtral and gpt2 are read", "name the model: check MODEL FILE"
        )
        return None, []
    found = {name: reader.degree(f"model.{name}", usual) for name, usual in sizes.items()}
    length = reader.degree("model.seq_len", 1024 if kind == "gpt2" else 8192 if kind != "llama" else 2048)
    vocab = _vocabulary(tokenizer) or reader.get("vocab_size")
    if not isinstance(vocab, int):
        where = f"of {tokenizer[:60]}" if tokenizer else "that an included file names"
        why, fix = (
            f"the tokenizer {where} is not available",
            "give --set vocab_size=N, or name the model: check MODEL FILE",
        )
        return None, [Problem(what="the vocabulary is not known", why=why, fix=fix, field="model")]
    config: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": found["hidden_dim"],
        "num_hidden_layers": found["num_layers"],
        "num_attention_heads": found["num_heads"],
        "vocab_size": vocab,
        "max_position_embeddings": length,
    }
    if kind == "gpt2":
        wide = reader.degree("model.mlp_scale", 4) * found["hidden_dim"]
        dropped = {f"{part}_pdrop": reader.get(f"model.{part}_pdrop", 0.0) for part in ("embed", "resid", "attn")}
        dropped["embd_pdrop"] = dropped.pop("embed_pdrop")
        names = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
        own = {ours: config[name] for ours, name in names.items()}
        return {"model_type": kind, "vocab_size": vocab, "n_positions": length, "n_inner": wide, **own, **dropped}, []
    config |= {
        "intermediate_size": found["intermediate_dim"],
        "num_key_value_heads": found["num_kv_heads"],
        "tie_word_embeddings": reader.switch("model.tie_word_embeddings"),
    }
    if kind == "mixtral":
        config["num_local_experts"] = reader.degree("model.n_routed_experts", 8)
        config["num_experts_per_tok"] = reader.degree("model.num_experts_per_tok", 2)
    return config, []


def _vocabulary(tokenizer: str) -> int | None:
    from meshwright.library import models

    names = (tokenizer, tokenizer.rpartition("/")[2])
    known = next((name for name in map(models.find_name, names) if name is not None), None) if tokenizer else None
    return _VOCABULARIES.get(tokenizer) or (models.spec(known).vocab if known is not None else None)


def _says(row: PlanRow, text: str) -> dict[str, object]:
    cut = {"trainer.tensor_parallel_axes": ["mlp", "heads"]} if row.tp > 1 else {}
    return {
        "trainer.model_axis_size": row.tp,
        **cut,
        "trainer.replica_dcn_axis_size": 1,
        "trainer.replica_ici_axis_size": shared.copies(row),
        "trainer.train_batch_size": row.gbs,
        "trainer.per_device_parallelism": row.mbs,
        "model.gradient_checkpointing": row.recompute == "full",
    }


def _edited(name: str, text: str) -> KeyText | None:
    """The YAML as it stands; what it includes is taken for text of the same length."""
    keys = key_text(name, text.replace("!include ", "~include_"))
    return None if keys is None else replace(keys, text=text)


TARGET = ReadTarget(
    name="levanter",
    title=TITLE,
    version="1.2 (2025)",
    like="maxtext",
    says=_says,
    edited=_edited,
    read=read,
    recognised=_recognised,
    named=_named,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="xla",
)
