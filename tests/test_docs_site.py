"""The documentation site: its pages in order, its links and pictures, what it asks of other hosts."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright.app.verbs import VERBS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE = {"commands.md"}
"""Pages that docs/site/hooks.py writes."""


def _text(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def _anchors(page: Path) -> set[str]:
    """Anchors of headings, as Markdown's `toc` makes them."""
    headings = re.findall(r"^#+ (.+)$", _text(page), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_lead_to_pages_headings_and_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _text(page)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = page if not name else (page.parent / name).resolve()
        assert file.exists() or name in MADE, target
        if anchor and file.suffix == ".md":
            assert anchor in _anchors(file), target


def test_every_page_has_its_place_in_the_site() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]))
    assert listed == {str(page.relative_to(DOCS)) for page in PAGES} | MADE


def test_pages_ask_nothing_of_another_host() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    assert re.search(r"^  font: false", settings, re.M)
    assert "polyfills: [site/iframe-worker.js]" in settings
    assert not re.findall(r"(?:src=|!\[[^\]]*\]\()[\"']?http", "".join(page.read_text() for page in PAGES))


def _hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_files_that_the_settings_name_are_there_and_kept() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    named = {
        f"docs/{name.removeprefix('docs/')}" for name in re.findall(r"(?:docs/)?site/[\w.-]+\.(?!py\n)\w+", settings)
    }
    assert {"docs/site/hooks.py", "docs/site/site.css", "docs/site/logo.svg", "docs/site/iframe-worker.js"} <= named
    assert all((ROOT / name).is_file() for name in named)
    if (ROOT / ".git").exists():
        ignored = subprocess.run(["git", "check-ignore", *named], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert ignored.stdout == ""


def test_the_page_of_commands_has_every_verb_with_all_its_options() -> None:
    page = _hooks().commands()
    assert [one for one in VERBS if f" meshwright {one}\n\n```text\nUsage: meshwright {one}" not in page] == []
    assert "--expert-load" in page
    assert max(map(len, page.splitlines())) <= 120


def test_functions_have_their_signatures_and_docstrings() -> None:
    found = {one.name: one for one in ast.parse(_hooks().functions()).body if isinstance(one, ast.FunctionDef)}
    assert list(found) == list(vars(meshwright)["_VERBS"])
    assert [name for name, one in found.items() if "Args:" not in (ast.get_docstring(one) or "")] == []
