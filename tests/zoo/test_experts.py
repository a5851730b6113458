"""Routing: every token gets the mean of its experts, weighted by the router; a full expert takes no more."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.specs.layers.moe import MoeMlp
from meshwright.zoo.experts import expert_weights, experts, routed
from meshwright.zoo.feed_forward import mlp

SPEC = MoeMlp(experts=4, top_k=2, ffn_hidden=8, gated=True)
HIDDEN = 6


def test_a_token_gets_what_its_experts_make_of_it() -> None:
    weights = expert_weights(SPEC, HIDDEN, jax.random.key(0), 1.0)
    x = jax.random.normal(jax.random.key(1), (2, 5, HIDDEN))
    found, balance = jax.jit(partial(experts, SPEC, capacity_factor=None))(weights, x)
    shares = jax.nn.softmax(x @ weights["router"])
    for sample in range(2):
        for place in range(5):
            weight, chosen = jax.lax.top_k(shares[sample, place], 2)
            made = [
                jax.jit(mlp)({name: weights[name][one] for name in ("up", "down", "gate")}, x[sample, place])
                for one in chosen.tolist()
            ]
            wanted = sum(share * one for share, one in zip(weight / weight.sum(), made, strict=True))
            np.testing.assert_allclose(found[sample, place], wanted, atol=1e-5)
    assert float(balance.min()) > 0.5


def test_a_balanced_router_scores_one() -> None:
    weights = expert_weights(SPEC, HIDDEN, jax.random.key(0), 1.0)
    even = {**weights, "router": jnp.zeros_like(weights["router"])}
    _, balance = experts(SPEC, even, jnp.ones((1, 4, HIDDEN)), capacity_factor=None)
    assert balance.tolist() == [pytest.approx(1.0)]


def test_a_full_expert_takes_no_more() -> None:
    weights = expert_weights(SPEC, HIDDEN, jax.random.key(0), 1.0)
    # All tokens alike: all want the same two experts, which have room for half of them.
    x = jnp.broadcast_to(jax.random.normal(jax.random.key(2), (HIDDEN,)), (1, 8, HIDDEN))
    found, _ = experts(SPEC, weights, x, capacity_factor=1.0)
    taken = jnp.abs(found[0]).max(-1) > 0
    assert taken.tolist() == [True] * 4 + [False] * 4


def test_a_router_with_groups_stays_in_those_it_chose_first() -> None:
    """4 experts of 2 of 8 groups; of a group that is alone at the top all, if the top k are that many."""
    spec = MoeMlp(experts=32, top_k=4, ffn_hidden=8, gated=True, groups=8, groups_per_token=2)
    weights = expert_weights(spec, HIDDEN, jax.random.key(0), 1.0)
    x = jax.random.normal(jax.random.key(1), (2, 50, HIDDEN))
    chosen = np.asarray(routed(spec, weights, x)) // 4
    assert max(len(set(token)) for token in chosen.reshape(-1, 4).tolist()) <= 2
    free = np.asarray(routed(MoeMlp(experts=32, top_k=4, ffn_hidden=8, gated=True), weights, x)) // 4
    assert max(len(set(token)) for token in free.reshape(-1, 4).tolist()) > 2
