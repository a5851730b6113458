"""Programs that name devices of their own compute the same without them."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from meshwright.compiler.tracing.unplaced import NotStaged, unplaced

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
W = jax.random.normal(jax.random.key(0), (3, 4))
X = jax.random.normal(jax.random.key(1), (8, 3))


@partial(jax.shard_map, mesh=MESH, in_specs=(P(None, "model"), P("data")), out_specs=P("data"))
def summed(w: Any, x: Any) -> Any:
    y = jax.lax.psum(x @ w.sum(1, keepdims=True), "model") + jax.lax.psum(jax.lax.axis_index("model"), "model")
    y = y + jax.lax.ppermute(y, "data", [(0, 1), (1, 2), (2, 3), (3, 0)])
    return y + jax.lax.pmax(y.max(), "data")


def hinted(w: Any, x: Any) -> Any:
    held = jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P("data")))
    return jax.lax.scan(lambda s, r: (s + r, None), jnp.zeros(4), jax.jit(lambda a: a @ w)(held))[0]


@pytest.mark.parametrize("fun", [summed, hinted])
def test_the_same_comes_of_it_without_the_mesh(fun: Any) -> None:
    found = unplaced(jax.make_jaxpr(fun)(W, X), differentiated=True)
    assert not {"shard_map", "sharding_constraint"} & {eqn.primitive.name for eqn in found.jaxpr.eqns}
    np.testing.assert_allclose(jax.jit(core.jaxpr_as_fun(found))(W, X)[0], jax.jit(fun)(W, X), rtol=1e-6)


def test_what_names_no_devices_stays_as_it_is() -> None:
    closed = jax.make_jaxpr(lambda w, x: x @ w)(W.T[:3], X)
    assert unplaced(closed, differentiated=True) is closed


@jax.custom_jvp
def doubled(x: Any) -> Any:
    return 2 * x


@doubled.defjvp
def _slope_of_all(given: Any, changes: Any) -> Any:
    return doubled(*given), jax.lax.psum(2 * changes[0], "data")


def test_a_rule_that_asks_other_ranks_is_not_differentiated_again() -> None:
    @partial(jax.shard_map, mesh=MESH, in_specs=P("data"), out_specs=P())
    def ruled(x: Any) -> Any:
        return jax.lax.psum(doubled(x), "data")

    with pytest.raises(NotStaged, match=r"derivative of its own: .*tracing/test_unplaced.py:\d+ \(.*ruled\)"):
        unplaced(jax.make_jaxpr(ruled)(X), differentiated=True)
    found = unplaced(jax.make_jaxpr(ruled)(X), differentiated=False)
    np.testing.assert_allclose(core.jaxpr_as_fun(found)(X)[0], ruled(X), rtol=1e-6)


def of_one_rank(x: Any) -> Any:
    return jax.nn.relu(x) + jax.nn.silu(x) * jax.nn.logsumexp(x, -1, keepdims=True) - jax.lax.pmean(x.mean(), "data")


@pytest.mark.parametrize("fun", [jax.nn.relu, of_one_rank])
def test_a_rule_of_one_rank_is_differentiated_as_it_stands(fun: Any) -> None:
    ruled = jax.shard_map(fun, mesh=MESH, in_specs=P("data"), out_specs=P("data"))
    found = unplaced(jax.make_jaxpr(ruled)(X), differentiated=True)
    assert not {"shard_map"} & {eqn.primitive.name for eqn in found.jaxpr.eqns}
    slope = jax.grad(lambda x: (core.jaxpr_as_fun(found)(x)[0] ** 2).sum())(X)
    np.testing.assert_allclose(slope, jax.grad(lambda x: (ruled(x) ** 2).sum())(X), rtol=1e-5, atol=1e-6)
