"""Tokens sorted by expert, multiplied group by group and put back: exact with micro-batches, or refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given as drawn_by
from hypothesis import settings
from hypothesis import strategies as st

import meshwright as mw
from meshwright.compiler.lowering.whole import WholeStepWarning
from meshwright.runtime.devices import jax_precision
from tests.runtime.micro_batch_cases import difference

EXPERTS, WIDTH, TOKENS, PARTS = 4, 6, 24, 4


def weights() -> Any:
    """Of a router and its experts."""
    drawn = np.random.RandomState(1)
    return {
        "router": jnp.asarray(drawn.randn(WIDTH, EXPERTS)),
        "up": jnp.asarray(drawn.randn(EXPERTS, WIDTH, 8)),
        "down": jnp.asarray(drawn.randn(EXPERTS, 8, WIDTH) / 4),
    }


def batch() -> Any:
    """Tokens, and what is wanted of them."""
    drawn = np.random.RandomState(0)
    return {"x": jnp.asarray(drawn.randn(TOKENS, WIDTH)), "y": jnp.asarray(drawn.randn(TOKENS, WIDTH))}


class Routed:
    """What a router decides, and the rows in the order of their experts."""

    def __init__(self, own: Any, given: Any, k: int = 2) -> None:
        self.own, self.k, self.x = own, k, given["x"]
        self.gates, self.chosen = jax.lax.top_k(jax.nn.softmax(self.x @ own["router"]), k)
        self.flat = self.chosen.reshape(-1)
        self.order = jnp.argsort(self.flat)
        self.sizes = jnp.bincount(self.flat, length=EXPERTS)
        self.rows = self.x[self.order // k]

    def made(self, rows: Any = None, sizes: Any = None) -> Any:
        """What experts make of rows."""
        rows, sizes = self.rows if rows is None else rows, self.sizes if sizes is None else sizes
        hidden = jax.nn.relu(jax.lax.ragged_dot(rows, self.own["up"], sizes))
        return jax.lax.ragged_dot(hidden, self.own["down"], sizes)

    def put_back(self, made: Any) -> Any:
        """Rows in the order of the batch, weighted and added up for each token."""
        each = made[jnp.argsort(self.order)].reshape(-1, self.k, WIDTH)
        return (each * self.gates[..., None]).sum(1)


def squared(made: Any, given: Any) -> Any:
    return ((made - given["y"]) ** 2).mean()


def by_inverse(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return squared(routed.put_back(routed.made()), given)


def three_of_four(own: Any, given: Any) -> Any:
    routed = Routed(own, given, 3)
    return squared(routed.put_back(routed.made()), given)


def by_scatter(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    made = routed.made() * routed.gates.reshape(-1)[routed.order][:, None]
    return squared(given["x"].at[routed.order // 2].add(made), given)


def by_unique_scatter(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    back = jnp.zeros((2 * TOKENS, WIDTH), given["x"].dtype).at[routed.order].set(routed.made())
    return squared((back.reshape(-1, 2, WIDTH) * routed.gates[..., None]).sum(1), given)


def by_one_hot(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    sizes = jax.nn.one_hot(routed.chosen, EXPERTS).sum((0, 1)).astype(jnp.int32)
    return squared(routed.put_back(routed.made(sizes=sizes)), given)


def one_expert(own: Any, given: Any) -> Any:
    routed = Routed(own, given, 1)
    flat = jnp.argmax(given["x"] @ own["router"], -1)
    order, sizes = jnp.argsort(flat), (flat[:, None] == jnp.arange(EXPERTS)).sum(0)
    return squared(routed.made(given["x"][order], sizes)[jnp.argsort(order)] * routed.gates, given)


def recomputed(own: Any, given: Any) -> Any:
    return jax.checkpoint(by_inverse)(own, given)


def in_layers(own: Any, given: Any) -> Any:
    def layer(x: Any, own: Any) -> Any:
        routed = Routed(own, {"x": x})
        return x + routed.put_back(routed.made()), routed.sizes.astype(x.dtype)

    stacked = jax.tree.map(lambda w: jnp.stack([w, 0.5 * w]), own)
    x, sizes = jax.lax.scan(layer, given["x"], stacked)
    return squared(x, given) + 0.1 * (sizes / TOKENS).sum()


def summed_in_any_order(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return (routed.made() ** 2).sum() + jnp.sort(given["x"] @ own["router"][:, 0]).sum()


def by_scattered_places(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    inverse = jnp.zeros_like(routed.order).at[routed.order].set(jnp.arange(2 * TOKENS))
    made = jnp.take(routed.made(), inverse, axis=0).reshape(-1, 2, WIDTH)
    return squared(jnp.einsum("bke,bk->be", made, routed.gates), given)


def by_a_list_of_tokens(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    tokens = jnp.repeat(jnp.arange(TOKENS), 2)
    return squared(routed.put_back(routed.made(given["x"][tokens[routed.order]])), given)


def padding_to_one_expert(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    flat = jnp.where(given["y"][:, :1] > 0, routed.chosen, EXPERTS - 1).reshape(-1)
    order, sizes = jnp.argsort(flat), jnp.bincount(flat, length=EXPERTS)
    made = routed.made(given["x"][order // 2], sizes)[jnp.argsort(order)]
    return squared((made.reshape(-1, 2, WIDTH) * routed.gates[..., None]).sum(1), given)


EXACT = [
    by_scattered_places, by_a_list_of_tokens, padding_to_one_expert, by_inverse, three_of_four, by_scatter,
    by_unique_scatter, by_one_hot, one_expert, recomputed, summed_in_any_order,
]  # fmt: skip


def groups_of_another_router(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    other = jax.lax.top_k(given["x"] @ own["router"][:, ::-1], 2)[1].reshape(-1)
    return squared(routed.put_back(routed.made(sizes=jnp.bincount(other, length=EXPERTS))), given)


def groups_beside(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return squared(routed.put_back(routed.made(sizes=jnp.roll(routed.sizes, 1))), given)


def groups_counted_twice(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    sizes = jnp.zeros(EXPERTS, jnp.int32).at[routed.flat // 2].add(1)
    return squared(routed.put_back(routed.made(sizes=sizes)), given)


def capacity(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    kept = (jnp.arange(2 * TOKENS) < 30)[:, None]
    return squared(routed.put_back(jnp.where(kept, routed.made(), 0)), given)


def capacity_by_place(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    kept = (jnp.argsort(routed.order) < 30).reshape(-1, 2, 1)
    return squared((kept * routed.gates[..., None]).sum(1), given)


def neighbours(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return (routed.made().reshape(TOKENS, 2, WIDTH).prod(1)).sum()


def running_sum(own: Any, given: Any) -> Any:
    return (jnp.cumsum(Routed(own, given).made(), 0) ** 2).mean()


def never_put_back(own: Any, given: Any) -> Any:
    routed = Routed(own, given, 1)
    return squared(routed.made(), given)


def backwards(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return squared(routed.put_back(routed.made(given["x"][TOKENS - 1 - routed.order // 2])), given)


def places_as_numbers(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return (routed.made() * routed.order[:, None]).mean()


def places_doubled(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return squared(routed.made()[jnp.argsort(routed.order) // 2 * 2].reshape(-1, 2, WIDTH).sum(1), given)


def capacity_by_scattered_places(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    inverse = jnp.zeros_like(routed.order).at[routed.order].set(jnp.arange(2 * TOKENS))
    return squared(((inverse < 30).reshape(-1, 2) * routed.gates).sum(1, keepdims=True), given)


def tokens_of_others(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    tokens = jnp.tile(jnp.arange(TOKENS), 2)
    return squared(routed.put_back(routed.made(given["x"][tokens[routed.order]])), given)


def dropped_out(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    kept = jax.random.bernoulli(jax.random.key(0), 0.5, (2 * TOKENS, WIDTH))
    return squared(routed.put_back(jnp.where(kept, routed.made(), 0)), given)


def last_one_wins(own: Any, given: Any) -> Any:
    routed = Routed(own, given)
    return squared(jnp.zeros_like(given["x"]).at[routed.order // 2].set(routed.made()), given)


def smallest_half(own: Any, given: Any) -> Any:
    return jnp.sort(given["x"] @ own["router"][:, 0])[: TOKENS // 2].mean()


WHOLE = [
    tokens_of_others, groups_of_another_router, groups_beside, groups_counted_twice, capacity, neighbours, running_sum,
    never_put_back, backwards, places_as_numbers, places_doubled, dropped_out, last_one_wins,
]  # fmt: skip


def beside_nothing(loss: Any) -> Any:
    """As the cases of micro-batches have it, with nothing beside the loss."""

    def both(own: Any, given: Any) -> Any:
        return loss(own, given), ()

    return both


@pytest.mark.parametrize("loss", EXACT, ids=lambda loss: loss.__name__)
def test_experts_by_sorting_are_those_of_the_whole_batch(loss: Any) -> None:
    with jax_precision("fp64"):
        one = mw.LocalPipeline(num_stages=1, num_micro_batches=PARTS)
        assert difference(beside_nothing(loss), one, weights(), batch()) < 1e-9


@pytest.mark.parametrize(
    "loss", [capacity_by_scattered_places, capacity_by_place, smallest_half], ids=lambda loss: loss.__name__
)
def test_what_of_the_order_little_follows_from_is_made_of_the_whole_batch(loss: Any) -> None:
    with jax_precision("fp64"):
        for method in (mw.LocalPipeline(num_stages=1, num_micro_batches=PARTS), mw.DataParallel(num_micro_batches=3)):
            assert difference(beside_nothing(loss), method, weights(), batch()) < 1e-9


@pytest.mark.parametrize("loss", [by_inverse, by_scatter, in_layers], ids=lambda loss: loss.__name__)
def test_so_they_are_on_data_ranks(loss: Any) -> None:
    with jax_precision("fp64"):
        method = mw.DataParallel(num_micro_batches=2, devices=jax.devices()[:2])
        assert difference(beside_nothing(loss), method, weights(), batch()) < 1e-9


@pytest.mark.parametrize("loss", WHOLE, ids=lambda loss: loss.__name__)
def test_what_depends_on_the_order_runs_whole_and_says_its_line(loss: Any) -> None:
    with jax_precision("fp64"):
        one = mw.LocalPipeline(num_stages=1, num_micro_batches=PARTS)
        with pytest.warns(WholeStepWarning, match=r"whole batch does: (sort mixes|statistics of the batch)"):
            assert difference(beside_nothing(loss), one, weights(), batch()) < 1e-9


@settings(max_examples=6, deadline=None)
@drawn_by(experts=st.integers(1, 5), chosen=st.integers(1, 3), seed=st.integers(0, 9), parts=st.sampled_from([2, 3, 6]))
def test_any_router_sends_the_same_tokens_to_the_same_experts(experts: int, chosen: int, seed: int, parts: int) -> None:
    k = min(experts, chosen)

    def loss(own: Any, given: Any) -> Any:
        gates, at = jax.lax.top_k(given["x"] @ own["router"], k)
        flat = at.reshape(-1)
        order = jnp.argsort(flat)
        made = jax.lax.ragged_dot(given["x"][order // k], own["up"], jnp.bincount(flat, length=experts))
        return jnp.sum(made[jnp.argsort(order)].reshape(-1, k, 3) * gates[..., None] * given["y"][:, None, :3]), ()

    drawn = np.random.RandomState(seed)
    with jax_precision("fp64"):
        own = {"router": jnp.asarray(drawn.randn(WIDTH, experts)), "up": jnp.asarray(drawn.randn(experts, WIDTH, 3))}
        assert difference(loss, mw.LocalPipeline(num_stages=1, num_micro_batches=parts), own, batch()) < 1e-9
