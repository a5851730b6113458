"""Plans in closed form: which collectives whole blocks need, and that they move the bytes that were priced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.cuts.cut import body_of, cut
from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.sharding.apply import SolvedSharding, StageSetting, shard_stage
from meshwright.compiler.sharding.cost import LogicalMesh, MeshAxis
from meshwright.compiler.sharding.hlo_collectives import Collectives, count_collectives
from meshwright.compiler.tracing.trace import trace_step

DEVICES, HEADS = 8, 8
BYTES = LogicalMesh(axes=(MeshAxis(size=DEVICES, latency_s=1e-9, bytes_per_s=1.0),), flop_per_s=1e3)
"""Seconds of communication are bytes sent by a device, but for a latency that breaks ties."""
SLOW = replace(BYTES, flop_per_s=10.0)
"""Devices so slow that few tokens are worth splitting."""
SENT = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": float(DEVICES), "all-to-all": 1.0}
"""Parts (n - 1) / n of the result that a device sends in a ring."""

Loss = Callable[[Any, Any], jax.Array]


def compiled(loss: Loss, weights: Any, batch: Any, view: LogicalMesh = BYTES) -> tuple[Collectives, SolvedSharding]:
    """Loss and gradients as one program on eight devices in a row, as the solver splits it."""

    def train(state: Any, given: Any) -> Any:
        value, gradients = value_and_grad(loss)(state, given)
        return jax.tree.map(lambda weight, change: weight - 0.1 * change, state, gradients), value

    step = trace_step(train, (weights, batch))
    body = body_of(step.loss, step.wrt)
    (stage,) = cut(body, step.wrt, [len(body.spine)])
    mesh = Mesh(np.array(jax.devices()), ("x",))
    stage, sharding = shard_stage(step, stage, [(view, mesh)], StageSetting())
    program, count = core.jaxpr_as_fun(stage.program), len(stage.parameters)
    lie = [
        NamedSharding(mesh, sharding.specs.get(step.loss.invars[place], PartitionSpec()))
        for place in [*stage.parameters, *stage.others]
    ]

    def run(*operands: Any) -> Any:
        return jax.value_and_grad(lambda *own: program(*own, *operands[count:])[0], tuple(range(count)))(
            *operands[:count]
        )

    avals = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in stage.program.jaxpr.invars]
    out = (NamedSharding(mesh, PartitionSpec()), tuple(lie[:count]))
    text = jax.jit(run, in_shardings=lie, out_shardings=out).lower(*avals).compile().as_text()
    return count_collectives(text), sharding


def sent_bytes(found: Collectives) -> float:
    share = (DEVICES - 1) / DEVICES
    return sum(share * SENT[kind] * size for kind, size in found.result_bytes.items())


def priced_bytes(sharding: SolvedSharding) -> float:
    """The objective without what is computed."""
    compute = sum(
        float(node.compute_s[own]) for node, own in zip(sharding.graph.nodes, sharding.solution.choice, strict=True)
    )
    return sharding.solution.objective_s - compute


def shapes(tree: Any) -> Any:
    return jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), tree, is_leaf=lambda node: isinstance(node, tuple)
    )


def block(weights: Any, x: jax.Array) -> jax.Array:
    """Attention and a feed-forward, each with a way around."""
    q, k, v = (jnp.einsum("bsh,hnd->bsnd", x, weights[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("bqnd,bknd->bnqk", q, k))
    x = x + jnp.einsum("bnqk,bknd,ndh->bqh", scores, v, weights["out"])
    return x + jax.nn.relu(x @ weights["up"]) @ weights["down"]


def transformer(layers: int, hidden: int) -> Any:
    head = (hidden, HEADS, hidden // HEADS)
    one = {
        "q": head,
        "k": head,
        "v": head,
        "out": (HEADS, hidden // HEADS, hidden),
        "up": (hidden, 4 * hidden),
        "down": (4 * hidden, hidden),
    }
    return shapes([one] * layers)


def transformer_loss(weights: Any, x: jax.Array) -> jax.Array:
    for layer in weights:
        x = block(layer, x)
    return jnp.mean(x**2)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_transformer_split_by_heads_and_columns_needs_4_all_reduces_a_layer_less_one(layers: int) -> None:
    found, sharding = compiled(transformer_loss, transformer(layers, 64), shapes((3, 4, 64)), SLOW)
    assert found.count == {"all-reduce": 4 * layers - 1}
    assert sent_bytes(found) == pytest.approx(priced_bytes(sharding), rel=0.01)


def test_a_transformer_split_by_samples_needs_one_all_reduce_of_its_gradients() -> None:
    found, sharding = compiled(transformer_loss, transformer(2, 16), shapes((256, 16, 16)))
    assert found.count == {"all-reduce": 1}
    assert sent_bytes(found) == pytest.approx(priced_bytes(sharding), rel=0.01)


def experts_loss(weights: Any, batch: Any) -> jax.Array:
    """Tokens of a sample go to experts by a fixed dispatch, in groups of one sample (GShard's einsums)."""
    x, dispatch = batch
    given = jnp.einsum("gsec,gsm->egcm", dispatch, x @ weights["before"])
    made = jnp.einsum(
        "egch,ehm->egcm", jax.nn.relu(jnp.einsum("egcm,emh->egch", given, weights["up"])), weights["down"]
    )
    return jnp.mean((jnp.einsum("gsec,egcm->gsm", dispatch, made) @ weights["after"]) ** 2)


def experts_shapes() -> tuple[Any, Any]:
    """Of weights, and of tokens and their dispatch."""
    width, wide, groups, tokens, experts = 16, 512, 64, 32, 8
    weights = shapes(
        {
            "before": (width, width),
            "up": (experts, width, wide),
            "down": (experts, wide, width),
            "after": (width, width),
        }
    )
    return weights, shapes([(groups, tokens, width), (groups, tokens, experts, tokens // experts)])


def test_experts_on_devices_of_their_own_need_4_all_to_alls() -> None:
    found, sharding = compiled(experts_loss, *experts_shapes())
    assert found.count["all-to-all"] == 4
    assert set(found.count) == {"all-to-all", "all-reduce"}
    assert found.count["all-reduce"] == 1
    assert sent_bytes(found) == pytest.approx(priced_bytes(sharding), rel=0.01)


def test_under_tight_memory_no_parameter_is_whole() -> None:
    def loss(given: Any, x: jax.Array) -> jax.Array:
        for weight in given:
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    def train(state: Any, given: Any) -> Any:
        value, gradients = value_and_grad(loss)(state, given)
        return jax.tree.map(lambda weight, change: weight - 0.1 * change, state, gradients), value

    step = trace_step(train, (shapes([(64, 64)] * 4), shapes((256, 64))))
    body = body_of(step.loss, step.wrt)
    (stage,) = cut(body, step.wrt, [len(body.spine)])
    meshes = [(BYTES, Mesh(np.array(jax.devices()), ("x",)))]
    _, free = shard_stage(step, stage, meshes)
    least = sum(float(memory.min()) for memory in free.graph.problem().memory)
    _, split = shard_stage(step, stage, meshes, StageSetting(memory_bytes=1.001 * least))
    own = [step.loss.invars[place] for place in step.wrt]
    assert not any("x" in str(free.specs[var]) for var in own)
    assert all("x" in str(split.specs[var]) for var in own)
    assert split.solution.memory_bytes <= 1.001 * least < free.solution.memory_bytes
    assert split.solution.objective_s > free.solution.objective_s
