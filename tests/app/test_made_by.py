"""What made an answer is said also where the package runs from its files."""

from __future__ import annotations

from importlib import metadata

import pytest

from meshwright.app.made_by import version


def test_the_version_is_unknown_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    version.cache_clear()
    monkeypatch.setattr(metadata, "version", absent)
    assert version() == "unknown"
    version.cache_clear()
