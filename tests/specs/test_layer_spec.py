"""Layers as runs: nothing is lost, and the period is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.specs.layer_spec import LayerSpec, layer_runs
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp


@given(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=40))
def test_runs_keep_the_layers(widths: list[int]) -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=1)
    layers = [LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=width, gated=True)) for width in widths]
    runs = layer_runs(layers)
    assert [layer for run in runs for _ in range(run.repeats) for layer in run.layers] == layers


def test_runs_find_the_period() -> None:
    attention = Attention(heads=1, kv_heads=1, head_dim=1)
    a, b = (LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=width, gated=True)) for width in (1, 2))
    assert [(len(run.layers), run.repeats) for run in layer_runs([a] * 80)] == [(1, 80)]
    assert [(len(run.layers), run.repeats) for run in layer_runs([a, b] * 40)] == [(2, 40)]
    assert [(len(run.layers), run.repeats) for run in layer_runs([b] * 3 + [a] * 58)] == [(1, 3), (1, 58)]
    assert [(len(run.layers), run.repeats) for run in layer_runs([a, a, a, b] * 9 + [a])] == [(4, 9), (1, 1)]
