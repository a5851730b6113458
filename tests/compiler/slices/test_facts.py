"""Masks are known by the places of queries and keys, without looking at their entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.slices.facts import Facts, facts_of_constant, result_facts

TOKENS = 5


def facts(made: Callable[[], Any]) -> Facts:
    """What is known of what a function without arguments makes."""
    closed = flat_jaxpr(lambda: [made()], [])
    known = {var: facts_of_constant(value) for var, value in zip(closed.jaxpr.constvars, closed.consts, strict=True)}
    for eqn in closed.jaxpr.eqns:
        read = [facts_of_constant(atom.val) if isinstance(atom, core.Literal) else known[atom] for atom in eqn.invars]
        known.update(zip(eqn.outvars, result_facts(eqn, read), strict=True))
    return known[closed.jaxpr.outvars[0]]


def places() -> jax.Array:
    return jnp.arange(TOKENS)


@pytest.mark.parametrize(
    "made",
    [
        lambda: jnp.tril(jnp.ones((TOKENS, TOKENS), bool)),
        lambda: places()[:, None] >= places()[None, :],
        lambda: ~(places()[:, None] < places()),
        lambda: (places()[:, None] - places() >= 0) & (places()[:, None] - places() < 2),
        lambda: jnp.tril(jnp.ones((2 * TOKENS, 2 * TOKENS)))[:TOKENS, :TOKENS] != 0,
        lambda: jnp.asarray(np.tri(TOKENS, dtype=bool)),
        lambda: jnp.triu(jnp.ones((TOKENS, TOKENS)), 1) == 0,
        lambda: jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), 0.0, -1e9) > -1e8,
        lambda: (places()[:, None] > places()) | jnp.eye(TOKENS, dtype=bool),
    ],
)
def test_masks_as_people_write_them_hide_later_keys(made: Callable[[], Any]) -> None:
    assert np.array_equal(np.asarray(made())[np.triu_indices(TOKENS, 1)], np.zeros(10))
    assert facts(made).before[0, 1] == False  # noqa: E712 (a number of numpy)


@pytest.mark.parametrize(
    "made",
    [
        lambda: places()[:, None] >= places() - 1,
        lambda: jnp.abs(places()[:, None] - places()) < 2,
        lambda: places()[:, None] % 2 >= places() % 2,
    ],
)
def test_masks_that_show_a_later_key_are_not_said_to_hide_it(made: Callable[[], Any]) -> None:
    assert (0, 1) not in facts(made).before


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.sampled_from(["ge", "gt", "le", "lt", "eq", "ne"]))
def test_what_is_known_holds_for_every_entry(numbers: list[int], how: str) -> None:
    a, b, c, d = numbers

    def made() -> Any:
        compare: Any = {
            "ge": jnp.greater_equal,
            "gt": jnp.greater,
            "le": jnp.less_equal,
            "lt": jnp.less,
            "eq": jnp.equal,
            "ne": jnp.not_equal,
        }[how]
        return compare(a * places()[:, None] + b, c * places() + d)

    table, found = np.asarray(made()), facts(made)
    for (i, j), value in found.before.items():
        own = np.moveaxis(table, (i, j), (0, 1))
        assert np.all(own[np.triu_indices(TOKENS, 1)] == value)
    if found.every is not None:
        assert np.all(table == found.every)
