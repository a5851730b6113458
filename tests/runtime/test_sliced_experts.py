"""Slices of sequences with experts: a slice sorts its own tokens by expert, exact or refused with the line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshwright as mw
from meshwright.errors import InputError
from meshwright.runtime.devices import jax_precision
from tests.compiler.models import largest_difference

EXPERTS, WIDTH, TOKENS, SAMPLES, CHOSEN = 4, 6, 8, 6, 2
Experts = Callable[[Any, jax.Array], jax.Array]


def weights() -> Any:
    """Of attention, a router and its experts."""
    drawn = np.random.RandomState(1)
    shapes = {
        "qkv": (3, WIDTH, WIDTH),
        "router": (WIDTH, EXPERTS),
        "up": (EXPERTS, WIDTH, 8),
        "down": (EXPERTS, 8, WIDTH),
    }
    return {name: jnp.asarray(drawn.randn(*shape) * 0.4) for name, shape in shapes.items()}


def batch() -> Any:
    """Tokens, and what is wanted of them."""
    drawn = np.random.RandomState(0)
    return {name: jnp.asarray(drawn.randn(SAMPLES, TOKENS, WIDTH)) for name in ("x", "y")}


class Routed:
    """Rows of tokens, what the router decides for them, and what experts make of them in their order."""

    def __init__(self, own: Any, rows: jax.Array) -> None:
        self.rows = rows
        self.gates, chosen = jax.lax.top_k(jax.nn.softmax(rows @ own["router"]), CHOSEN)
        flat = chosen.reshape(-1)
        self.order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=EXPERTS)
        hidden = jax.nn.relu(jax.lax.ragged_dot(rows[self.order // CHOSEN], own["up"], sizes))
        self.made = jax.lax.ragged_dot(hidden, own["down"], sizes)


def sorted_back(own: Any, x: jax.Array) -> jax.Array:
    routed = Routed(own, x.reshape(-1, WIDTH))
    each = routed.made[jnp.argsort(routed.order)].reshape(-1, CHOSEN, WIDTH)
    return (each * routed.gates[..., None]).sum(1).reshape(x.shape)


def added_back(own: Any, x: jax.Array) -> jax.Array:
    routed = Routed(own, x.reshape(-1, WIDTH))
    made = routed.made * routed.gates.reshape(-1)[routed.order][:, None]
    return jnp.zeros_like(routed.rows).at[routed.order // CHOSEN].add(made).reshape(x.shape)


def chosen_by_sequence(own: Any, x: jax.Array) -> jax.Array:
    """The router reads samples and tokens apart; their choices are put beside one another."""
    gates, chosen = jax.lax.top_k(jax.nn.softmax(x @ own["router"]), CHOSEN)
    order, sizes = jnp.argsort(chosen.reshape(-1)), jnp.bincount(chosen.reshape(-1), length=EXPERTS)
    rows = jnp.repeat(x, CHOSEN, axis=1).reshape(-1, WIDTH)[order]
    made = jax.lax.ragged_dot(jax.nn.relu(jax.lax.ragged_dot(rows, own["up"], sizes)), own["down"], sizes)
    each = made[jnp.argsort(order)].reshape(*gates.shape, WIDTH)
    return (each * gates[..., None]).sum(2)


def recomputed(own: Any, x: jax.Array) -> jax.Array:
    return jax.checkpoint(sorted_back)(own, x)


def with_room_for_two(own: Any, x: jax.Array) -> jax.Array:
    taken = jax.nn.one_hot((x @ own["router"]).argmax(-1), EXPERTS)
    place = jnp.cumsum(taken, 1) * taken
    return x * ((place > 0) & (place <= 2)).sum(-1, keepdims=True)


def first_of_the_order(own: Any, x: jax.Array) -> jax.Array:
    routed = Routed(own, x.reshape(-1, WIDTH))
    return x + routed.made[:1]


def attention(own: Any, x: jax.Array) -> jax.Array:
    q, k, v = jnp.einsum("bsh,phd->pbsd", x, own["qkv"])
    scores = jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), jnp.einsum("bqd,bkd->bqk", q, k), -jnp.inf)
    return x + jax.nn.softmax(scores) @ v


def step_with(experts: Experts, mixed: Any = attention) -> Callable[..., Any]:
    def loss(own: Any, given: Any) -> jax.Array:
        x = mixed(own, given["x"])
        return ((x + experts(own, x) - given["y"]) ** 2).mean()

    def step(state: Any, given: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(state, given)
        return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, state, gradients), value

    return step


def sliced(step: Callable[..., Any], micro_batches: int = 2) -> Any:
    method = mw.LocalPipeline(num_stages=2, num_micro_batches=micro_batches, schedule="seq1f1b-segments2")
    return mw.parallelize(step, method=method)


@pytest.mark.parametrize("experts", [sorted_back, added_back, chosen_by_sequence, recomputed])
def test_slices_that_sort_their_own_tokens_are_the_whole_sequence(experts: Experts) -> None:
    with jax_precision("fp64"):
        step = step_with(experts)
        wanted = jax.jit(step)(weights(), batch())
        assert largest_difference(sliced(step)(weights(), batch()), wanted) < 1e-9


def test_data_ranks_share_the_samples_of_slices_with_experts() -> None:
    with jax_precision("fp64"):
        step = step_with(sorted_back)
        given = {name: jnp.concatenate([value, value[:2]]) for name, value in batch().items()}
        method = mw.PipeshardParallel(
            devices=jax.devices()[:4], num_stages=2, num_micro_batches=2, schedule="terapipe-segments4"
        )
        wanted = jax.jit(step)(weights(), given)
        assert largest_difference(mw.parallelize(step, method=method)(weights(), given), wanted) < 1e-9


@jax.custom_vjp
def by_kernel(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), q @ k.mT, -jnp.inf)) @ v


by_kernel.defvjp(lambda *given: (by_kernel(*given), given), lambda given, back: (back * 0.5, back, back))


def by_rule(own: Any, x: jax.Array) -> jax.Array:
    return by_kernel(*jnp.einsum("bsh,phd->pbsd", x, own["qkv"]))


@pytest.mark.parametrize(
    ("experts", "mixed", "words"),
    [
        (with_room_for_two, attention, r"cumsum mixes tokens: .*test_sliced_experts.py:\d+ \(with_room_for_two\)"),
        (first_of_the_order, attention, r"mixes tokens.*: .*test_sliced_experts.py:\d+ \(first_of_the_order\)"),
        (sorted_back, by_rule, r"that its rule gives earlier tokens .*test_sliced_experts.py:\d+ \(by_rule\)"),
    ],
)
def test_what_experts_or_rules_make_of_whole_sequences_is_refused_with_its_line(
    experts: Experts, mixed: Any, words: str
) -> None:
    with jax_precision("fp64"), pytest.raises(InputError, match=words):
        sliced(step_with(experts, mixed), 1).lower(weights(), batch())
