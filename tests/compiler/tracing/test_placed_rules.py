"""Functions with derivatives of their own, such as relu, in steps that are traced under a mesh of the user's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import meshwright as mw
from tests.corpus.case import CLASSIFIER, classified, cross_entropy, forward, mlp, sgd
from tests.corpus.table import arrays, difference


@jax.custom_vjp
def squashed(x: Any) -> Any:
    return jnp.tanh(x)


def _kept(x: Any) -> tuple[Any, Any]:
    y = jax.lax.with_sharding_constraint(jnp.tanh(x), P("data"))
    return y, y


squashed.defvjp(_kept, lambda y, g: (jax.lax.with_sharding_constraint(g * (1 - y * y), P("data")),))


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.softplus, squashed])
@pytest.mark.parametrize("method", [mw.DataParallel(num_micro_batches=2), mw.ShardParallel()])
def test_derivatives_of_their_own_under_a_users_mesh(activation: Any, method: Any) -> None:
    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = activation(activation(batch["x"] @ params[0]["w"]) @ params[1]["w"])
            return cross_entropy(forward(params[2:], hidden), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params, batch = mlp(*CLASSIFIER), classified()
    with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
        expected = jax.jit(step)(params, batch)
        found = mw.parallelize(step, method=method)(params, batch)
    assert difference(arrays(found), arrays(expected)) < 1e-5


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("method", [mw.DataParallel(num_micro_batches=2), mw.PipeshardParallel(num_stages=2)])
def test_a_shard_map_that_only_rules_for_derivatives_have(method: Any, *, ahead: bool) -> None:
    """Nothing of the step as it is traced names a mesh; what its rules read when they are asked for does."""
    mesh = jax.make_mesh((2,), ("ranks",), (AxisType.Auto,), devices=jax.devices()[:2])

    def each(run: Any, *given: Any, out: Any) -> Any:
        return jax.shard_map(run, mesh=mesh, in_specs=P("ranks"), out_specs=out)(*given)

    @jax.custom_vjp
    def product(x: Any, weight: Any) -> Any:
        return x @ weight

    def kept(x: Any, weight: Any) -> Any:
        made = each(lambda rows: rows @ weight, x, out=P("ranks")) if ahead else x @ weight
        return made, (x, weight)

    def back(held: Any, slope: Any) -> Any:
        x, weight = held
        summed = each(lambda rows, own: jax.lax.psum(rows.T @ own, "ranks"), x, slope, out=P())
        return slope @ weight.T, x.T @ slope if ahead else summed

    product.defvjp(kept, back)

    def step(params: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.tanh(product(batch["x"], params[0]["w"]))
            return cross_entropy(forward(params[1:], hidden), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params, batch = mlp(*CLASSIFIER), classified()
    found = mw.parallelize(step, method=method)(params, batch)
    assert difference(arrays(found), arrays(jax.jit(step)(params, batch))) < 1e-5


@pytest.mark.parametrize("method", [mw.DataParallel(), mw.Zero3Parallel(), mw.PipeshardParallel(num_stages=2)])
def test_a_derivative_whose_own_backward_is_a_shard_map_over_fewer_devices(method: Any) -> None:
    """A product split over columns, as Megatron writes it: it computes, and its backward sums, on four devices."""

    def step(params: Any, batch: Any) -> Any:
        mesh = jax.make_mesh((4,), ("model",), (AxisType.Auto,), devices=jax.devices()[:4])
        columns = P(None, "model")

        @jax.custom_vjp
        def product(x: Any, weight: Any) -> Any:
            return ahead(x, weight)

        ahead = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(P(), columns), out_specs=columns)
        back = jax.shard_map(
            lambda x, w, slope: (jax.lax.psum(slope @ w.T, "model"), x.T @ slope),
            mesh=mesh,
            in_specs=(P(), columns, columns),
            out_specs=(P(), columns),
        )
        product.defvjp(lambda x, w: (ahead(x, w), (x, w)), lambda kept, slope: back(*kept, slope))

        def loss(params: Any) -> Any:
            hidden = jnp.tanh(product(batch["x"], params[0]["w"]))
            return cross_entropy(forward(params[1:], hidden), batch["y"])

        value, grads = jax.value_and_grad(loss)(params)
        return sgd(params, grads), value

    params, batch = mlp(*CLASSIFIER), classified()
    found = mw.parallelize(step, method=method)(params, batch)
    assert difference(arrays(found), arrays(jax.jit(step)(params, batch))) < 1e-5
