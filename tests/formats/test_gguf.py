"""GGUF files as MODEL: their header says the shapes, and weights elsewhere have a config beside them."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.library.models import resolve, spec

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.embedding_length": 4096,
    "llama.feed_forward_length": 14336,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.context_length": 8192,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def packed(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
    return struct.pack("<If", 6, value) if isinstance(value, float) else struct.pack("<II", 4, value)


def gguf(path: Path, values: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Path:
    body = b"".join(text(key) + packed(value) for key, value in values.items())
    body += b"".join(text(n) + struct.pack(f"<I{len(s)}QIQ", len(s), *s, 0, 0) for n, s in tensors.items())
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values)) + body)
    return path


def test_a_llama_is_read_from_its_header(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": (4096, 128256), "output.weight": (4096, 128256)}
    found = resolve(gguf(tmp_path / "llama.gguf", LLAMA, tensors))
    published = spec("llama-3-8b")
    assert (found.parameters, found.num_layers, found.vocab) == (published.parameters, 32, 128256)
    assert found.name == "llama"
    # The header names two tensors of many, and the count says so.
    assert any("parameters" in note for note in found.notes)


def test_a_table_that_is_not_there_twice_is_shared(tmp_path: Path) -> None:
    found = resolve(gguf(tmp_path / "tied.gguf", LLAMA, {"token_embd.weight": (4096, 128256)}))
    assert found.tied_embeddings


def test_experts_make_a_mixtral(tmp_path: Path) -> None:
    values = {**LLAMA, "llama.expert_count": 8, "llama.expert_used_count": 2}
    tensors = {"token_embd.weight": (4096, 32000), "output.weight": (4096, 32000)}
    assert resolve(gguf(tmp_path / "moe.gguf", values, tensors)).parameters == spec("mixtral-8x7b").parameters


def test_weights_take_the_config_beside_them(tmp_path: Path) -> None:
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100, "max_position_embeddings": 128}
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(InputError, match=r"there is no config.json beside") as refused:
        resolve(weights)
    assert "not how many heads" in refused.value.problems[0].why
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert resolve(weights).hidden == 64
    shutil.copy(weights, tmp_path / "other.gguf")
    assert resolve(tmp_path / "other.gguf").hidden == 64


def test_what_is_no_gguf_or_has_no_reader_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "a.gguf"
    broken.write_bytes(b"GGUF" + bytes(8))
    with pytest.raises(InputError, match="cannot read"):
        resolve(broken)
    with pytest.raises(UnsupportedError, match="architecture of GGUF"):
        resolve(gguf(tmp_path / "b.gguf", {"general.architecture": "clip"}, {}))


def test_lists_within_lists_are_refused_however_deep(tmp_path: Path) -> None:
    nested = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("a") + struct.pack("<I", 9)
    (tmp_path / "deep.gguf").write_bytes(nested + struct.pack("<IQ", 9, 1) * 100_000)
    with pytest.raises(InputError, match="cannot read") as refused:
        resolve(tmp_path / "deep.gguf")
    assert "list of lists" in refused.value.problems[0].why
