"""GGUF files as a config: what their headers say of a model, under the keys of its config.json.

Source: GGUF, github.com/ggml-org/ggml, docs/gguf.md, "Standardized key-value pairs", versions 2 and 3, as of 2026-11.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name

MAX_TEXT = 64 * 2**20
MOST_VALUES = 100_000
MOST_AXES = 8
FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "starcoder2": "starcoder2",
    "granite": "granite",
    "command-r": "cohere",
}
"""`model_type` by `general.architecture`; Mixtral is a llama with experts."""
_KEYS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_PLAIN = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Types of values; 8 is text, 9 a list."""


def config_of_gguf(path: str | Path) -> dict[str, Any]:
    """What the header of a GGUF file says, as a config.json says it.

    Args:
        path: the path of the file, or of the first of its parts.

    Raises:
        InputError: it is no GGUF file of version 2 or 3, or is cut off.
        UnsupportedError: its architecture has no reader.
    """
    try:
        with Path(path).open("rb") as file:
            values, tensors = gguf_header(file)
    except (OSError, ValueError, KeyError, struct.error) as error:
        why = getattr(error, "strerror", None) or str(error) or "it is cut off"
        problem = Problem(what=f"cannot read {str(path)!r}", why=why, fix="give a whole GGUF file", field="model")
        raise InputError(problem, code="MW202") from None
    kind = str(values.get("general.architecture", ""))
    if kind not in FAMILIES:
        raise UnsupportedError(unknown_name("architecture of GGUF", kind, tuple(FAMILIES)), code="MW403")
    found = {key: values[f"{kind}.{name}"] for name, key in _KEYS.items() if f"{kind}.{name}" in values}
    found = {
        key: value[0] if isinstance(value, list) and len(set(value)) == 1 else value for key, value in found.items()
    }
    found.setdefault("vocab_size", _rows(tensors, "token_embd.weight"))
    experts = values.get(f"{kind}.expert_count")
    family = FAMILIES[kind]
    if experts:
        family = "mixtral" if kind == "llama" else family
        found["num_local_experts" if family == "mixtral" else "num_experts"] = experts
    biased = "blk.0.attn_q.bias" in tensors
    tied = "output.weight" not in tensors
    stated = {key: value for key, value in found.items() if value is not None}
    return {"model_type": family, "tie_word_embeddings": tied, "attention_bias": biased, **stated}


def gguf_header(file: IO[bytes]) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """Values by key, lists of texts as their length; shapes of tensors by name, the fastest axis first.

    Args:
        file: the file from its start.

    Raises:
        ValueError: it is no GGUF file of version 2 or 3.
        KeyError, struct.error: it is cut off or damaged.
    """
    magic, version, tensors, count = struct.unpack("<4sIQQ", file.read(24))
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError("it is not GGUF 2 or 3")
    if max(tensors, count) > MOST_VALUES:
        raise ValueError(f"its header names {max(tensors, count):,} entries")
    values = {_text(file): _value(file, *struct.unpack("<I", file.read(4))) for _ in range(count)}
    return values, dict(_shapes(file, tensors))


def _shapes(file: IO[bytes], tensors: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for _ in range(tensors):
        name = _text(file)
        (rank,) = struct.unpack("<I", file.read(4))
        if rank > MOST_AXES:
            raise ValueError(f"a tensor has {rank:,} axes")
        yield name, struct.unpack(f"<{rank}Q", file.read(8 * rank))
        file.read(12)  # its type and where it lies


def _rows(tensors: dict[str, tuple[int, ...]], name: str) -> int | None:
    """Rows of a table, whose width GGUF names first."""
    return tensors[name][1] if len(tensors.get(name, ())) == 2 else None


def _text(file: IO[bytes]) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_TEXT:
        raise ValueError("a text is too long")
    return file.read(length).decode("utf-8", "replace")


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == 8:
        return _text(file)
    if kind != 9:
        form = _PLAIN[kind]
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]
    inner, length = struct.unpack("<IQ", file.read(12))
    if length > MAX_TEXT:
        raise ValueError("a list is too long")
    if inner == 9:
        raise ValueError("a list of lists is no value of a model")
    found = [_value(file, inner) for _ in range(length)]
    return len(found) if inner == 8 else found
