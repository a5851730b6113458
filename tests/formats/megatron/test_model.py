"""Shapes of models as options, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from meshwright.formats.megatron import megatron_script, model_facts, translate
from meshwright.formats.megatron.described import SIZES, described_model, describes
from meshwright.formats.megatron.model import model_flags
from meshwright.formats.megatron.model_options import read_facts, read_pattern
from meshwright.formats.megatron.options import read_options
from meshwright.formats.megatron.read import read_flags
from meshwright.library.models import names, resolve
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import LayerRun, ModelSpec, PlanRow
from meshwright.specs.layers.attention import Attention, Indexer
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerSpec
from tests.formats.jobs import DENSE_LAYER, model
from tests.formats.megatron.specs import DEEPSEEK, with_model

GPT2 = ModelSpec(
    name="learned",
    family="gpt2",
    hidden=768,
    vocab=50257,
    max_seq_len=1024,
    runs=(
        LayerRun(
            layers=(
                LayerSpec(
                    attention=Attention(heads=12, kv_heads=12, head_dim=64, qkv_bias=True, out_bias=True),
                    mlp=DenseMlp(ffn_hidden=3072, gated=False, bias=True),
                    norm="layernorm",
                    dropout=True,
                ),
            ),
            repeats=12,
        ),
    ),
    tied_embeddings=True,
    learned_positions=1024,
    final_norm="layernorm",
)


_FULL = LayerSpec(
    attention=Attention(heads=64, kv_heads=8, head_dim=64, qkv_bias=True, out_bias=True, sinks=True),
    mlp=MoeMlp(experts=32, top_k=4, ffn_hidden=2880, gated=True, router_bias=True, bias=True),
)


WINDOWED = replace(
    DEEPSEEK,
    name="windowed",
    runs=(LayerRun(layers=(replace(_FULL, attention=replace(_FULL.attention, window=128)), _FULL), repeats=12),),
    mtp_layers=0,
)


@pytest.mark.parametrize("spec", [DEEPSEEK, GPT2, WINDOWED], ids=lambda spec: spec.name)
def test_shapes_of_models_survive_their_flags(spec: ModelSpec) -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [spec.num_layers]), spec, seq_len=1024)
    read = read_flags(megatron_script(made).text)
    assert read.problems == ()
    facts = model_facts(spec)
    assert {name: read.model[name] for name in facts} == facts


@pytest.mark.parametrize(
    "name",
    [
        *("gpt3-13b", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "qwen3-30b-a3b", "mixtral-8x7b", "glm-4.5-air"),
        *("deepseek-v2-lite", "deepseek-v3", "qwen1.5-moe-a2.7b"),
    ],
)
def test_options_describe_the_model_they_were_written_for(name: str) -> None:
    spec = resolve(name)
    made = with_model(plan_of(PlanRow(gbs=1), [spec.num_layers]), spec, seq_len=1024)
    facts = read_flags(megatron_script(made).text).model
    assert describes(facts)
    found = described_model(facts, name="m", vocab=spec.vocab)
    assert model_facts(found) == {**model_facts(found), **{k: v for k, v in model_facts(spec).items() if k in SIZES}}
    assert (found.parameters, found.active_parameters) == (spec.parameters, spec.active_parameters)


def test_options_lose_no_part_of_a_model_of_the_library() -> None:
    """A script would train another model than the one that was planned."""
    lost = [name for name in names() if not kept_whole(resolve(name))]

    assert not lost


def kept_whole(spec: ModelSpec) -> bool:
    flags, _, problems = model_flags(spec)
    if problems:
        return True
    found = read_back(flags, spec)
    parts = [[without_formats(layer) for layer in model.layers()] for model in (found, spec)]
    return parts[0] == parts[1] and found.parameters == spec.parameters


def read_back(flags: Sequence[tuple[str, str]], spec: ModelSpec) -> ModelSpec:
    words = [
        word for flag, value in flags for word in ([flag, "1" if value.startswith("${") else value][: 1 + bool(value)])
    ]
    facts, problems = read_facts(read_options([*words, "--max-position-embeddings", str(spec.max_seq_len)]))
    assert not problems
    return described_model(facts, name="read", vocab=spec.vocab)


def without_formats(layer: LayerSpec) -> LayerSpec:
    """Formats are said beside the shape, and norms of queries that there are none of have no size."""
    mixer = layer.attention
    plain = isinstance(mixer, Attention) and not mixer.qk_norm
    return replace(layer, wide=False, attention=replace(mixer, qk_scales="head") if plain else mixer)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("attention", {"qk_norm": True, "qk_scales": "all"}),
        ("attention", {"indexer": Indexer(heads=4, dim=64, top_k=128)}),
        ("attention", {"chunk": 512}),
        ("attention", {"value_dim": 64}),
        ("attention", {"head_gate": True}),
        ("mlp", {"null_experts": 4}),
        ("mlp", {"latent": 512}),
        ("mlp", {"router_bias": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_parts_of_a_layer_that_no_option_says_are_refused(part: str, change: dict[str, Any]) -> None:
    base = resolve("mixtral-8x7b")
    layer = next(base.layers())
    changed = replace(layer, **{part: replace(getattr(layer, part), **change)})
    _, _, problems = model_flags(replace(base, runs=(LayerRun(layers=(changed,), repeats=32),)))

    assert f"model.{list(change)[-1]}" in [problem.field for problem in problems]


def test_the_window_of_megatron_leaves_out_the_querys_own_key() -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [24]), WINDOWED)
    arguments = dict(megatron_script(made).arguments)
    assert arguments["--window-size"] == "127,0"
    assert arguments["--window-attn-skip-freq"] == "([1]+[0])*12"


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"embedding_norm": True}, "model.embedding_norm"),
        ({"head_bias": True}, "model.head_bias"),
        ({"final_norm": None}, "model.final_norm"),
        ({"runs": (LayerRun(layers=(DENSE_LAYER, replace(DENSE_LAYER, norms=4)), repeats=4),)}, "model.norms"),
        ({"runs": (LayerRun(layers=(replace(DENSE_LAYER, parallel_block=True),), repeats=8),)}, "model.parallel_block"),
    ],
)
def test_shapes_that_megatron_does_not_build_are_refused(changed: dict[str, Any], field: str) -> None:
    made = with_model(plan_of(PlanRow(gbs=1), [8]), replace(model(8), **changed))
    assert field in [problem.field for problem in translate(made).refused]


def test_patterns_of_layers() -> None:
    assert read_pattern("([0]*3+[1]*2)", 5) == [False] * 3 + [True] * 2
    assert read_pattern("([1]+[0])*2", 4) == [True, False, True, False]
    assert read_pattern("[1,0,1]", 3) == [True, False, True]
    assert read_pattern("2", 4) == [True, False, True, False]
    assert read_pattern("[1]*3", 4) is None
    assert read_pattern("__import__('os')", 4) is None


def flags_of(name: str) -> dict[str, str]:
    flags, _, problems = model_flags(resolve(name))
    assert not problems
    return dict(flags)


def test_constants_of_a_model_are_said() -> None:
    """A Llama-3.1 without them trains with a rope base of 10,000, a DeepSeek-V3 with a softmax router."""
    llama, deepseek = flags_of("llama-3.1-8b"), flags_of("deepseek-v3")
    assert llama["--rotary-base"] == "500000"
    assert "--use-rope-scaling" in llama
    assert "--use-rope-scaling" not in flags_of("llama-3-8b")
    assert deepseek["--moe-router-score-function"] == "sigmoid"
    assert deepseek["--moe-router-topk-scaling-factor"] == "2.5"
    assert {"--moe-router-enable-expert-bias", "--swiglu"} <= set(deepseek)
    assert (deepseek["--rope-type"], deepseek["--rotary-scaling-factor"]) == ("yarn", "40.0")
    assert "--no-rope-fusion" not in deepseek


def test_latent_attention_with_plain_rope_is_not_fused() -> None:
    """Megatron's fused rope of latent attention knows yarn alone, and a run without the switch does not start."""
    kimi = flags_of("kimi-k2")
    assert (kimi["--rope-type"], kimi.get("--no-rope-fusion")) == ("rope", "")
    assert "--no-rope-fusion" not in flags_of("llama-3-8b")


def test_latent_heads_that_do_not_divide_the_hidden_size_have_a_width() -> None:
    """GLM-4.7-Flash has 20 heads over 2,048: without a width Megatron does not start."""
    assert flags_of("glm-4.7-flash")["--kv-channels"] == "256"
    assert "--kv-channels" not in flags_of("deepseek-v3")


def test_what_no_option_says_of_a_model_is_refused() -> None:
    _, _, problems = model_flags(resolve("gemma-2-27b"))
    assert {"model.settings.score_softcap", "model.settings.activation"} <= {problem.field for problem in problems}


def test_a_constant_that_nobody_stated_is_asked_for_when_the_script_starts() -> None:
    assert flags_of("nemotron-4-340b")["--rotary-base"].startswith("${ROTARY_BASE:?")
    assert "--squared-relu" in flags_of("nemotron-4-340b")
