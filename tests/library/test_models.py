"""Models by name, alias, path and pipe; parameters as published."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.library import models
from meshwright.library.models import add_model_file, library_models, model_aliases, names, resolve, spec

DATA = Path(models.__file__).parent / "data" / "models"
SHAPES = Path(__file__).parents[3] / "shared" / "calculon" / "models"
LLAMA: dict[str, Any] = json.loads((DATA / "llama-3-8b.json").read_text())["config"]

# Weights in the published checkpoints (safetensors headers on Hugging Face, text model only), or the count that the
# paper prints where there is no checkpoint.
PUBLISHED = {
    "llama-2-7b": 6.738e9,
    "llama-2-13b": 13.016e9,
    "llama-2-70b": 68.977e9,
    "codellama-34b": 33.744e9,
    "llama-3-8b": 8.0303e9,
    "llama-3-70b": 70.554e9,
    "llama-3.1-8b": 8.0303e9,
    "llama-3.1-70b": 70.554e9,
    "llama-3.1-405b": 405.85e9,
    "llama-3.2-1b": 1.2358e9,
    "llama-3.2-3b": 3.2127e9,
    "llama-3.3-70b": 70.554e9,
    "llama-1-65b": 65.286e9,
    "tinyllama-1.1b": 1.1000e9,
    "deepseek-llm-67b": 67.425e9,
    "mistral-7b": 7.2417e9,
    "mistral-7b-v0.3": 7.248e9,
    "mistral-nemo-12b": 12.248e9,
    "mistral-small-24b": 23.572e9,
    "mistral-large-123b": 122.61e9,
    "mixtral-8x7b": 46.703e9,
    "mixtral-8x22b": 140.62e9,
    "qwen2.5-0.5b": 0.49403e9,
    "qwen2.5-1.5b": 1.5437e9,
    "qwen2.5-3b": 3.0859e9,
    "qwen2.5-7b": 7.6156e9,
    "qwen2.5-14b": 14.770e9,
    "qwen2.5-32b": 32.764e9,
    "qwen2.5-72b": 72.706e9,
    "qwen1.5-moe-a2.7b": 14.316e9,
    "qwen2-57b-a14b": 57.41e9,
    "qwen3-4b": 4.0225e9,
    "qwen3-8b": 8.1907e9,
    "qwen3-14b": 14.768e9,
    "qwen3-32b": 32.762e9,
    "qwen3-30b-a3b": 30.532e9,
    "qwen3-235b-a22b": 235.09e9,
    "qwen3-coder-480b-a35b": 480.15e9,
    "deepseek-v2-lite": 15.706e9,
    "deepseek-v2": 235.74e9,
    "deepseek-v3": 671.03e9,
    "kimi-k2": 1026.4e9,
    "gemma-7b": 8.5377e9,
    "gemma-2-2b": 2.6143e9,
    "gemma-2-9b": 9.2417e9,
    "gemma-2-27b": 27.227e9,
    "gemma-3-1b": 0.99989e9,
    "gemma-3-4b": 3.8803e9,
    "gemma-3-12b": 11.766e9,
    "gemma-3-27b": 27.009e9,
    "phi-2": 2.7797e9,
    "phi-3-mini": 3.8211e9,
    "phi-3-medium": 13.960e9,
    "phi-3.5-moe": 41.873e9,
    "phi-4": 14.660e9,
    "phi-4-mini": 3.836e9,
    "gpt2": 124.44e6,
    "gpt2-medium": 354.82e6,
    "gpt2-large": 774.03e6,
    "gpt2-xl": 1557.6e6,
    "gpt-neox-20b": 20.555e9,
    "pythia-1.4b": 1.4146e9,
    "pythia-6.9b": 6.8573e9,
    "pythia-12b": 11.846e9,
    "opt-1.3b": 1.3158e9,
    "opt-6.7b": 6.6585e9,
    "opt-13b": 12.853e9,
    "opt-30b": 29.975e9,
    "bloom-7b1": 7.0690e9,
    "bloom-176b": 176.247e9,
    "falcon-7b": 6.9217e9,
    "falcon-40b": 41.303e9,
    "gpt-oss-20b": 20.915e9,
    "gpt-oss-120b": 116.83e9,
    "gpt3-175b": 174.6e9,
    "megatron-18b": 18.4e9,
    "megatron-40b": 39.1e9,
    "megatron-76b": 76.1e9,
    "megatron-145b": 145.6e9,
    "megatron-310b": 310.1e9,
    "megatron-1t": 1008.0e9,
    "turing-530b": 529.6e9,
    "palm-8b": 8.63e9,
    "palm-62b": 62.50e9,
    "palm-540b": 540.35e9,
    "mpt-7b": 6.6493e9,
    "nemotron-4-340b": 341.0e9,
}

# Active weights: what one token visits, embedding and head included.
ACTIVE = {
    "mixtral-8x7b": 12.88e9,
    "mixtral-8x22b": 39.15e9,
    "qwen3-30b-a3b": 3.353e9,
    "qwen3-235b-a22b": 22.19e9,
    "deepseek-v2": 21.38e9,
    "deepseek-v3": 37.55e9,
    "llama-4-scout": 17.17e9,
    "llama-4-maverick": 17.18e9,
}


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_as_published(name: str) -> None:
    tolerance = 3e-3 if name == "megatron-18b" else 1e-3  # 18.4 is printed with three digits
    assert spec(name).parameters == pytest.approx(PUBLISHED[name], rel=tolerance)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-72b", 72_706_203_648),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v3", 671_026_404_352),
        ("gemma-2-27b", 27_227_128_320),
        ("gemma-3-27b", 27_009_346_304),
        ("phi-4", 14_659_507_200),
        ("gpt2-xl", 1_557_611_200),
        ("gpt-neox-20b", 20_554_567_680),
        ("opt-13b", 12_853_473_280),
        ("bloom-176b", 176_247_271_424),
        ("falcon-7b", 6_921_720_704),
        ("gpt-oss-120b", 116_829_156_672),
    ],
)
def test_one_of_each_family_to_the_last_norm_and_bias(name: str, count: int) -> None:
    assert spec(name).parameters == count


@pytest.mark.parametrize("name", sorted(ACTIVE))
def test_active_parameters(name: str) -> None:
    assert spec(name).active_parameters == pytest.approx(ACTIVE[name], rel=1e-3)


def test_gpt_oss_active_counts_the_head_and_not_the_embedding_on_its_card() -> None:
    for name, card in (("gpt-oss-120b", 5.13e9), ("gpt-oss-20b", 3.61e9)):
        model = spec(name)
        assert model.active_parameters - model.vocab * model.hidden == pytest.approx(card, rel=2e-3)


def test_falcon_180b_is_tied_and_179_5_billion_with_a_head_of_its_own() -> None:
    model = spec("falcon-180b")
    assert model.tied_embeddings
    assert model.parameters + model.vocab * model.hidden == pytest.approx(179.5e9, rel=1e-3)


def test_deepseek_v3_counts_its_mtp_module_apart() -> None:
    model = spec("deepseek-v3")
    assert model.mtp_layers == 1
    assert model.mtp_parameters == pytest.approx(11.61e9, rel=1e-3)


def test_gopher_and_chinchilla_lack_only_their_relative_position_projections() -> None:
    for name, printed in (("gopher-280b", 280e9), ("chinchilla-70b", 70e9)):
        model = spec(name)
        assert model.parameters + model.num_layers * model.hidden**2 == pytest.approx(printed, rel=3e-3)


@pytest.mark.skipif(not SHAPES.is_dir(), reason="the Calculon model set is not here")
@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("anthropic-52B", "anthropic-52b"),
        ("chinchilla", "chinchilla-70b"),
        ("gopher-280B", "gopher-280b"),
        ("gpt3-13B", "gpt3-13b"),
        ("gpt3-175B", "gpt3-175b"),
        ("lamda", "lamda-137b"),
        ("megatron-126M", "megatron-126m"),
        ("megatron-1T", "megatron-1t"),
        ("megatron-22B", "megatron-22b"),
        ("megatron-40B", "megatron-40b"),
        ("megatron-5B", "megatron-5b"),
        ("palm-540B", "palm-540b"),
        ("turing-530B", "turing-530b"),
    ],
)
def test_paper_shapes_agree_with_calculons(file: str, name: str) -> None:
    theirs = json.loads((SHAPES / f"{file}.json").read_text())
    ours = spec(name)
    layer = ours.kinds()[0]
    assert (ours.hidden, ours.max_seq_len, ours.num_layers) == (
        theirs["hidden"],
        theirs["seq_size"],
        theirs["num_blocks"],
    )
    assert (layer.attention.heads, layer.attention.head_dim) == (theirs["attn_heads"], theirs["attn_size"])
    assert layer.mlp.ffn_hidden == theirs["feedforward"]


# Names


def test_the_library_is_whole() -> None:
    on_disk = sorted(path.stem for path in DATA.glob("*.json") if path.stem != "index")
    assert on_disk == names()
    assert len(on_disk) >= 45
    for name in on_disk:
        entry = json.loads((DATA / f"{name}.json").read_text())
        assert set(entry) == {"source", "config"}
        assert entry["source"]
        assert spec(name).name == name


def test_every_name_and_alias_finds_its_model_and_no_other() -> None:
    for name in names():
        assert resolve(name).name == name
        for alias in model_aliases(name):
            assert resolve(alias).name == name, alias


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("Llama-3.1-70B-Instruct", "llama-3.1-70b"),
        ("LLAMA 3.1 70B", "llama-3.1-70b"),
        ("llama3.1_70b", "llama-3.1-70b"),
        ("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b"),
        ("Mixtral 8x7B", "mixtral-8x7b"),
        ("GPT-3 175B", "gpt3-175b"),
        ("opt-1.3b", "opt-1.3b"),
        ("opt-13b", "opt-13b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("megatron-530b", "turing-530b"),
        ("chinchilla", "chinchilla-70b"),
        ("bigscience/bloom", "bloom-176b"),
    ],
)
def test_names_without_case_and_punctuation(text: str, name: str) -> None:
    assert resolve(text).name == name


def test_an_unknown_name_offers_the_nearest_and_a_path() -> None:
    with pytest.raises(UnsupportedError) as caught:
        resolve("llama-3.1-71b")
    (problem,) = caught.value.problems
    assert caught.value.exit_code == 4
    assert caught.value.code == "MW401"
    assert "llama-3.1-70b" in problem.fix
    assert "config.json" in problem.fix
    assert "network" in problem.why
    with pytest.raises(UnsupportedError):
        resolve("somebody/unheard-of")
    with pytest.raises(UnsupportedError):
        spec("unheard-of")


@given(st.text(max_size=30))
def test_any_text_is_found_or_refused(text: str) -> None:
    try:
        outcome = resolve(text, stdin=io.BytesIO(b"")).name in names()
    except MeshwrightError as error:
        outcome = error.exit_code in (2, 4)
    assert outcome


def test_rows_for_a_table() -> None:
    rows = {row["name"]: row for row in library_models()}
    row = rows["llama-3.1-70b"]
    assert row["parameters"] == 70_553_706_496
    assert row["family"] == "llama"
    assert "meta-llama/Llama-3.1-70B" in row["aliases"]
    assert row["source"]
    assert row["built_in"]


# Files, folders, pipes


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(models.LIBRARY_VARIABLE, raising=False)
    return tmp_path


def test_a_file_a_folder_and_a_pipe_say_the_same(here: Path) -> None:
    folder = here / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (here / "other.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    by_folder, by_file = resolve(folder), resolve(str(folder / "config.json"))
    assert by_folder.name == by_file.name == "my-model"
    assert resolve("my-model").name == "my-model"
    assert resolve("other.json").name == "other"
    piped = resolve("-", stdin=io.BytesIO(json.dumps(LLAMA).encode()))
    assert resolve("-", stdin=io.StringIO(json.dumps(LLAMA))) == piped
    assert piped.parameters == by_folder.parameters == spec("llama-3-8b").parameters
    assert piped.name == "stdin"


class Configuration:
    """As transformers' own says what it holds."""

    def to_dict(self) -> dict[str, object]:
        return {**LLAMA, "_name_or_path": "meta-llama/Meta-Llama-3-8B"}


def test_the_content_of_a_config_is_a_model_too(here: Path) -> None:
    expected = spec("llama-3-8b").parameters
    for stated, name in ((LLAMA, "llama"), (json.dumps(LLAMA), "llama"), (Configuration(), "Meta-Llama-3-8B")):
        found = resolve(stated)
        assert (found.name, found.parameters) == (name, expected)
        assert (models.config_of(stated) or {})["model_type"] == "llama"
    with pytest.raises(InputError, match="the model's text is not JSON"):
        resolve("{model_type: llama}")


def test_a_name_wins_over_a_folder_unless_it_is_written_as_a_path(here: Path) -> None:
    (here / "mistral-7b").mkdir()
    (here / "mistral-7b" / "config.json").write_text(json.dumps(LLAMA))
    assert resolve("mistral-7b").family == "mistral"
    assert resolve("./mistral-7b").family == "llama"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (b"", "MW202", "is empty"),
        (b" \n\t", "MW202", "is empty"),
        (b"\x80\x04\x95\xff", "MW202", "is not text"),
        (b"PK\x03\x04\x00\x00", "MW202", "is not text"),
        (b"{", "MW203", "is not JSON"),
        (b"{'model_type': 'llama'}", "MW203", "line 1, column 2"),
        (b"[" * 100_000, "MW203", "is not JSON"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "MW203", "is not JSON"),
        (b"[1, 2]", "MW204", "one JSON object"),
        (b"null", "MW204", "one JSON object"),
        (b"{}", "MW204", "model_type is missing"),
        (b'{"_class_name": "FluxTransformer2DModel"}', "MW204", "diffusion models are not planned"),
        (b'{"model_type": "llama", "hidden_size": NaN}', "MW204", "hidden_size is nan"),
    ],
)
def test_bad_content(here: Path, content: bytes, code: str, words: str) -> None:
    (here / "config.json").write_bytes(content)
    for attempt in (lambda: resolve("./config.json"), lambda: resolve("-", stdin=io.BytesIO(content))):
        with pytest.raises(InputError, match=words) as caught:
            attempt()
        assert caught.value.code == code
        assert caught.value.exit_code == 2


def test_bad_paths(here: Path) -> None:
    (here / "folder").mkdir()
    for text, code in [("./nothing", "MW201"), ("nothing.json", "MW201"), ("a/b/c", "MW201"), ("folder", "MW202")]:
        with pytest.raises(InputError) as caught:
            resolve(text)
        assert caught.value.code == code, text
        assert len(caught.value.problems) == 1
    for text in ("", "  ", "./" + "x" * 5000, "./a\0b"):
        with pytest.raises(InputError):
            resolve(text)


def test_a_file_of_a_gibibyte_is_not_read(here: Path) -> None:
    with (here / "large.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(InputError, match="larger than 64 MiB"):
        resolve("./large.json")
    if os.path.exists("/dev/zero"):
        with pytest.raises(InputError, match="a device or a socket, no file"):
            resolve("/dev/zero")


# The user's own


def test_an_added_model_is_found_by_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "Tiny.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    library = here / "library"
    written = add_model_file("Tiny.json", library)
    assert written == library / "models" / "tiny.json"
    assert [path.name for path in written.parent.iterdir()] == ["tiny.json"]
    with pytest.raises(UnsupportedError):
        resolve("tiny-model-nobody-added")
    monkeypatch.setenv(models.LIBRARY_VARIABLE, str(library))
    assert "tiny" in names()
    assert resolve("TINY").num_layers == 2
    assert "Tiny.json" in spec("tiny").source
    with pytest.raises(InputError, match="already"):
        add_model_file("Tiny.json")
    (here / "Tiny.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 3}))
    add_model_file("Tiny.json", replace=True)
    assert resolve("tiny").num_layers == 3
    (library / "models" / "broken.json").write_text("{}")
    rows = {row["name"]: row for row in library_models()}
    assert "model_type" in str(rows["broken"]["error"])
    assert rows["tiny"]["built_in"] is False


@pytest.mark.parametrize(
    "name", ["", "../up", "a/b", ".hidden", "llama-3-8b", "Llama 3 8B", "meta-llama/Llama-3.1-70B"]
)
def test_names_that_cannot_be_added(here: Path, name: str) -> None:
    (here / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InputError):
        add_model_file("config.json", here / "library", name=name)
    assert not (here / "library").exists()


def test_nothing_is_written_for_a_bad_config_or_without_a_library(here: Path) -> None:
    (here / "config.json").write_text(json.dumps(LLAMA | {"hidden_size": "wide"}))
    with pytest.raises(InputError, match="hidden_size"):
        add_model_file("config.json", here / "library", name="mine")
    with pytest.raises(InputError, match=models.LIBRARY_VARIABLE):
        add_model_file("config.json", name="mine")
    assert sorted(path.name for path in here.iterdir()) == ["config.json"]
    (here / "config.json").write_text(json.dumps(LLAMA))
    (here / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        add_model_file("config.json", here / "file", name="mine")


def test_a_plan_of_a_file_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plans.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UnsupportedError, match="a plan of a file is no model") as refused:
        resolve("plans.json#2")
    assert refused.value.problems[0].fix == "--plan plans.json#2"
