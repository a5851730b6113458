"""The stub of the package says what the requests say."""

from __future__ import annotations

import ast
from pathlib import Path

import meshwright
from meshwright.cli.stub import stub

STUB = Path(meshwright.__file__).with_suffix(".pyi")


def test_the_stub_is_made_of_the_requests() -> None:
    def functions(text: str) -> dict[str, str]:
        return {one.name: ast.dump(one) for one in ast.parse(text).body if isinstance(one, ast.FunctionDef)}

    remedy = "write it again: python -m meshwright.cli.stub > src/meshwright/__init__.pyi"
    assert functions(STUB.read_text()) == functions(stub()), remedy
