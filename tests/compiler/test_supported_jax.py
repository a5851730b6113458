"""Other versions of JAX than the compiler reads are named, with what to install."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from meshwright.compiler.supported_jax import BEHIND, FIRST, check_jax
from meshwright.errors import UnsupportedError


@pytest.mark.parametrize(
    ("found", "words"), [("0.9.2", "JAX 0.9.2 is too old"), ("0.11.0", "JAX 0.11.0 is too new"), ("1.0", "too new")]
)
def test_older_and_newer_versions_are_refused(found: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as raised:
        check_jax(found)
    assert "pip install 'jax>=0.10,<0.11'" in str(raised.value)


def test_the_installed_version_is_read_and_the_package_asks_for_the_same() -> None:
    check_jax()
    check_jax("0.10.7.dev3")
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    wanted = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"]["jax"]
    assert f"jax>={FIRST[0]}.{FIRST[1]},<{BEHIND[0]}.{BEHIND[1]}" in wanted
