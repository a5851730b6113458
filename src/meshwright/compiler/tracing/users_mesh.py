"""The mesh that a user has set (`jax.set_mesh`): his step is traced under it, everything else runs without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

_USERS: ContextVar[Any] = ContextVar("users_mesh", default=None)
_NONE = Mesh(np.empty((), object), ())


@contextmanager
def mesh_aside() -> Iterator[None]:
    """While it is open, the mesh that is set counts for traced steps alone."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        yield
        return
    token = _USERS.set(mesh)
    try:
        with jax.set_mesh(_NONE):
            yield
    finally:
        _USERS.reset(token)


def mesh_of_user() -> Any:
    """The mesh that is set for traced steps; None without one."""
    return _USERS.get()


@contextmanager
def users_mesh() -> Iterator[bool]:
    """Set again what `mesh_aside` has put aside; whether there is one."""
    mesh = _USERS.get()
    if mesh is None:
        yield False
        return
    with jax.set_mesh(mesh):
        yield True
