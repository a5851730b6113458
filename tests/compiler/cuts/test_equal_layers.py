"""Programs cut at the layers that they repeat: what is cut, what is equal, and that the parts compute the whole."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend import core

from meshwright.compiler.cuts.equal_layers import (
    LEAST_CALLED,
    LEAST_LAYERS,
    MOST_CALLS,
    CalledEquations,
    ProgramForms,
    layer_parts,
    with_layers_called,
)
from meshwright.compiler.inline import inlined

WIDTH = 4


def layer(weights: Any, x: Any) -> Any:
    """A block with two products, a norm and a shortcut; about 30 equations."""
    own = x - x.mean(-1, keepdims=True)
    own = own / jnp.sqrt((own**2).mean(-1, keepdims=True) + 1e-5) * weights["scale"]
    gate = jax.nn.softmax(own @ weights["up"])
    return x + jax.nn.gelu(own @ weights["up"]) @ weights["down"] * gate


def weights(layers: int, width: int = WIDTH) -> list[Any]:
    drawn = np.random.default_rng(0)

    def own(*shape: int) -> Any:
        return jnp.asarray(drawn.normal(size=shape) * 0.3, jnp.float32)

    return [{"scale": own(width), "up": own(width, width), "down": own(width, width)} for _ in range(layers)]


def forward(layers: list[Any], x: Any) -> Any:
    x = jnp.sin(x)
    for own in layers:
        x = layer(own, x)
    return (x**2).mean()


def adam(layers: list[Any], first: list[Any], second: list[Any]) -> Any:
    first = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, first, layers)
    second = jax.tree.map(lambda old, new: 0.99 * old + 0.01 * new * new, second, layers)
    moved = jax.tree.map(lambda one, a, b: one - 0.1 * a / (jnp.sqrt(b) + 1e-8), layers, first, second)
    return moved, first, second


def program(fun: Any, *operands: Any) -> core.ClosedJaxpr:
    return inlined(jax.make_jaxpr(fun)(*operands))


def parts_of(closed: core.ClosedJaxpr) -> tuple[CalledEquations, ...]:
    return layer_parts(closed, ProgramForms())


def run(closed: core.ClosedJaxpr, parts: tuple[CalledEquations, ...], operands: Any) -> list[Any]:
    """The parts one after the other; the whole where there are none."""
    if not parts:
        return core.jaxpr_as_fun(closed)(*jax.tree.leaves(operands))
    values = dict(zip(closed.jaxpr.invars, jax.tree.leaves(operands), strict=True))
    for part in parts:
        made = core.jaxpr_as_fun(part.program)(*(values[var] for var in part.reads))
        values.update(zip(part.writes, made, strict=True))
    return [values[atom] if isinstance(atom, core.Var) else atom.val for atom in closed.jaxpr.outvars]


@pytest.mark.parametrize("fun", [forward, jax.grad(forward)], ids=["forward", "gradient"])
def test_more_layers_are_no_more_programs(fun: Any) -> None:
    x = jnp.ones((2, WIDTH))
    few, many = (parts_of(program(fun, weights(layers), x)) for layers in (12, 24))
    assert len({part.form for part in few}) == len({part.form for part in many}) < 8
    assert len(many) >= len(few) + 12


def test_an_update_is_cut_by_layer_whatever_its_order() -> None:
    layers = weights(16)
    parts = parts_of(program(adam, layers, layers, layers))
    assert len({part.form for part in parts}) <= 2
    # Weights, first and second moments of a layer, or of one weight.
    assert {len(part.writes) for part in parts} <= {3, 9}


def test_casts_of_all_weights_and_gradients_stand_with_their_layers() -> None:
    def narrow(layers: Any, x: Any) -> Any:
        return forward(jax.tree.map(lambda one: one.astype(jnp.bfloat16), layers), x.astype(jnp.bfloat16))

    closed = program(jax.grad(narrow), weights(12), jnp.ones((2, WIDTH)))
    inside = [part for part in parts_of(closed) if len(part.program.jaxpr.eqns) < len(closed.jaxpr.eqns) / 8]
    casts = [sum(eqn.primitive.name == "convert_element_type" for eqn in part.program.jaxpr.eqns) for part in inside]
    assert sum(casts) >= 0.8 * sum(eqn.primitive.name == "convert_element_type" for eqn in closed.jaxpr.eqns)


def test_few_layers_and_small_programs_stay_whole() -> None:
    x = jnp.ones((2, WIDTH))
    assert parts_of(program(forward, weights(LEAST_LAYERS - 1), x)) == ()
    assert parts_of(program(lambda x: jnp.sin(jnp.cos(jnp.sin(jnp.cos(jnp.sin(jnp.cos(x)))))), x)) == ()


def test_very_many_layers_are_called_several_at_a_time() -> None:
    closed = program(forward, weights(2 * MOST_CALLS), jnp.ones((2, WIDTH)))
    assert len(parts_of(closed)) <= MOST_CALLS + 2


def test_layers_of_two_kinds_are_cut_apart() -> None:
    def both(narrow: Any, wide: Any, x: Any) -> Any:
        return forward(narrow, x) + forward(wide, jnp.concatenate([x, x], axis=1))

    parts = parts_of(program(both, weights(12), weights(12, 2 * WIDTH), jnp.ones((2, WIDTH))))
    times = sorted(sum(part.form == form for part in parts) for form in {part.form for part in parts})
    assert times[-2] >= 11
    assert times[-1] >= 11


@settings(max_examples=20, deadline=None)
@given(
    layers=st.integers(LEAST_LAYERS + 2, 14),
    odd=st.integers(0, 13),
    shared=st.booleans(),
    returned=st.booleans(),
    differentiated=st.booleans(),
)
def test_parts_compute_what_the_whole_does(
    layers: int, odd: int, shared: bool, returned: bool, differentiated: bool
) -> None:
    """Whatever stands between layers, is read by all of them, or is returned from their midst."""

    def fun(own: Any, x: Any, mask: Any) -> Any:
        seen, scale = [], jnp.tanh(mask)
        for place, one in enumerate(own):
            x = layer(own[0] if shared and place == len(own) - 1 else one, x) * scale
            x = jnp.sort(x, axis=0) if place == odd else x
            seen.append(x)
        return (x**2).sum(), (seen[::3] if returned else None, mask, 2.0)

    def both(own: Any, x: Any, mask: Any) -> Any:
        return jax.value_and_grad(fun, has_aux=True)(own, x, mask) if differentiated else fun(own, x, mask)

    operands = weights(layers), jnp.ones((2, WIDTH)).at[1].set(0.5), jnp.ones(WIDTH)
    closed = program(both, *operands)
    parts = parts_of(closed)
    expected = core.jaxpr_as_fun(closed)(*jax.tree.leaves(operands))
    for made in (run(closed, parts, operands), with_layers_called(closed)(*jax.tree.leaves(operands))):
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_nothing_is_computed_twice_or_left_out() -> None:
    closed = program(jax.grad(forward), weights(9), jnp.ones((2, WIDTH)))
    parts = parts_of(closed)
    assert sum(len(part.program.jaxpr.eqns) for part in parts) == len(closed.jaxpr.eqns)
    written = [var for part in parts for var in part.writes]
    assert len(set(written)) == len(written)


def small(layers: list[Any], x: Any) -> Any:
    for own in layers:
        x = x + jnp.tanh(x @ own["up"])
    return (x**2).mean()


def test_layers_that_take_less_than_a_call_are_compiled_together() -> None:
    x = jnp.ones((2, WIDTH))
    assert parts_of(program(jax.grad(small), weights(70), x)) == ()
    many = program(jax.grad(small), weights(400), x)
    parts = parts_of(many)
    assert LEAST_LAYERS < len(parts) <= 2 * len(many.jaxpr.eqns) / LEAST_CALLED
    operands = (weights(400), x)
    wanted = core.jaxpr_as_fun(many)(*jax.tree.leaves(operands))
    for own, one in zip(run(many, parts, operands), wanted, strict=True):
        np.testing.assert_allclose(own, one, rtol=1e-5, atol=1e-6)
