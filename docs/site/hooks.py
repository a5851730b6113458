"""Pages that are made when the site is built: every command's help, and the functions with their signatures.

`mkdocs.yml` names this file under `hooks`; MkDocs calls the functions `on_...`.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import Any
from unittest import mock

from meshwright.app.verbs import VERBS, docstring_of
from meshwright.cli import main
from meshwright.cli.commands import GROUPS
from meshwright.cli.stub import stub

API = Path(__file__).parents[2] / "build" / "api"
"""Where mkdocstrings finds the module `mw` that docs/api.md names; mkdocs.yml has the same folder under `paths`."""
WIDTH = "112"
"""Columns of a command's help: what the page shows without breaking a line."""


def on_startup(command: str, dirty: bool) -> None:
    """Write the functions as a module: before mkdocstrings looks for the folder."""
    API.mkdir(parents=True, exist_ok=True)
    (API / "mw.py").write_text(functions(), encoding="utf-8")


def on_config(config: Any) -> Any:
    """Show the choice of versions where `mike` keeps several."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page of commands."""
    from mkdocs.structure.files import File  # type: ignore[import-not-found]

    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def commands() -> str:
    """Every command with all of its options, as `--help-all` describes them, in Markdown."""
    parts = ["# Commands", _block(_help([]))]
    grouped: set[str] = set()
    for verb in VERBS:
        group, _, inner = verb.partition(" ")
        if inner and group not in grouped:
            grouped.add(group)
            parts += [f"## meshwright {group}", GROUPS[group]]
        parts += [f"{'###' if inner else '##'} meshwright {verb}", _block(_help(verb.split()))]
    return "\n\n".join(parts) + "\n"


def functions() -> str:
    """A module with every verb as a function: the signature of the stub, the docstring of the function."""
    text = stub()
    for verb, entry in VERBS.items():
        head, mark, tail = text.partition(f"\ndef {verb}(")
        signature, _, rest = tail.partition(": ...\n")
        docstring = docstring_of(entry.request).replace("\n", "\n    ")
        text = f'{head}{mark}{signature}:\n    r"""{docstring}\n    """\n{rest}' if mark else text
    return text


def _help(words: list[str]) -> str:
    said = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS=WIDTH), contextlib.redirect_stdout(said):
        main([*words, "--help-all"])
    return said.getvalue().strip()


def _block(text: str) -> str:
    return f"```text\n{text}\n```"
