"""Tensor groups that are grids: products and whole steps run on virtual devices, and send what is priced."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from meshwright.compiler.grid import DeviceGrid
from meshwright.compiler.sharding.hlo_collectives import count_collectives
from meshwright.runtime.devices import jax_precision
from meshwright.runtime.model_grid import model_grid
from meshwright.runtime.parity import parity_of, run_alone, run_parallel
from meshwright.runtime.step_collectives import step_collectives
from meshwright.runtime.training.run import Training
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.row_text import parse_row
from meshwright.strategies import TENSORS
from meshwright.zoo.blocks import Blocked
from meshwright.zoo.splits import block_split
from meshwright.zoo.tiny import TINY
from tests.runtime.priced_collectives import context_bytes, copies_bytes, tensor_bytes

M, K, N = 64, 64, 256
HEAD = 32


@pytest.mark.parametrize(
    ("name", "tp", "forward", "backward"), [("2d", 4, 5120, 10240), ("25d", 8, 4608, 13312), ("3d", 8, 4608, 4608)]
)
def test_a_product_sends_the_elements_of_its_paper(name: str, tp: int, forward: float, backward: float) -> None:
    """M = K = 64, N = 256: out of one device in the compiled programs, equal to the product of one device."""
    blocks = TENSORS[name].blocks(tp)
    assert blocks is not None
    grid = DeviceGrid.of(tensor=tp, blocks=blocks)
    mesh = jax.make_mesh(*zip(*((size, axis) for axis, size in grid.sizes), strict=True), devices=jax.devices()[:tp])
    axes = block_split(grid, "mlp.up")
    given, matrix, made = (
        grid.activations(blocks.stream),
        PartitionSpec(axes[0], axes[1]),
        grid.activations(blocks.inner),
    )
    held = Blocked(grid=grid, blocks=blocks)
    product = jax.jit(
        jax.shard_map(lambda x, w: held.into(x, w)[0], mesh=mesh, in_specs=(given, matrix), out_specs=made)
    )
    rng = np.random.default_rng(0)

    def placed(shape: tuple[int, ...], spec: PartitionSpec) -> Any:
        return jax.device_put(rng.normal(size=shape), NamedSharding(mesh, spec))

    with jax_precision("fp64"):
        x, w, slope = placed((M // 2, 2, K), given), placed((K, N), matrix), placed((M // 2, 2, N), made)
        ahead = count_collectives(product.lower(x, w).compile().as_text())
        y, pull = jax.vjp(product, x, w)
        back = jax.jit(lambda pull, slope: pull(slope)).lower(pull, slope).compile()
        assert ahead.sent_bytes / 8 == forward
        assert count_collectives(back.as_text()).sent_bytes / 8 == backward
        found = y, *back(pull, slope)
        flat, steep = np.asarray(x).reshape(M, K), np.asarray(slope).reshape(M, N)
        for got, expected in zip(found, (flat @ w, steep @ np.asarray(w).T, flat.T @ steep), strict=True):
            np.testing.assert_allclose(np.asarray(got).reshape(expected.shape), expected, atol=1e-12)


def training(plan: str, model: str = "llama-tiny", seq_len: int = 16) -> Training:
    row = parse_row(plan, devices=8, global_batch=0, schedules=())
    return Training(
        spec=_one_layer(model), row=replace(row, gbs=row.gbs or row.dp * row.mbs), stage_layers=(1,), seq_len=seq_len
    )


def wide(kv_heads: int) -> ModelSpec:
    """A layer beside whose activations sums of a few numbers a token are small."""
    attention = Attention(heads=8, kv_heads=kv_heads, head_dim=HEAD)
    layer = LayerSpec(attention=attention, mlp=DenseMlp(ffn_hidden=512, gated=True))
    return replace(TINY["llama-tiny"], hidden=256, vocab=512, runs=(LayerRun(layers=(layer,), repeats=1),))


def ring_sum_bytes(ranks: int, size_bytes: float) -> float:
    """Out of one of the ranks that sum a value."""
    return 2 * (ranks - 1) / ranks * size_bytes


def held_bytes(one: Training) -> float:
    """Bytes of a tensor rank's weights."""
    grid, held = model_grid(one.row, one.plain_model(), one.seq_len), 0.0
    assert grid is not None
    for path, leaf in jax.tree_util.tree_leaves_with_path(one.initial()["weights"]):
        axes = block_split(grid, jax.tree_util.keystr(path, simple=True, separator="."))
        held += leaf.nbytes / prod(grid.size(names) for names in axes.values())
    return held


def _one_layer(model: str) -> ModelSpec:
    spec = TINY[model]
    return replace(spec, runs=(replace(spec.runs[0], repeats=1),))


@pytest.mark.parametrize("plan", ["tp2d2.dp1.mbs2", "tp2d2.dp2.mbs2", "tp25d2x2.dp1.mbs4", "tp3d2.dp1.mbs4"])
def test_a_step_sends_what_is_priced(plan: str) -> None:
    one = training(plan, seq_len=128)
    assert one.spec is not None
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    found = step_collectives(compiled.runtime)
    for program, phase in (("F0", "forward"), ("B0", "backward")):
        priced = tensor_bytes(one.spec, one.row, one.seq_len, phase, 4.0)
        assert found[program].sent_bytes == pytest.approx(priced, rel=0.01)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(
    ("plan", "forward", "backward"),
    [
        ("tp4.dp1.mbs2", {"all-gather": 3, "reduce-scatter": 3}, {"all-gather": 6, "reduce-scatter": 3}),
        ("tp4.nosp.dp1.mbs2", {"all-reduce": 3}, {"all-reduce": 3}),
    ],
)
def test_sequence_parallelism_gathers_and_scatters_as_priced(
    plan: str, forward: dict[str, int], backward: dict[str, int], kv_heads: int
) -> None:
    """Embedding, attention, MLP and head; sums of a few numbers a token, and of gradients of whole vectors, are beside.

    Ranks that hold the same heads of keys and values sum the gradients of these.
    """
    one = training(plan, seq_len=128)
    spec = wide(kv_heads)
    compiled: Any = (one := replace(one, spec=spec)).step(jax.devices()).lower(one.initial(), one.batch(0))
    found = step_collectives(compiled.runtime)
    copies = {"forward": 0.0, "backward": copies_bytes(spec, one.row, 4.0)}
    assert copies["backward"] == pytest.approx(ring_sum_bytes(one.row.tp // kv_heads, 2 * spec.hidden * HEAD * 4.0))
    for program, phase, most in (("F0", "forward", forward), ("B0", "backward", backward)):
        priced = tensor_bytes(spec, one.row, one.seq_len, phase, 4.0) + copies[phase]
        assert found[program].sent_bytes == pytest.approx(priced, rel=0.01)
        assert {kind: found[program].count[kind] for kind in most if kind != "all-reduce"} == {
            kind: count for kind, count in most.items() if kind != "all-reduce"
        }


@pytest.mark.parametrize("plan", ["tp4.dp2.mbs2", "tp2.nosp.dp4.mbs2", "tp2d2.dp2.mbs2"])
def test_data_ranks_send_their_sums_once_beside_what_tensor_ranks_send(plan: str) -> None:
    """Of two micro-batches."""
    one = training(plan, seq_len=128)
    one = replace(one, spec=wide(kv_heads=4), row=replace(one.row, gbs=2 * one.row.gbs))
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    found = step_collectives(compiled.runtime)
    assert one.spec is not None
    for programs, phase in ((("F0",), "forward"), (("B0", "B0+"), "backward")):
        priced = 2 * tensor_bytes(one.spec, one.row, one.seq_len, phase, 4.0)
        assert sum(found[name].sent_bytes for name in programs) == pytest.approx(priced, rel=0.01)
    assert found["gradients0"].sent_bytes == pytest.approx(ring_sum_bytes(one.row.dp, held_bytes(one)))


@pytest.mark.parametrize("plan", ["tp2.cp2.dp2.mbs1", "tp2.nosp.cp4-a2a2xp2p2.dp1.mbs1", "tp4.cp2-ag.dp1.mbs1"])
def test_tensor_and_context_ranks_send_what_is_priced(plan: str) -> None:
    """Context ranks sum their gradients once a step, together with data ranks."""
    one = replace(training(plan, seq_len=128), spec=wide(kv_heads=4))
    compiled: Any = one.step(jax.devices()).lower(one.initial(), one.batch(0))
    found, priced = step_collectives(compiled.runtime), {}
    assert one.spec is not None
    for phase in ("forward", "backward"):
        parts = (tensor_bytes, context_bytes)
        priced[phase] = sum(part(one.spec, one.row, one.seq_len, phase, 4.0) for part in parts)
    assert found["F0"].sent_bytes == pytest.approx(priced["forward"], rel=0.01)
    # Gradients of norms are sums over tensor ranks besides, of a few numbers.
    assert found["B0"].sent_bytes == pytest.approx(priced["backward"], rel=0.015)
    sums = ring_sum_bytes(one.row.cp_degree * one.row.dp, held_bytes(one))
    assert found["gradients0"].sent_bytes == pytest.approx(sums, rel=0.01)


@pytest.mark.parametrize(
    ("plan", "model"),
    [
        ("tp2d2.dp2.z1.mbs2.gbs8", "llama-tiny"),
        ("tp25d2x2.dp1.mbs4.rc-full", "gpt-tiny"),
        ("tp3d2.dp1.mbs4.gbs8", "gpt-tiny"),
        ("tp3d2.dp1.mbs4.rc-sel", "llama-tiny"),
        ("tp4.dp1.mbs2.gbs8.rc-sel", "gpt-tiny"),
        ("tp4.dp1.mbs2.gbs8.rc-full", "llama-tiny"),
        ("tp4.nosp.dp2.z2.mbs1.gbs8", "llama-tiny"),
        ("tp2.dp4.z3.mbs1.gbs4", "gpt-tiny"),
        ("tp2.cp2.dp2.z1.mbs1.gbs4", "gpt-tiny"),
        ("tp2.nosp.cp4-a2a2xp2p2.dp1.mbs2.rc-sel", "llama-tiny"),
        ("tp2.cp2-burst.dp2.mbs1.rc-full", "llama-tiny"),
    ],
)
def test_steps_equal_one_device(plan: str, model: str) -> None:
    """Dropout, learned positions, tied embeddings and biases of GPT; grouped queries and gates of Llama."""
    with jax_precision("fp64"):
        one = training(plan, model)
        state = one.initial()
        there = run_parallel(one, jax.devices(), 5, state)
        parity = parity_of(there, run_alone(one, 5, state), "fp64", None)
    assert parity.holds
    assert parity.tolerance <= 1e-9


@pytest.mark.parametrize("plan", ["tp2d2.pp2.dp1.mbs2.gbs8", "tp4.pp2.dp1.mbs2.gbs8"])
def test_layers_of_a_pipeline_hand_on_their_blocks(plan: str) -> None:
    layer = LayerSpec(attention=Attention(heads=4, kv_heads=2, head_dim=4), mlp=DenseMlp(ffn_hidden=32, gated=True))
    small = replace(TINY["llama-tiny"], hidden=16, vocab=24, runs=(LayerRun(layers=(layer,), repeats=2),))
    with jax_precision("fp64"):
        row = parse_row(plan, devices=8, global_batch=0, schedules=())
        one = Training(spec=small, row=row, stage_layers=(1, 1), seq_len=8)
        state = one.initial()
        parity = parity_of(run_parallel(one, jax.devices(), 2, state), run_alone(one, 2, state), "fp64", None)
    assert parity.holds
