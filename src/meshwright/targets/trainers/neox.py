"""GPT-NeoX: a YAML of `deepy.py train.py`, alone or laid over others, run by its fork of DeepSpeed.

Keys are those of megatron/neox_arguments of gpt-neox (2025), https://github.com/EleutherAI/gpt-neox.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.key_text import KeyText, key_text
from meshwright.formats.launch_file import LaunchFile, even_stages
from meshwright.specs.precision import PRECISIONS, Precision
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, overrides, zero_offload
from meshwright.targets.contract import Files, ReadTarget, file_of, marked_lines
from meshwright.targets.deepspeed.beyond import curricula, refuse_beyond
from meshwright.targets.keys import KeyReader
from meshwright.targets.trainers import shared

TITLE = "GPT-NeoX"
_KEY = r"^[ \t]*[\"']?{}[\"']?\s*:"
_NAMES = (
    r"(?:pipe[_-]parallel[_-]size|attention[_-]config|no[_-]weight[_-]tying)",
    *(r"num[_-]layers", r"hidden[_-]size", r"num[_-]attention[_-]heads"),
)
_NAMED = marked_lines(*(_KEY.format(name) for name in _NAMES), suffixes=(".yaml", ".yml", ".json"))
_RESULTS = re.compile(r"^[ \t]*\"(?:results|versions)\":", re.M)
"""Results of an evaluation, which state the model's configuration too."""
_TOKENIZERS = {"GPT2BPETokenizer": 50257}
_BY_FILE = {"20B_tokenizer": 50277, "gpt2-vocab": 50257}
"""Tokens of a tokenizer by its file."""
_MICRO, _VOCAB = "train_micro_batch_size_per_gpu", "padded_vocab_size"
_OPTIMIZERS = ("adam", "adamw", "sgd", "lion")
_LLAMA_MULTIPLE = 256
"""Multiple of the width of LLaMAParallelMLP (megatron/model/transformer.py of gpt-neox 2.0)."""
_OTHERWISE = ("soft_prompt_tuning", "num_unique_layers", "sliding_window_width", "use_qk_layernorm")
_GATED = ("swiglu", "geglu", "glu", "reglu", "bilinear")


def _recognised(name: str, text: str) -> bool:
    return _NAMED(name, text) and _RESULTS.search(text) is None


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """The YAML as a plan.

    Args:
        files: the YAML.
        devices: the number of devices of the job; those of its model-parallel degrees where nobody says it.

    Raises:
        InputError: the text is no YAML, or the model's sizes contradict each other.
    """
    given = shared.yaml_reader(file_of(files, "neox.yml", _recognised), files, TITLE)
    # Words of a key are parted by _ or by -, as its own reader takes them.
    reader = KeyReader(
        keys={key.replace("-", "_"): value for key, value in given.keys.items()},
        file=given.file,
        over=given.over,
        names={key.replace("-", "_"): key for key in given.keys},
    )
    questions: list[Problem] = []
    kernel = _kernel(reader)
    config = _model(reader, questions)
    row = _row(reader, devices, questions)
    refuse_beyond(reader)
    optimizer = reader.word("optimizer.type", "adam")
    if optimizer not in _OPTIMIZERS:
        reader.refuse("optimizer.type", optimizer, f"{', '.join(_OPTIMIZERS)} can be planned", "use Adam")
    found = shared.launched(
        reader,
        row,
        precision=_precision(reader),
        config=config,
        optimizer={"adam": "adamw"}.get(optimizer, optimizer if optimizer in _OPTIMIZERS else "adamw"),
        seq_len=reader.degree("seq_length", 2048),
        attention_kernel=kernel,
        questions=tuple(questions),
        notes=(*curricula(reader), *_left_open(reader)),
    )
    # Layers are counted, unless their parameters are to be balanced.
    counted = reader.word("pipe_partition_method", "type:transformer|mlp").startswith("type:transformer")
    piped = row is not None and row.pp > 1 and counted
    return replace(found, dealt=partial(even_stages, stages=row.pp) if row is not None and piped else None)


def _left_open(reader: KeyReader) -> Iterator[str]:
    """Says what was taken where a file leaves it to others that it is laid over."""
    said = {"precision", "fp16", "bf16", "fp32_allreduce"} & reader.keys.keys()
    formats = [] if said else ["fp32"]
    held = [] if "zero_optimization" in reader.keys else ["whole optimizer states"]
    if taken := [*formats, *held]:
        yield f"{' and '.join(taken)} are taken: the file states no other, and one that it is laid over may"


def _row(reader: KeyReader, devices: int | None, questions: list[Problem]) -> PlanRow | None:
    tp, pp = reader.degree("model_parallel_size"), max(1, reader.number("pipe_parallel_size"))
    reader.multiple = tp * pp
    world = devices or tp * pp
    if world % (tp * pp):
        why = f"{world} devices must be a multiple of model_parallel_size {tp} x pipe_parallel_size {pp}"
        reader.refuse("pipe_parallel_size" if pp > 1 else "model_parallel_size", pp if pp > 1 else tp, why)
        return None
    dp = world // (tp * pp)
    said, total = reader.get(_MICRO), reader.get("train_batch_size")
    steps = reader.degree("gradient_accumulation_steps")
    if said is None and total is None:
        why = "the file states no batch: it is laid over others, which do"
        questions.append(Problem(what=f"{_MICRO} is not known", why=why, fix=f"give --set {_MICRO}=N", field=_MICRO))
        return None
    mbs = reader.degree(_MICRO) if said is not None else max(1, reader.degree("train_batch_size") // (steps * dp))
    if total is not None and reader.get("gradient_accumulation_steps") is None:
        steps = max(1, reader.degree("train_batch_size") // (mbs * dp))
    if total is not None and total != mbs * steps * dp:
        why = f"must be micro-batch {mbs} x accumulation {steps} x data ranks {dp}"
        reader.refuse("train_batch_size", total, why)
    again = reader.switch("checkpoint_activations")
    if again and tp > 1 and reader.switch("partition_activations") and not reader.switch("sequence_parallel"):
        why = "kept inputs are spread over tensor ranks, which rows do not say without sequence parallelism"
        reader.refuse("partition_activations", True, why, "use sequence_parallel")
    group = reader.degree("checkpoint_num_layers")
    zero = reader.number("zero_optimization.stage") if reader.get("zero_optimization") else 0
    offload = _offload(reader)
    if zero > 3:
        reader.refuse("zero_optimization.stage", zero, "must be 0, 1, 2 or 3", "use 1")
    return PlanRow(
        tp=tp,
        sp=tp == 1 or reader.switch("sequence_parallel"),
        pp=pp,
        dp=dp,
        sharding=f"z{min(zero, 3) or _engine_shards(reader)}",
        mbs=mbs,
        gbs=mbs * steps * dp,
        recompute="none" if not again else "full" if group == 1 else "uni",
        recompute_layers=group if again and group > 1 else 0,
        offload=offload,
        dp_overlap=reader.switch("zero_optimization.overlap_comm", default=zero == 3),
    )


def _engine_shards(reader: KeyReader) -> int:
    """The stage that DeepSpeed's pipeline keeps to under bf16 where ZeRO is off: its optimizer shards its states.

    Source: `_do_optimizer_sanity_check` in deepspeed/runtime/engine.py and bf16_optimizer.py of deepspeed 0.19.8.
    """
    return int(reader.number("pipe_parallel_size") > 0 and _precision(reader).compute == "bf16")


def _offload(reader: KeyReader) -> str:
    optimizer = reader.word("zero_optimization.offload_optimizer.device", "none")
    weights = reader.word("zero_optimization.offload_param.device", "none")
    on = optimizer != "none" or reader.switch("zero_optimization.cpu_offload")
    kept = optimizer if optimizer != "none" or not on else "cpu"
    return zero_offload.words(optimizer=kept, weights=weights, zero=reader.get("zero_optimization.stage", 0))


def _precision(reader: KeyReader) -> Precision:
    named = reader.word("precision")
    on = [name for name in ("fp16", "bf16") if reader.switch(f"{name}.enabled") or reader.get(name) is True]
    fine_tuning.refuse_on(reader, ("te_fp8_mha",), "8-bit products of Transformer Engine are not read", "use false")
    for name in ("te_columnparallel", "te_rowparallel"):
        reader.switch(name)  # the same products by other kernels
    kept = reader.word("fp16.type") if on == ["fp16"] and not named else ""  # how its first releases said bf16
    name = {"bfloat16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get(named or kept) or (on[0] if on else "fp32")
    return PRECISIONS[name]


def _kernel(reader: KeyReader) -> str:
    """Whether scores of attention are written out; other mixers than attention are refused."""
    said = reader.get("attention_config", [[["global"], "all"]])
    kinds = set(re.findall(r"[a-z]\w*", str(said))) - {"all"}
    if not kinds <= {"global", "flash"} or len(kinds) > 1:
        reader.refuse(
            "attention_config", said, "layers of global or of flash attention are read, all alike", "use flash"
        )
    # Transformer Engine's attention is fused, whatever kind is named.
    return "flash" if kinds == {"flash"} or reader.switch("te_mha") else "materialised"


def _model(reader: KeyReader, questions: list[Problem]) -> Mapping[str, Any] | None:
    """The model's configuration in the words of the transformers library; None of other kinds."""
    hidden, layers = reader.degree("hidden_size"), reader.degree("num_layers")
    heads = reader.degree("num_attention_heads")
    norm, activation = reader.word("norm", "layernorm"), reader.word("activation", "gelu")
    place = reader.word("pos_emb", "learned")
    fine_tuning.refuse_on(reader, _OTHERWISE, "it is not read", "leave it out")
    if reader.get("moe_num_experts", 1) not in (0, 1):
        why = "its experts are cut over tensor ranks by MegaBlocks, which is not read"
        reader.refuse("moe_num_experts", reader.get("moe_num_experts"), why, "use 1")
    if (impl := reader.word("train_impl", "normal")) != "normal":
        reader.refuse("train_impl", impl, "a step runs more than one pass over pairs", "use normal")
    vocab = _vocabulary(reader)
    if vocab is None:
        why = "the file names no tokenizer whose tokens are known"
        fix = f"give --set {_VOCAB}=N, or name the model: check MODEL FILE"
        questions.append(Problem(what="the vocabulary is not known", why=why, fix=fix, field=_VOCAB))
        vocab = 50304
    grouped = reader.degree("num_kv_heads", heads)
    wider = reader.get("expansion_factor")
    inner = reader.degree("intermediate_size", int(wider * hidden) if isinstance(wider, (int, float)) else 4 * hidden)
    common = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "vocab_size": vocab,
        "max_position_embeddings": reader.degree("max_position_embeddings", 2048),
        "tie_word_embeddings": not reader.switch("no_weight_tying"),
    }
    dropped = {f"{name}_dropout": reader.get(f"{name}_dropout", 0.0) for name in ("hidden", "attention")}
    # Version 2 has the MLP of Llama by a key of its own: its width is that of one half, without biases.
    if norm.endswith("rmsnorm") and reader.word("mlp_type", "regular") == "llama" and activation == "silu":
        width = -(-int(2 * hidden * 4 / 3) // _LLAMA_MULTIPLE) * _LLAMA_MULTIPLE
        return {
            **common,
            "model_type": "llama",
            "intermediate_size": reader.degree("intermediate_size", width),
            "num_key_value_heads": grouped,
            "attention_bias": reader.switch("use_bias_in_attn_linear", default=True),
        }
    if norm.endswith("rmsnorm") and activation in _GATED and place == "rotary" and not any(dropped.values()):
        multiple = reader.degree("mlp_multiple_of")
        # Gated MLPs are narrowed by 2/3, and the width is that of both halves; Transformer Engine's is that of one.
        whole, fused = reader.switch("te_layernorm_mlp"), reader.switch("te_mha")
        half = -(-(int(inner * 2 / 3) // 2) // multiple) * multiple
        return {
            **common,
            "model_type": "llama",
            "intermediate_size": inner if whole else half,
            "num_key_value_heads": grouped,
            "attention_bias": fused or reader.switch("use_bias_in_attn_linear", default=True),
            "mlp_bias": whole or reader.switch("use_bias_in_mlp", default=True),
        }
    reader.switch("te_layernorm_mlp")
    if norm.endswith("layernorm") and activation == "gelu" and grouped == heads and place == "rotary":
        return {
            **common,
            **dropped,
            "model_type": "gpt_neox",
            "intermediate_size": inner,
            "use_parallel_residual": reader.switch("gpt_j_residual"),
        }
    if norm.endswith("layernorm") and activation == "gelu" and grouped == heads and place == "learned":
        drops = {
            "resid_pdrop": dropped["hidden_dropout"],
            "attn_pdrop": dropped["attention_dropout"],
            "embd_pdrop": 0.0,
        }
        if not reader.switch("gpt_j_residual"):
            sizes = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_inner": inner}
            positions = {"n_positions": common["max_position_embeddings"], "vocab_size": vocab}
            tied = {"tie_word_embeddings": common["tie_word_embeddings"]}
            return {"model_type": "gpt2", **sizes, **positions, **tied, **drops}
    what = f"{norm} with {activation} and {place} positions"
    why = "blocks of GPT-NeoX, GPT-2 and Llama are read"
    reader.refuse("norm", what, why, "name the model before the file: check MODEL FILE")
    return None


def _vocabulary(reader: KeyReader) -> int | None:
    """Rows of the embedding, padded as the program pads them."""
    if reader.get(_VOCAB) is not None:
        return reader.degree(_VOCAB)
    where = str(reader.get("vocab_file", ""))
    # The default is of no use where the file leaves its vocabulary to another, which may name the kind too.
    kind = str(reader.get("tokenizer_type", "GPT2BPETokenizer" if where else ""))
    tokens = next((count for name, count in _BY_FILE.items() if name in where), None) or _TOKENIZERS.get(kind)
    multiple = reader.degree("make_vocab_size_divisible_by", 128) * reader.degree("model_parallel_size")
    return None if tokens is None else -(-tokens // multiple) * multiple


def _says(row: PlanRow, text: str) -> dict[str, object]:
    zero, letters = row.sharding.removeprefix("z"), row.offload.partition("-")[0]
    total = {"train_batch_size": row.gbs} if re.search(_KEY.format("train[_-]batch[_-]size"), text, re.M) else {}
    groups = {"checkpoint_num_layers": row.recompute_layers or 1} if row.recompute in ("full", "uni") else {}
    host = {"zero_optimization.offload_optimizer.device": "cpu"} if "o" in letters else {}
    return {
        "pipe_parallel_size": row.pp,
        "model_parallel_size": row.tp,
        **({"sequence_parallel": row.sp} if row.tp > 1 else {}),
        _MICRO: row.mbs,
        "gradient_accumulation_steps": row.micro_batches,
        **total,
        "checkpoint_activations": row.recompute in ("full", "uni"),
        **groups,
        "zero_optimization.stage": int(zero) if zero.isdigit() else 3,
        "zero_optimization.overlap_comm": row.dp_overlap,
        **host,
    }


def _edited(name: str, text: str) -> KeyText | None:
    """The YAML with words of its keys parted by _, as they are read."""
    keys = key_text(name, text)
    if keys is None:
        return None
    entries = {tuple(part.replace("-", "_") for part in path): entry for path, entry in keys.entries.items()}
    return replace(keys, entries=entries, values={path.replace("-", "_"): value for path, value in keys.values.items()})


TARGET = ReadTarget(
    name="neox",
    title=TITLE,
    version="2025-06",
    like="megatron-deepspeed",
    says=_says,
    edited=_edited,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: overrides.by_options(launch.words),
    software="megatron-deepspeed",
)
