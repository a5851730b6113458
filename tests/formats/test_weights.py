"""Counts of parameters from headers of weights."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.formats.weights import INDEX, count_beside, count_gguf, count_safetensors
from meshwright.library.models import resolve

SHAPE = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIG: dict[str, Any] = SHAPE | {"model_type": "llama", "vocab_size": 100, "max_position_embeddings": 32}
PARAMETERS = 2 * 100 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64


def safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(path: Path, tensors: dict[str, tuple[int, ...]]) -> Path:
    """A header with a number, a text, a list of numbers and a list of texts among its values."""
    values = text("llama.block_count") + struct.pack("<II", 4, 2)
    values += text("general.name") + struct.pack("<I", 8) + text("tiny")
    values += text("tokenizer.scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12)
    values += text("tokenizer.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    infos = b"".join(
        text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, 0) for name, shape in tensors.items()
    )
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), 4) + values + infos)
    return path


def test_elements_of_safetensors_without_scales(tmp_path: Path) -> None:
    one = safetensors(tmp_path / "a.safetensors", {"w": ("BF16", [3, 5]), "w_scale_inv": ("F32", [7])})
    two = safetensors(tmp_path / "b.safetensors", {"v": ("F8_E4M3", [2, 2, 2])})
    counted = count_safetensors([one, two])
    assert counted is not None
    assert (counted.parameters, counted.where) == (23, "2 safetensors files")
    assert count_safetensors([safetensors(one, {"packed": ("U8", [4, 4])})]) is None


def test_elements_of_gguf_without_tables_of_angles(tmp_path: Path) -> None:
    path = gguf(tmp_path / "tiny.gguf", {"output.weight": (64, 100), "rope_freqs.weight": (8,), "norm": (64,)})
    assert count_gguf([path]).parameters == 6464
    assert count_beside(tmp_path, {}) == count_gguf([path])


def test_parts_of_one_gguf_model_are_added(tmp_path: Path) -> None:
    for number in (1, 2):
        gguf(tmp_path / f"m-0000{number}-of-00002.gguf", {f"w{number}": (10, 10)})
    gguf(tmp_path / "z.gguf", {"w": (1000, 1000)})
    counted = count_beside(tmp_path, {})
    assert counted is not None
    assert counted.parameters == 200


@pytest.mark.parametrize(("factor", "said"), [(1.0, False), (1.0005, False), (1.01, True), (0.5, True)])
def test_an_index_beside_a_config_checks_its_count(tmp_path: Path, factor: float, said: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"torch_dtype": "bfloat16"}))
    index = {"metadata": {"total_size": 2 * int(PARAMETERS * factor)}, "weight_map": {"w": "a.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    for path in (tmp_path, tmp_path / "config.json"):
        model = resolve(str(path))
        assert model.parameters == PARAMETERS
        assert any("beside the config holds" in note for note in model.notes) is said


def test_a_head_stored_beside_the_embedding_it_is_tied_to_is_no_difference(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": True}))
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_parameters": PARAMETERS}, "weight_map": {}}))
    assert resolve(str(tmp_path)).notes == ()


def test_quantized_weights_of_which_only_the_bytes_are_known_say_nothing(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": {"w": "a"}}))
    assert count_beside(tmp_path, {"dtype": "bfloat16", "quantization_config": {"bits": 4}}) is None
    assert count_beside(tmp_path, {}) is None


@given(data=st.binary(max_size=64), name=st.sampled_from(["a.gguf", "a.safetensors", INDEX]))
def test_files_that_do_not_read_say_nothing(tmp_path_factory: pytest.TempPathFactory, data: bytes, name: str) -> None:
    folder = tmp_path_factory.mktemp("weights")
    (folder / name).write_bytes(data)
    assert count_beside(folder, {}) is None


def test_an_index_nested_too_deeply_says_nothing(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("[" * 100_000)
    assert count_beside(tmp_path, {}) is None
