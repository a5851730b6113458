"""What is read from a step: the loss, what is a mean and what a sum, and steps that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.compiler.joins import How, Join
from meshwright.compiler.marking import value_and_grad
from meshwright.compiler.tracing.trace import trace_step
from meshwright.errors import InputError
from tests.compiler.models import initial, step, tokens

WEIGHTS = jnp.ones((3, 2))
BATCH = jnp.ones((8, 3))


def descent(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(weights: jax.Array, batch: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = value_and_grad(loss)(weights, batch)
        return weights - 0.1 * gradient, value

    return step


TWO = descent(lambda w, x: (x @ w).mean())


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda w, x: (x[::-1] @ w).var(), "rev mixes samples"),
        (lambda w, x: (jnp.sort(x, 0) @ w)[:3].mean(), "sort mixes samples"),
        (
            lambda w, x: jax.lax.scan(lambda h, _: (jnp.tanh(h - h.mean(0)) @ w.T @ w, None), x @ w, length=1024)[
                0
            ].var(),
            "in the midst of a loop",
        ),
        (lambda w, x: (jax.lax.pad(x, 0.0, ((1, -1, 0), (0, 0, 0))) @ w).mean(), "pad mixes samples"),
        (lambda w, x: (jnp.cumsum(x, 0) @ w).mean(), "cumsum mixes samples"),
    ],
)
def test_what_micro_batches_would_not_compute_is_refused_with_its_line(loss: Callable[..., Any], words: str) -> None:
    with pytest.raises(InputError, match=rf"whole batch does: .*{words}.*: .*tracing/test_trace.py:\d+") as raised:
        trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4)
    assert 'loss="mean"' in str(raised.value)
    said = trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4, mean=True)
    assert said.mean
    assert [join.how for join in said.joins] == [How.AVERAGED]


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: (x @ w)[0].sum(),
        lambda w, x: (x @ w).max(),
        lambda w, x: jnp.sort((x @ w).sum(1))[:3].mean(),
        lambda w, x: (x @ w - (x @ w).mean(0)).var(),
        lambda w, x: jnp.sqrt((x @ w).mean()) * jnp.sqrt((x @ w).max()),
        lambda w, x: jnp.sqrt((x @ w).mean()) + (w**2).sum(),
    ],
)
def test_where_samples_meet_late_each_is_computed_by_itself_first(loss: Callable[..., Any]) -> None:
    met = trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4)
    assert re.search(r"samples meet at tests/compiler/tracing/test_trace.py:\d+ .*computed twice", met.meeting)
    assert met.loss.outvars[0].aval.shape == ()
    assert any(eqn.primitive.name == "batch_joint" for eqn in met.before)
    said = trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4, mean=True)
    assert (said.meeting, said.mean) == ("", True)


def test_a_step_is_read_from_shapes_alone() -> None:
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (initial(), tokens(8)))
    read = trace_step(step, shapes, micro_batches=4)
    assert read.micro_batches == 4
    assert not read.mean
    assert len(read.gradients) == len(read.wrt) == len(jax.tree.leaves(initial()[0]))
    assert all(read.jaxpr.invars[place].aval.shape[0] == 2 for place in read.batch)


@pytest.mark.parametrize(
    ("fun", "micro_batches", "words"),
    [
        (lambda w, x: w - x.sum(), 2, "takes no gradient of a scalar"),
        (lambda w, x: TWO(TWO(w, x)[0], x), 2, "takes 2 gradients"),
        (lambda w, x: jax.lax.fori_loop(0, 3, lambda _, w: TWO(w, x)[0], w), 2, "takes 1 in loops or branches"),
        (descent(lambda w, x: (x @ w).mean()), 3, "num_micro_batches=2"),
    ],
)
def test_steps_that_cannot_be_read(fun: Callable[..., Any], micro_batches: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        trace_step(fun, (WEIGHTS, BATCH), micro_batches=micro_batches)
    assert words in str(caught.value)


SEEN: list[Any] = []


def counted(w: jax.Array, x: jax.Array) -> jax.Array:
    SEEN.append(None)
    return (x @ w).mean() * len(SEEN)


def drawn(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w + np.random.random(2)).mean()


def told(w: jax.Array, x: jax.Array) -> jax.Array:
    def halved(value: jax.Array) -> jax.Array:
        jax.debug.print("{}", value)
        return value / 2

    return (x @ w).mean() * jax.lax.while_loop(lambda value: value > 1, halved, w[0, 0])


def asked(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w).mean() if w[0, 0] > 0 else (x @ w).std()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (counted, "computes something else each time it is traced: tests/compiler/tracing/test_trace.py:{} (counted)"),
        (drawn, "computes something else each time it is traced: an array made by numpy differs"),
        (asked, "needs the number behind a traced value: tests/compiler/tracing/test_trace.py:{} (asked)"),
    ],
)
def test_what_python_does_beside_the_step_is_told_with_its_line(loss: Callable[..., Any], words: str) -> None:
    SEEN.clear()
    with pytest.raises(InputError) as raised:
        trace_step(descent(loss), (WEIGHTS, BATCH), micro_batches=4)
    code = loss.__code__
    last = max(line for _, _, line in code.co_lines() if line)
    assert words.format(last) in str(raised.value)
    assert str(raised.value).count("step at tests/compiler/tracing/test_trace.py") == 1


def reading(w: jax.Array, x: jax.Array) -> jax.Array:
    gradient = value_and_grad(lambda w, x: (x @ w).mean())(w, x)[1]
    return w - gradient * SEEN[0]


def test_what_is_left_behind_is_told_with_its_line() -> None:
    SEEN.clear()
    jax.make_jaxpr(lambda w: SEEN.append(w))(1.0)
    with pytest.raises(InputError) as raised:
        trace_step(reading, (WEIGHTS, BATCH))
    line = reading.__code__.co_firstlineno + 2
    assert f"uses a value that an earlier trace left behind: tests/compiler/tracing/test_trace.py:{line}" in str(
        raised.value
    )


def test_what_is_printed_in_rounds_that_nobody_counts_is_refused_with_its_line() -> None:
    line = told.__code__.co_firstlineno + 2
    with pytest.raises(InputError, match=rf"does more than compute \(debug\w*\): .*tracing/test_trace.py:{line}"):
        trace_step(descent(told), (WEIGHTS, BATCH))


def test_what_reads_no_samples_is_refused() -> None:
    with pytest.raises(InputError, match=r"no samples in arguments \(1,\) of 1"):
        trace_step(descent(lambda w, x: (x @ w).mean()), (WEIGHTS,))
    with pytest.raises(InputError, match="no samples to split into 2 micro-batches"):
        trace_step(descent(lambda w, x: (w * x).mean()), (WEIGHTS, 1.0), micro_batches=2)


def test_a_batch_of_no_samples_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of 0 samples"):
        trace_step(descent(lambda w, x: (x @ w).mean()), (WEIGHTS, BATCH[:0]))


@pytest.mark.parametrize("shape", [(0, 3), (0, 2, 3), (0, 6)])
def test_an_array_of_no_rows_in_the_batch_belongs_to_all_samples(shape: tuple[int, ...]) -> None:
    loss = descent(lambda w, x: (x[0] @ w).mean() + (x[1].reshape(-1, 3) @ w).sum())
    step = trace_step(loss, (WEIGHTS, (BATCH, jnp.ones(shape))), micro_batches=2)
    assert [step.jaxpr.invars[place].aval.shape for place in step.batch] == [BATCH[::2].shape]


def test_what_has_another_first_axis_than_most_belongs_to_all_samples() -> None:
    loss = descent(lambda w, x: (x[0] @ w).mean() + x[1].mean() + (x[2] @ w).sum())
    step = trace_step(loss, (WEIGHTS, (BATCH, jnp.ones((3, 2)), BATCH)), micro_batches=2)
    assert [step.jaxpr.invars[place].aval.shape for place in step.batch] == [BATCH[::2].shape] * 2


def test_numbers_of_python_and_strings_beside_a_loss_are_handed_through() -> None:
    def step(w: jax.Array, x: jax.Array) -> Any:
        def loss(w: jax.Array) -> Any:
            return (x @ w).mean(), {"parts": 2, "name": "mean", "rows": x.sum(1)}

        (_, beside), gradient = jax.value_and_grad(loss, has_aux=True)(w)
        return w - gradient, beside["rows"].reshape(beside["parts"], -1), len(beside["name"])

    assert [var.aval.shape for var in trace_step(step, (WEIGHTS, BATCH)).jaxpr.outvars] == [(3, 2), (2, 4), ()]


def plain_loss(w: jax.Array, x: jax.Array) -> jax.Array:
    return (x @ w).mean()


KEPT = jax.jit(jax.value_and_grad(plain_loss))


@pytest.mark.parametrize(
    "gradient",
    [
        lambda w, x: jax.grad(plain_loss)(w, x),
        lambda w, x: jax.value_and_grad(plain_loss)(w, x)[1],
        lambda w, x: KEPT(w, x)[1],
        lambda w, x: jax.vjp(plain_loss, w, x)[1](1.0)[0],
        lambda w, x: jax.grad(lambda w: plain_loss(w, x))(w) * 2,
    ],
)
def test_a_gradient_is_found_however_it_is_taken(gradient: Callable[..., Any]) -> None:
    KEPT(WEIGHTS, BATCH)
    step = trace_step(lambda w, x: w - gradient(w, x), (WEIGHTS, BATCH), micro_batches=2)
    assert step.joins == (Join(How.ADDED),)
    assert [eqn.primitive.name for eqn in step.loss.eqns] == ["dot_general", "reduce_sum", "div"]
    assert not [eqn for eqn in jax.make_jaxpr(KEPT)(WEIGHTS, BATCH).eqns if "meshwright" in str(eqn)]


def test_a_number_and_a_key_in_the_batch_belong_to_all_samples() -> None:
    batch = {"x": BATCH, "rate": 0.1, "key": jax.random.key(0), "old": jax.random.PRNGKey(0)}
    step = trace_step(lambda w, b: w - b["rate"] * jax.grad(plain_loss)(w, b["x"]), (WEIGHTS, batch), micro_batches=2)
    assert [step.jaxpr.invars[place].aval.shape for place in step.batch] == [(4, 3)]
