"""Factors of equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from meshwright.compiler.cost import eqn_flop
from meshwright.compiler.sharding.rules import rule_of


def of(fun: Callable[..., Any], *shapes: tuple[int, ...], dtype: Any = jnp.float32) -> Any:
    eqns = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)).jaxpr.eqns
    return rule_of(eqns[-1])


def test_a_product_has_batch_contracted_rows_and_columns() -> None:
    rule = of(lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (2, 3, 4), (2, 4, 5))
    assert rule.sizes == (2, 4, 3, 5)
    assert rule.operands == ((0, 2, 1), (0, 1, 3))
    assert rule.results == ((0, 2, 3),)
    assert rule.dimension_of(rule.results[0]) == [0, -1, 1, 2, -1]


@pytest.mark.parametrize(
    ("old", "new", "operands", "results"),
    [
        ((2, 6, 4), (12, 4), (0, -1, 1), (0, 1)),
        ((12, 4), (2, 6, 4), (0, 1), (0, -1, 1)),
        ((8,), (1, 8), (0,), (-1, 0)),
        ((6, 4), (4, 6), (-1, -1), (-1, -1)),
    ],
)
def test_reshapes_are_split_by_the_outermost(
    old: tuple[int, ...], new: tuple[int, ...], operands: tuple[int, ...], results: tuple[int, ...]
) -> None:
    rule = of(lambda a: a.reshape(new), old)
    assert rule.operands[0] == operands
    assert rule.results[0] == results


def test_what_mixes_a_dimension_keeps_it_whole() -> None:
    assert of(lambda a: jax.lax.cumsum(a, axis=1), (4, 6)).operands[0] == (0, -1)
    assert of(lambda a: jax.lax.sort(a, dimension=0), (4, 6)).operands[0] == (-1, 0)
    assert of(lambda a: a[:, 2:4], (4, 6)).operands[0] == (0, -1)
    assert of(lambda a: jax.lax.argmax(a, 1, jnp.int32), (4, 6)).operands[0] == (0, -1)


def test_sums_of_parts_are_combined() -> None:
    rule = of(lambda a: jax.lax.reduce_sum_p.bind(a, axes=(1,), out_sharding=None), (4, 6))
    assert rule.operands == ((0, 1),)
    assert rule.results == ((0,),)


def test_an_operand_with_one_entry_serves_all() -> None:
    rule = of(lambda a, b: a - b, (4, 6), (4, 1))
    assert rule.operands == ((0, 1), (0, -1))
    assert rule.results == ((0, 1),)


def test_rows_of_a_table_are_masked_where_the_table_is_split() -> None:
    closed = jax.make_jaxpr(lambda table, at: table[at])(jnp.zeros((10, 4)), jnp.zeros((2, 3), jnp.int32))
    (gather,) = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "gather"]
    rule = rule_of(gather)
    assert rule.sizes == (2, 3, 10, 4)
    assert rule.operands == ((2, 3), (0, 1, -1))
    assert rule.results == ((0, 1, 3),)


def test_a_convolution_has_samples_and_features_and_keeps_the_image_whole() -> None:
    rule = of(lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"), (8, 3, 16, 16), (6, 3, 5, 5))
    assert rule.sizes == (8, 3, 6)
    assert rule.operands == ((0, 1, -1, -1), (2, 1, -1, -1))
    assert rule.results == ((0, 2, -1, -1),)


def test_a_pad_that_shifts_keeps_its_dimension_whole() -> None:
    rule = of(lambda a: jax.lax.pad(a, 0.0, ((1, -1, 0), (0, 0, 0))), (4, 6))
    assert rule.results == ((-1, 0),)


def test_pooling_is_split_where_no_window_reaches() -> None:
    pooled = lambda a: jax.lax.reduce_window(a, 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")  # noqa: E731
    assert of(pooled, (8, 4, 4, 3)).results == ((0, -1, -1, 1),)


def test_matrices_side_by_side_are_split() -> None:
    assert of(
        lambda a: jax.lax.fft_p.bind(a, fft_type=jax.lax.FftType.FFT, fft_lengths=(6,)), (4, 6), dtype=jnp.complex64
    ).results == ((0, -1),)
    assert of(lambda a: jax.lax.linalg.cholesky_p.bind(a), (4, 6, 6)).results == ((0, -1, -1),)


def test_groups_of_rows_have_matrices_that_are_split_by_columns() -> None:
    eqn = jax.make_jaxpr(jax.lax.ragged_dot)(jnp.ones((8, 4)), jnp.ones((2, 4, 6)), jnp.array([3, 5])).jaxpr.eqns[-1]
    rule = rule_of(eqn)
    assert rule.sizes == (4, 6)
    assert rule.operands == ((-1, 0), (-1, 0, 1), (-1,))
    assert rule.results == ((-1, 1),)
    assert eqn_flop(eqn) == 2 * 8 * 4 * 6
