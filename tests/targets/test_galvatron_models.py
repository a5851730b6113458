"""The model of Galvatron's trainer: of a YAML of sizes beside its own, or by a name with layers of its own number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.app.check import CheckReport
from meshwright.library.models import spec
from meshwright.targets.galvatron.described import with_layers

TRAINER = """\
paths:
  sizes: sizes.yaml
runtime:
  parallel:
    pp_deg: 1
    global_tp_deg: 1
    global_ep_deg: {ep}
    default_dp_type: zero2
    galvatron_config_path: null
  model:
    model_size: mistral-7b
    set_layernum_manually: 1
    num_layers: 4
{more}  train:
    global_batch_size: 32
    chunks: 1
    seq_length: 1024
    use_flash_attn: true
"""
SIZES = """\
hidden_size: 4096
num_layers: 32
num_attention_heads: 32
num_query_groups: 8
vocab_size: 32000
normalization: RMSNorm
gated_linear_unit: true
position_embedding_type: rope
untie_embeddings_and_output_weights: true
num_moe_experts: 8
moe_ffn_hidden_size: 14336
moe_router_topk: 2
"""


def checked(folder: Path, *, more: str = "", ep: int = 1, sizes: str | None = SIZES) -> CheckReport:
    if sizes is not None:
        (folder / "sizes.yaml").write_text(sizes)
    (folder / "train_dist.yaml").write_text(TRAINER.format(more=more, ep=ep))
    return mw.check(folder / "train_dist.yaml", cluster="8xA100-80", search=False)


PATH = "    model_config_path: ${paths.sizes}\n"


def test_sizes_of_another_file_are_the_model_and_the_trainers_own_stand_over_them(tmp_path: Path) -> None:
    report = checked(tmp_path, more=PATH.replace("${paths.sizes}", "sizes.yaml"), ep=8)
    assert report.inputs is not None
    assert (report.name, report.violations) == ("ep8.dp8.z2.mbs4.gbs32.gpipe", ())
    model = report.inputs.model
    assert (model.name, model.num_layers, model.is_moe, model.max_seq_len) == ("mistral-7b", 4, True, 1024)


def test_a_path_that_stands_elsewhere_in_the_file_is_followed_where_its_file_is_here(tmp_path: Path) -> None:
    text = TRAINER.format(more=PATH, ep=1).replace("  sizes: sizes.yaml", "  model_config_path: sizes.yaml")
    (tmp_path / "sizes.yaml").write_text(SIZES)
    (tmp_path / "train_dist.yaml").write_text(text.replace("paths.sizes", "paths.model_config_path"))
    report = mw.check(tmp_path / "train_dist.yaml", cluster="8xA100-80", search=False)
    assert report.inputs is not None
    assert report.inputs.model.is_moe


def test_sizes_that_are_not_here_are_asked_for(tmp_path: Path) -> None:
    (violation,) = checked(tmp_path, more=PATH.replace("${paths.sizes}", "gone.yaml")).violations[:1]
    assert (violation.code, violation.what) == ("ASK", "gone.yaml is not here")


def test_layers_that_are_unlike_any_known_are_refused(tmp_path: Path) -> None:
    sizes = SIZES.replace("RMSNorm", "LayerNorm")
    report = checked(tmp_path, more=PATH.replace("${paths.sizes}", "sizes.yaml"), sizes=sizes)
    assert "make no layer that is known" in report.violations[0].why


def test_a_named_model_has_the_layers_that_the_file_sets(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report.inputs is not None
    assert report.violations == ()
    assert (report.inputs.model.num_layers, report.inputs.model.hidden) == (4, 4096)


@pytest.mark.parametrize("layers", [1, 3, 7, 48, 61, 70])
def test_a_model_of_other_layers_keeps_its_first_ones(layers: int) -> None:
    whole = spec("deepseek-v3")
    cut = with_layers(whole, layers)
    both = zip(cut.layers(), whole.layers(), strict=False)
    assert cut.num_layers == layers
    assert all(one == other for one, other in both)


FOLLOWED = PATH.replace("${paths.sizes}", "sizes.yaml")
DENSE = "\n".join(line for line in SIZES.splitlines() if "moe" not in line and "groups" not in line)
GPT = DENSE.replace("RMSNorm", "LayerNorm").replace("rope", "learned_absolute").replace("unit: true", "unit: false")
GPT += "\nadd_bias_linear: true\n"


def test_another_key_of_the_file_says_where_the_sizes_are(tmp_path: Path) -> None:
    report = checked(tmp_path, more=PATH)
    assert report.violations == ()
    assert report.inputs is not None
    assert report.inputs.model.is_moe


def test_the_trainers_own_keys_are_the_models_where_the_sizes_have_them_not(tmp_path: Path) -> None:
    more = FOLLOWED + "    num_query_groups: 4\n    num_moe_experts: 8\n    moe_ffn_hidden_size: 1024\n"
    report = checked(tmp_path, more=more, sizes=DENSE)
    assert report.inputs is not None
    assert report.inputs.model.is_moe
    assert report.inputs.model == read_sizes(
        tmp_path / "other", DENSE + more.replace(FOLLOWED, "").replace("    ", "\n")
    )
    assert report.launch is not None
    assert not any(said.option.startswith("model.num") for said in report.launch.unpriced)


@pytest.mark.parametrize(
    ("line", "taken"),
    [
        ("rotary_base: 1000000", 10000),
        ("moe_router_topk: 4", 2),
        ("norm_epsilon: 1e-6", 1e-5),
        ("rotary_base: 10000", 0),
    ],
)
def test_what_the_adapter_leaves_to_the_trainers_own_yaml_is_not_taken(tmp_path: Path, line: str, taken: float) -> None:
    """Its adapter writes over what has no default; the rest keeps the default, or what the trainer's YAML says."""
    name, _, value = line.partition(": ")
    report = checked(tmp_path, more=FOLLOWED, sizes=f"{SIZES}\n{line}\n", ep=8)
    assert report.inputs is not None
    told = [note for note in report.inputs.model.notes if note.startswith(name)]
    assert (f"{name} {value}" in told[0] and f"keeps {taken}," in told[0]) if taken else not told
    own = checked(tmp_path, more=f"{FOLLOWED}    {line}\n", sizes=SIZES, ep=8)
    assert own.inputs is not None
    same = replace(own.inputs.model, notes=()) == replace(report.inputs.model, notes=())
    assert same == (not taken)


def read_sizes(folder: Path, sizes: str) -> object:
    folder.mkdir()
    report = checked(folder, more=FOLLOWED, sizes=sizes)
    assert report.inputs is not None
    return report.inputs.model


@pytest.mark.parametrize(
    ("more", "sizes", "what"),
    [
        ("moe_shared_expert_intermediate_size: 2048", SIZES, "model.moe_shared_expert_intermediate_size is 2048"),
        ("num_query_groups: 8", GPT, "model.num_query_groups is 8"),
        ("rotary_base: abc", SIZES, "model.rotary_base is 'abc'"),
        ("norm_epsilon: [1]", SIZES, "model.norm_epsilon is [1]"),
    ],
)
def test_what_no_layer_is_built_of_is_refused(tmp_path: Path, more: str, sizes: str, what: str) -> None:
    assert checked(tmp_path, more=f"{FOLLOWED}    {more}\n", sizes=sizes).violations[0].what == what


def test_groups_as_many_as_heads_and_numbers_as_text_are_read(tmp_path: Path) -> None:
    more = f"{FOLLOWED}    num_query_groups: 32\n    norm_epsilon: 1e-5\n"
    assert checked(tmp_path, more=more, sizes=GPT).violations == ()
