"""Verbs price thousands of plans in a test. Array shapes are checked where the arrays are made, in the tests of the
floors below; checking them here again would take most of the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture(autouse=True)
def _shapes_are_checked_elsewhere() -> Iterator[None]:
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
