"""Stages differentiated one by one are the whole loss differentiated."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core

from meshwright.compiler.cost import eqn_flop
from meshwright.compiler.cuts.cut import body_of, cut
from meshwright.compiler.cuts.layers import crossing_bytes, layer_ends
from meshwright.compiler.cuts.stage_programs import StageJaxprs, split_backward, stage_programs
from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError
from tests.compiler.models import LAYERS, LENGTH, WIDTH, initial, largest_difference, loss, step, tokens

BATCH = 4


def traced() -> Any:
    return trace_step(step, (initial(), tokens(BATCH)))


def run(program: core.ClosedJaxpr, *operands: Any) -> list[Any]:
    return jax.jit(core.jaxpr_as_fun(program))(*operands)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_gradients_through_stages(count: int, split: bool) -> None:
    read = traced()
    body = body_of(read.loss, read.wrt)
    stages = cut(body, read.wrt, layer_ends(body, count))
    programs = [stage_programs(stage, last=stage is stages[-1]) for stage in stages]
    state, batch = initial(), tokens(BATCH)
    operands = [*jax.tree.leaves(state[0]), *jax.tree.leaves(batch)]
    carried: list[Any] = []
    memory = []
    results: dict[int, Any] = {}
    for half in programs:
        stage = half.stage
        given = [*(operands[i] for i in stage.parameters), *carried, *(operands[i] for i in stage.others)]
        made = run(half.forward, *given)
        carried = made[: len(stage.carried_out)]
        results.update(zip(stage.results, made[len(carried) :], strict=False))
        memory.append([*(given[i] for i in half.kept), *made[len(carried) + len(stage.results) :]])
    found: dict[int, Any] = {}
    gradients: list[Any] = []
    for half, kept in zip(programs[::-1], memory[::-1], strict=True):
        made = backward(half, [*kept, *gradients], split)
        gradients = made[: len(half.carried_in)]
        for operand, value in zip(half.stage.parameters, made[len(gradients) :], strict=True):
            found[operand] = found[operand] + value if operand in found else value
    (value, _), expected = jax.value_and_grad(loss, has_aux=True)(state[0], batch)
    assert abs(results[0] - value) < 1e-5
    assert largest_difference([found[i] for i in range(len(found))], expected) < 1e-5


def backward(half: StageJaxprs, operands: list[Any], split: bool) -> list[Any]:
    if not split:
        return run(half.backward, *operands)
    parts = split_backward(half)
    first = run(parts.inputs, *operands)
    inputs = first[: len(half.carried_in)]
    return [*inputs, *run(parts.weights, *(operands[i] for i in parts.kept), *first[len(inputs) :])]


def test_cuts_go_between_layers() -> None:
    read = traced()
    body = body_of(read.loss, read.wrt)
    stages = cut(body, read.wrt, layer_ends(body, LAYERS))
    assert all([var.aval.shape for var in stage.carried_out] == [(BATCH, LENGTH, WIDTH)] for stage in stages[:-1])
    weights = initial()[0]
    per_layer = len(jax.tree.leaves(weights["layers"][0]))
    # The embedding is the first operand, used by the first stage and, as the head, by the last.
    assert [len(stage.parameters) for stage in stages] == [per_layer + 1, per_layer, per_layer, per_layer + 1]
    ends = layer_ends(body, LAYERS)
    assert crossing_bytes(body)[[end - 1 for end in ends[:-1]]].tolist() == [4 * BATCH * LENGTH * WIDTH] * (LAYERS - 1)


def test_more_stages_than_operations_are_refused() -> None:
    read = traced()
    body = body_of(read.loss, read.wrt)
    with pytest.raises(InputError, match="stages for a loss of"):
        layer_ends(body, len(body.spine) + 1)


@pytest.mark.parametrize(
    ("fun", "shapes", "flop"),
    [
        (lambda a, b: a @ b, [(4, 8), (8, 16)], 2 * 4 * 8 * 16),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), [(3, 4, 8), (3, 8, 16)], 3 * 2 * 4 * 8 * 16),
        (lambda a: jax.lax.scan(lambda c, w: (c @ w, None), jnp.ones((2, 4)), a)[0], [(5, 4, 4)], 5 * 2 * 2 * 4 * 4),
        (lambda a: jax.checkpoint(lambda x: x @ x)(a), [(4, 4)], 2 * 4**3),
        (lambda a: a.sum(), [(4, 4)], 16),
        (lambda a: a.reshape(-1)[::2], [(4, 4)], 0),
    ],
)
def test_operations_in_closed_form(fun: Any, shapes: list[tuple[int, ...]], flop: float) -> None:
    program = jax.make_jaxpr(fun)(*(jnp.zeros(shape) for shape in shapes))
    assert sum(eqn_flop(eqn) for eqn in program.jaxpr.eqns) == flop
