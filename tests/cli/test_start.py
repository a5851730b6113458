"""A verb's start: what it does not load, and that building it alone changes nothing it does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
import typer

from meshwright.cli.entry import app
from meshwright.cli.start import only_called
from tests.cli.conftest import Run


def verbs(of: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for verb in of.registered_commands:
        yield (*path, str(verb.name)), verb.callback
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from verbs(group.typer_instance, (*path, str(group.name)))


VERBS = dict(verbs(app))


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_options_are_words_switches_and_lists_of_words(path: tuple[str, ...]) -> None:
    hints = get_type_hints(VERBS[path])
    hints.pop("return")
    assert set(hints.values()) <= {str, str | None, bool, list[str] | None}


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_a_verb_built_alone_has_the_help_it_has_among_all(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for one in (only_called(app, path), app):
        typer.main.get_command(one).main([*path, "--help"], prog_name="meshwright", standalone_mode=False)
    alone, start, among = capsys.readouterr().out.partition("Usage: ")[2].partition("Usage: ")
    assert start
    assert alone == among
    assert dict(verbs(only_called(app, path))) == {path: VERBS[path]}


@pytest.mark.parametrize("words", [[], ["--help"], ["plann"], ["models"], ["models", "lsit"], ["calculon", "--help"]])
def test_all_verbs_are_there_where_none_is_called(words: list[str]) -> None:
    assert only_called(app, words) is app


def test_lists_of_words_and_switches_arrive(run: Run) -> None:
    words = ["calculon", "search", "gpt3-175B", "a100_80g", "--procs", "64", "--batch", "64", "--json", "--top", "1"]
    ran = run(*words, "--pin", "tensor_par=8", "--pin", "pipeline_par=8", "--no-tp-overlap", "--no-dp-overlap")
    assert ran.code == 0, ran.err
    execution = ran.document["best"][0]["execution"]
    assert (execution["tensor_par"], execution["pipeline_par"]) == (8, 8)
    assert execution["tensor_par_overlap"] == "none"
    assert not execution["data_par_overlap"]


def test_an_estimate_with_calculons_model_loads_no_validators() -> None:
    code = (
        "import sys; from meshwright.cli import main; "
        "main(['calculon', 'estimate', 'gpt3-175B', 'none.json', 'a100_80g']); "
        "print(sorted(sys.modules), file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "meshwright.calculon.reading" in ran.stderr
    for heavy in ("pydantic", "rich", "concurrent.futures"):
        assert f"'{heavy}'" not in ran.stderr
