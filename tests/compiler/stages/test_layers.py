"""Layers of a loss: found by their period, known by their content."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.cuts.cut import body_of, cut
from meshwright.compiler.cuts.layers import layer_ends
from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.marking import layer_boundary
from meshwright.compiler.stages.layers import find_layers, layer_content
from meshwright.compiler.stages.search import Layers
from meshwright.compiler.tracing.trace import LossReader
from meshwright.errors import InputError
from tests.compiler.models import initial, step, tokens


def test_repeated_layers_are_cut_where_only_the_stream_crosses() -> None:
    state, batch = jax.eval_shape(initial), jax.eval_shape(lambda: tokens(8))
    layers = Layers.of(*LossReader(step, (state, batch)).read(2))
    assert len(layers.ends) == 6  # embedding, four layers, head
    assert all([var.aval.shape for var in part.carried_out] == [(4, 6, 8)] for part in layers.parts[:-1])
    contents = [layer_content(part) for part in layers.parts]
    assert len(set(contents)) == 3
    assert contents[1] == contents[2] == contents[3] == contents[4]
    products = [sum(e.primitive.name == "dot_general" for e in part.program.jaxpr.eqns) for part in layers.parts]
    assert products == [0, 6, 6, 6, 6, 1]


def read(loss: Any, *shapes: Any) -> Any:
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return flat_jaxpr(lambda *given: [loss(*given)], avals).jaxpr


def test_a_loss_without_repeated_layers_is_cut_into_equal_work() -> None:
    sizes = [(8, 64), *((64 >> k, 32 >> k) for k in range(5))]

    def loss(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return x.sum()

    jaxpr = read(loss, (8, 8), *sizes)
    ends = find_layers(body_of(jaxpr, range(1, 7)))
    assert ends[-1] == len(body_of(jaxpr, range(1, 7)).spine)
    assert list(ends) == sorted(set(ends))


def test_layers_end_by_hand_where_they_are_marked() -> None:
    def marked(x: Any, *weights: Any) -> Any:
        for place, weight in enumerate(weights):
            x = jnp.tanh(x @ weight)
            if place in (0, 3):
                x = layer_boundary(x)
        return x.sum()

    body = body_of(read(marked, (4, 4), *[(4, 4)] * 6), range(1, 7))
    products = [sum(eqn.primitive.name == "dot_general" for eqn in body.spine[:end]) for end in find_layers(body)]
    assert products == [1, 4, 6]
    assert layer_ends(body, 3) == find_layers(body)
    assert layer_ends(body, 2)[0] in find_layers(body)
    with pytest.raises(InputError, match="4 stages for a loss of 3 layers"):
        layer_ends(body, 4)
    x, weights = jnp.ones((2, 4)), [jnp.eye(4) * 0.5] * 6
    plain = jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(weights[0])
    same = jax.grad(lambda w: jnp.tanh(layer_boundary(jnp.tanh(x @ w)) @ w).sum())(weights[0])
    assert jnp.array_equal(jax.jit(jax.vmap(layer_boundary))(plain), same)


def test_stacked_layers_are_layers_and_alike() -> None:
    def loss(x: Any, stacked: Any, last: Any) -> Any:
        x, _ = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, stacked)
        return (x @ last).sum() + (stacked**2).sum()

    layers = Layers.of(read(loss, (4, 8), (5, 8, 8), (8, 8)), (1, 2))
    assert len(layers.ends) == 6
    assert layers.contents[1] == layers.contents[2] == layers.contents[3]
    shapes = [
        [part.program.jaxpr.invars[place].aval.shape for place in range(len(part.parameters))] for part in layers.parts
    ]
    assert shapes == [[(1, 8, 8)]] * 5 + [[(8, 8)]]


def test_what_a_layer_computes_tells_layers_apart_and_names_do_not() -> None:
    def loss(x: Any, a: Any, b: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x @ a) @ b)).sum()

    def other(x: Any, a: Any, b: Any) -> Any:
        return (jnp.tanh(jnp.sin(x @ a) @ b)).sum()

    keys = []
    for each in (loss, loss, other):
        jaxpr = read(each, (4, 4), (4, 4), (4, 4))
        body = body_of(jaxpr, (1, 2))
        keys.append(layer_content(cut(body, (1, 2), (len(body.spine),))[0]))
    assert keys[0] == keys[1] != keys[2]
