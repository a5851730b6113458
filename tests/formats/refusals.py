"""Refusals of what is no cluster."""

from __future__ import annotations

from collections.abc import Callable

from meshwright.errors import MeshwrightError
from meshwright.specs.cluster import ClusterSpec


def refused(resolve: Callable[[], ClusterSpec]) -> MeshwrightError | None:
    """The clear error of a refusal; any other exception fails the test."""
    try:
        resolve()
    except MeshwrightError as error:
        return error
    return None
