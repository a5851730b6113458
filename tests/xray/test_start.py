"""The process that runs a framework imports nothing of the working folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import MeshwrightError
from meshwright.xray.start import traced


def test_no_module_of_the_working_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "torch", "meshwright"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MeshwrightError):
        traced({"framework": "module"})
    assert not (tmp_path / "ran").exists()
