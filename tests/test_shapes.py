"""Array shapes in annotations are checked while tests run, and cost users nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from meshwright.shapes import spread

PROBE = """
from __future__ import annotations
from dataclasses import dataclass
import numpy as np
from meshwright.shapes import Float

def total(a: Float[np.ndarray, "rows"], b: Float[np.ndarray, "rows"], *, factor: float) -> Float[np.ndarray, "rows"]:
    return (a + b) * factor

def shorter(a: Float[np.ndarray, "rows"]) -> Float[np.ndarray, "rows"]:
    return a[:-1]

@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    time_s: Float[np.ndarray, "rows"]
    peak_bytes: Float[np.ndarray, "rows"]
"""


@pytest.mark.skipif(not os.environ.get("CHECK_SHAPES"), reason="shapes are held in `make test-shapes`")
@pytest.mark.parametrize("package", ["kernels", "schedules", "estimate", "search"])
def test_a_wrong_shape_fails(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    parent = importlib.import_module(f"meshwright.{package}")
    monkeypatch.setattr(parent, "__path__", [*parent.__path__, str(tmp_path)])
    monkeypatch.setattr(parent, "probe", None, raising=False)
    monkeypatch.setitem(sys.modules, f"meshwright.{package}.probe", None)
    del sys.modules[f"meshwright.{package}.probe"]
    probe = importlib.import_module(f"meshwright.{package}.probe")

    three, four = np.ones(3), np.ones(4)
    assert probe.total(three, three, factor=2).tolist() == [4.0, 4.0, 4.0]
    with pytest.raises(TypeCheckError):
        probe.total(three, np.ones(1), factor=2.0)
    with pytest.raises(TypeCheckError):
        probe.total(three, np.ones((3, 1)), factor=2.0)
    with pytest.raises(TypeCheckError):
        probe.total(three, np.ones(3, dtype=int), factor=2.0)
    with pytest.raises(TypeCheckError):
        probe.shorter(three)
    with pytest.raises(TypeCheckError):
        probe.Columns(time_s=three, peak_bytes=four)


def test_without_tests_a_shape_is_its_array_type() -> None:
    code = (
        "import sys, numpy as np\nfrom meshwright.shapes import Float, Int\n"
        "assert Float[np.ndarray, 'rows'] is np.ndarray and Int[np.ndarray, 'rows cols'] is np.ndarray\n"
        "assert 'jaxtyping' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_what_has_its_shape_is_not_spread_again() -> None:
    row = np.arange(3.0)[None]
    assert spread(row, (1, 3)) is row
    assert spread(row, (2, 3)).tolist() == [[0.0, 1.0, 2.0]] * 2
    assert spread(1.5, (2,)).tolist() == [1.5, 1.5]
