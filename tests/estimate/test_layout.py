"""Layers over stages: all of them, none empty, as balanced as layers allow, the head weighed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InfeasibleError
from meshwright.estimate.layout import ModelLayout, expand, token_flop
from meshwright.library.models import spec
from meshwright.ops.edges import edge_work
from meshwright.ops.layers import layer_work
from meshwright.specs import ModelSpec, PlanRow
from meshwright.specs.operators import Linear, Scan, Scores, StreamTokens
from tests.estimate.cases import DENSE, LATENT, MIXED, MODELS


def loads(model: ModelSpec, split: tuple[int, ...], seq_len: int = 4096) -> list[float]:
    layout = ModelLayout.of(model, seq_len)
    flop = [layout.kind_flop[layout.kinds.index(layer)] for layer in model.layers()]
    ends = np.cumsum((0, *split))
    per_stage = [float(sum(flop[first:last])) for first, last in itertools.pairwise(ends)]
    per_stage[-1] += layout.tail_flop
    return per_stage


@given(model=st.sampled_from(MODELS), seq_len=st.sampled_from([1024, 32768]), data=st.data())
def test_no_split_has_a_lighter_heaviest_stage(model: ModelSpec, seq_len: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, min(4, model.num_layers)))
    split = ModelLayout.of(model, seq_len).split(parts)
    assert (sum(split), len(split), min(split) >= 1) == (model.num_layers, parts, True)
    cuts = itertools.combinations(range(1, model.num_layers), parts - 1)
    every = (tuple(np.diff((0, *cut, model.num_layers)).tolist()) for cut in cuts)
    best = min(max(loads(model, other, seq_len)) for other in every)
    assert max(loads(model, split, seq_len)) == pytest.approx(best, rel=1e-9)


def test_the_stage_with_the_head_holds_fewer_layers() -> None:
    split = ModelLayout.of(spec("llama-3-8b"), 8192).split(4)
    assert split[-1] < max(split[:-1])
    assert sum(split) == 32


@given(model=st.sampled_from(MODELS), pp=st.integers(1, 4), vpp=st.integers(1, 2))
def test_ranges_follow_the_loop_placement(model: ModelSpec, pp: int, vpp: int) -> None:
    layout = ModelLayout.of(model, 4096)
    ranges = layout.ranges(pp, vpp)
    in_order = [ranges[stage % pp][stage // pp] for stage in range(pp * vpp)]
    assert [first for first, _ in in_order] == [0, *(last + 1 for _, last in in_order[:-1])]
    assert in_order[-1][1] == model.num_layers - 1
    first, behind = np.array([pair[0] for pair in in_order]), np.array([pair[1] + 1 for pair in in_order])
    counted = layout.counts(first, behind).sum(axis=0)
    assert dict(zip(layout.kinds, counted.tolist(), strict=True)) == dict(model.kind_counts())


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="13 virtual stages for 12 layers"):
        ModelLayout.of(DENSE, 4096).split(13)


def test_flop_of_a_token() -> None:
    """2 per weight it meets, and 2 (d_qk + d_v) per attended key and head: (s + 1) / 2 of them with a causal mask."""
    (kind,) = DENSE.kinds()
    weights = kind.parameters(4096) - kind.norm_parameters(4096)
    attention = 2 * 32 * 256 * (8192 + 1) / 2
    assert token_flop(layer_work(kind, 4096, "flash"), 8192) == 2 * weights + attention
    assert token_flop(edge_work(DENSE, "head"), 8192) == 2 * 4096 * 32000


def test_a_token_meets_its_experts_only() -> None:
    kind = MIXED.last_layer()
    work = layer_work(kind, 2048, "flash")
    met = kind.active_parameters(2048) - kind.norm_parameters(2048)
    assert token_flop(work, 1) == 2 * met + 2 * 16 * 256
    assert LATENT.num_layers == 8


def test_an_indexer_and_a_recurrence_count_as_what_the_model_asks_for() -> None:
    """2 per element of a query and earlier key of each head: (s + 1) / 2 keys; a recurrence per head and token."""
    work = layer_work(DENSE.last_layer(), 4096, "flash")
    indexer = Scores(name="index", module="self_attn", heads=64, dim=128, picked=2048)
    assert token_flop(replace(work, ops=(indexer,)), 8191) == 2 * 64 * 128 * 4096
    scan = Scan(
        name="scan",
        module="mixer",
        heads=8,
        state=64 * 128,
        chunk=256,
        recurrence_flop=1000.0,
        forward_flop=1.0,
        backward_flop=1.0,
        forward_elements=1.0,
        backward_elements=1.0,
        exchanged=1.0,
    )
    assert token_flop(replace(work, ops=(scan,)), 8192) == 8 * 1000


def test_layers_of_images_count_by_their_tokens_for_each_of_the_text() -> None:
    """Three tokens of an image for two of the text: half as much again of every product."""
    work = layer_work(DENSE.last_layer(), 4096, "flash")
    only = replace(work, ops=tuple(op for op in work.ops if isinstance(op, Linear)))
    images = replace(only, tokens=StreamTokens(sequences=6.0, length=1024, whole=True))
    assert token_flop(images, 4096) == 1.5 * token_flop(only, 4096)


def test_a_window_caps_the_keys() -> None:
    model = spec("gemma-2-9b")
    windowed, full = sorted(model.kinds(), key=lambda kind: kind.attention.window or 1 << 30)
    short, long = (token_flop(layer_work(kind, model.hidden, "flash"), 32768) for kind in (windowed, full))
    assert short < long
    assert token_flop(layer_work(windowed, model.hidden, "flash"), 4096) == token_flop(
        layer_work(full, model.hidden, "flash"), 4096
    )


def test_blocks_are_the_first_layers_of_each_chunk() -> None:
    row = PlanRow(pp=2, vpp=2, schedule="interleaved", gbs=4, recompute="block", recompute_layers=2)
    plan = expand(row, DENSE, 4096)
    for chunk in plan.pipelines[0].chunks():
        kinds = [plan.strategies[run.strategy].recompute.kind for run in chunk.runs]
        assert kinds == ["full", "none"][: len(chunk.runs)]
        assert chunk.runs[0].layers == min(2, chunk.num_layers)
