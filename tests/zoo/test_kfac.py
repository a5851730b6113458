"""Factors, inverses and the update of K-FAC, against the same written out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from meshwright.errors import MeshwrightError
from meshwright.runtime.devices import jax_precision
from meshwright.specs.row_text import parse_row
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.kfac import FactoredMatrix, FactoredTensors, Kfac, KfacFactors
from meshwright.zoo.optimizers import optimizer_of, optimizer_problems
from meshwright.zoo.tiny import TINY


def test_factors_are_means_over_tokens_of_what_enters_and_of_the_slopes_of_their_own_losses() -> None:
    with jax_precision("fp64"):
        drawn = np.random.default_rng(0)
        x, matrix = jnp.asarray(drawn.normal(size=(2, 3, 4))), jnp.asarray(drawn.normal(size=(4, 2, 5)))
        wanted = jnp.asarray(drawn.normal(size=(2, 3, 2, 5)))
        empty = KfacFactors(jnp.zeros((4, 4)), jnp.zeros((10, 10)))

        def loss(factors: KfacFactors, matrix: jax.Array) -> jax.Array:
            (made,) = FactoredTensors().into(x, FactoredMatrix(matrix, factors))
            return ((made - wanted) ** 2).sum((2, 3)).mean()

        factors, gradient = jax.grad(loss, argnums=(0, 1))(empty, matrix)
        rows = np.asarray(x).reshape(6, 4)
        slopes = 2 * (rows @ np.asarray(matrix).reshape(4, 10) - np.asarray(wanted).reshape(6, 10))
        assert factors.inputs == pytest.approx(rows.T @ rows / 6)
        assert factors.outputs == pytest.approx(slopes.T @ slopes / 6)
        assert np.asarray(gradient).reshape(4, 10) == pytest.approx(rows.T @ slopes / 6)


def decoder() -> Decoder:
    return Decoder(spec=TINY["llama-tiny"], seq_len=8)


def steps(optimizer: Kfac, count: int) -> list[Any]:
    """Weights, moments and gradients behind each step."""
    model, found = decoder(), []
    weights = model.init(jax.random.key(0))
    moments = optimizer.init(weights)
    gradient = jax.jit(jax.grad(optimizer.loss_of(model)))
    for number in range(count):
        both = optimizer.differentiated(weights, moments)
        gradients = gradient(both, model.batch(number, 2), jax.random.key(number))
        weights, moments = optimizer.update(weights, moments, gradients, jnp.asarray(number))
        found.append((weights, moments, gradients))
    return found


def test_losses_and_gradients_are_those_without_factors() -> None:
    with jax_precision("fp64"):
        model, optimizer = decoder(), Kfac()
        weights = model.init(jax.random.key(0))
        both = optimizer.differentiated(weights, optimizer.init(weights))
        given = model.batch(0, 2), jax.random.key(1)
        value, gradients = jax.value_and_grad(optimizer.loss_of(model))(both, *given)
        plain, own = jax.value_and_grad(model.loss)(weights, *given)
        assert value == pytest.approx(float(plain), rel=1e-12)
        for one, other in zip(*map(jax.tree.leaves, (gradients["weights"], own)), strict=True):
            assert np.asarray(one) == pytest.approx(np.asarray(other), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("behind", [False, True])
def test_inverses_are_of_this_steps_factors_or_of_those_of_the_step_before(behind: bool) -> None:
    with jax_precision("fp64"):
        optimizer = Kfac(behind=behind)
        found = steps(optimizer, 2)
        moments = found[1][1]
        source = found[0 if behind else 1][2]["factors"][0]["q"].outputs
        inverse = moments["inverses"][0]["q"].outputs
        assert np.asarray(inverse) == pytest.approx(np.linalg.inv(source + optimizer.damping * np.eye(len(source))))


def test_new_factors_come_every_so_many_steps_and_their_inverses_with_them_or_one_step_later() -> None:
    def changed(name: str, found: list[Any]) -> list[bool]:
        values = [np.asarray(moments[name][0]["up" if name else ""].inputs) for _, moments, _ in found]
        return [not np.array_equal(a, b) for a, b in pairwise(values)]

    here, behind = steps(Kfac(every=2), 5), steps(Kfac(every=2, behind=True), 5)
    assert changed("factors", here) == changed("factors", behind) == [False, True, False, True]
    assert changed("inverses", here) == [False, True, False, True]
    assert changed("inverses", behind) == [True, False, True, False]


def test_a_matrix_moves_by_adam_of_its_gradient_between_both_inverses() -> None:
    with jax_precision("fp64"):
        optimizer = Kfac(clip=None)
        ((weights, moments, gradients),) = steps(optimizer, 1)
        inverses, gradient = moments["inverses"][0]["out"], gradients["weights"]["layers"][0]["attention"]["out"]
        flat = np.asarray(gradient).reshape(-1, gradient.shape[-1])
        between = np.asarray(inverses.inputs) @ flat @ np.asarray(inverses.outputs)
        old = decoder().init(jax.random.key(0))["layers"][0]["attention"]["out"]
        moved = np.asarray(old - weights["layers"][0]["attention"]["out"]).reshape(flat.shape)
        assert moved == pytest.approx(optimizer.rate * between / (abs(between) + optimizer.epsilon))


def test_optimizers_of_plans_are_those_of_runs() -> None:
    assert optimizer_of("pipefisher:every=3") == Kfac(every=3, behind=True)
    assert optimizer_of("kfac") == Kfac(every=10)
    assert not isinstance(optimizer_of("adamw"), Kfac)


@pytest.mark.parametrize(
    ("optimizer", "plan", "model", "dtype", "what"),
    [
        ("shampoo", "pp2", "gpt-tiny", "fp32", "optimizer shampoo"),
        ("kfac", "pp2", "moe-tiny", "fp32", "moe-tiny"),
        ("kfac", "pp2", "mlp-tiny", "fp32", "the perceptron"),
        ("pipefisher", "pp2", "gpt-tiny", "bf16", "in bf16"),
        ("pipefisher", "tp2.pp1", "gpt-tiny", "fp32", "tp2"),
        ("kfac", "dp2.gc-powersgd4", "gpt-tiny", "fp32", "gc-powersgd4"),
        ("kfac", "pp2.pipedream", "gpt-tiny", "fp32", "pipedream"),
        ("kfac", "dp2.weipipe", "gpt-tiny", "fp32", "weipipe"),
    ],
)
def test_what_no_factors_are_made_of_is_refused(optimizer: str, plan: str, model: str, dtype: str, what: str) -> None:
    row = parse_row(plan, devices=2, global_batch=8, schedules=("pipedream",))
    (problem,) = optimizer_problems(optimizer, row, TINY.get(model), dtype)
    assert what in problem.what


def test_a_setting_that_no_optimizer_has_is_refused() -> None:
    with pytest.raises(MeshwrightError, match="often"):
        list(optimizer_problems("kfac:often=2", None, replace(TINY["gpt-tiny"]), "fp32"))
