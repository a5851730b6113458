"""The documentation site: its pages in order, its links and pictures, what it asks of other hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
