"""The library listed, shown and added to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from meshwright.app.library import add_gpu, add_model, list_gpus, list_models, show_gpu, show_model
from meshwright.errors import InputError, UnsupportedError
from meshwright.report import library_tables
from tests.cli.files import SMALL_LLAMA

DEVICE = """
name = "my-h100"
generation = "hopper"
bf16_tflops = 989.4
fp8_tflops = 1979
memory_gib = 79.1
memory_gb_s = 3350
units = 132
[node]
devices = 8
scaleup_gb_s = 450
fabric_gb_s = 50
[source]
default = { basis = "datasheet", source = "the box", date = "2024-03" }
"""


def printed(renderable: object) -> str:
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_models_are_listed_with_their_counts() -> None:
    rows = {row["name"]: row for row in list_models().rows}
    assert rows["llama-3-8b"]["parameters"] == 8_030_261_248
    text = printed(library_tables.model_list({"models": list(rows.values())}))
    assert "llama-3-8b" in text
    assert f"{len(rows)} models" in text


def test_a_model_by_alias_shows_its_library_name_and_both_counts() -> None:
    card = show_model("deepseek-ai/DeepSeek-V3").to_dict()
    assert card["name"] == "deepseek-v3"
    assert card["parameters"] == pytest.approx(671.0e9, rel=1e-3)
    assert card["active_parameters"] == pytest.approx(37.55e9, rel=1e-3)
    kinds = card["layer_kinds"]
    assert isinstance(kinds, list)
    assert sum(kind["count"] for kind in kinds) == card["layers"]
    text = printed(library_tables.model_card(card))
    assert "3 + 58 = 61" in text
    assert "8 of 256 gated experts" in text


def test_the_parts_of_a_model_sum_to_it() -> None:
    for name in ("llama-3.1-70b", "deepseek-v3", "gpt3-175b", "gpt-oss-120b"):
        card = show_model(name).to_dict()
        kinds = card["layer_kinds"]
        assert isinstance(kinds, list)
        layers = sum(kind["count"] * kind["parameters"] for kind in kinds)
        total = layers + card["embedding_parameters"] + card["head_parameters"]
        assert total == card["parameters"]


def test_every_device_prints_with_its_sources() -> None:
    for device in list_gpus().devices:
        card = show_gpu(device.name).to_dict()
        text = printed(library_tables.gpu_card(card))
        assert device.name in text
        assert "memory" in text


def test_unknown_names_are_unsupported_with_the_nearest() -> None:
    with pytest.raises(UnsupportedError, match=r"llama-3\.1-70b"):
        show_model("llama-3.1-70bb")
    with pytest.raises(UnsupportedError, match="H100"):
        show_gpu("H1000")


def test_a_device_is_added_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my-h100.toml"
    file.write_text(DEVICE)
    added = add_gpu(file, tmp_path / "library")
    assert added.path.is_file()
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path / "library"))
    assert show_gpu("MY-H100").device.memory_bytes == pytest.approx(79.1 * 2**30)
    assert "written to" in printed(library_tables.gpu_added(added.to_dict()))


def test_a_sparse_peak_is_refused_and_nothing_written(tmp_path: Path) -> None:
    file = tmp_path / "sparse.toml"
    file.write_text(DEVICE.replace("989.4", "1979").replace("1979\nmemory", "3958\nmemory"))
    with pytest.raises(InputError, match=r"sparse|dense"):
        add_gpu(file, tmp_path / "library")
    assert not (tmp_path / "library").exists()


def test_a_model_is_added_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(SMALL_LLAMA))
    added = add_model(file, tmp_path / "library", name="tiny")
    monkeypatch.setenv("MESHWRIGHT_LIBRARY", str(tmp_path / "library"))
    assert show_model("tiny").model.parameters == added.card.model.parameters
    with pytest.raises(InputError, match="already"):
        add_model(file, tmp_path / "library", name="tiny")
    add_model(file, tmp_path / "library", name="tiny", force=True)


def test_nothing_is_written_where_nobody_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MESHWRIGHT_LIBRARY", raising=False)
    file = tmp_path / "my-h100.toml"
    file.write_text(DEVICE)
    with pytest.raises(InputError, match="MESHWRIGHT_LIBRARY"):
        add_gpu(file)
