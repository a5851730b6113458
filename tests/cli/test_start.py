"""A verb's start: what it does not load, and that building it alone changes nothing it does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from meshwright.app.verbs import VERBS
from meshwright.cli.commands import SHOWN, called
from tests.cli.conftest import Run


def test_every_verb_is_shown_somehow() -> None:
    assert set(SHOWN) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_is_called_is_built_alone(verb: str) -> None:
    assert called([*verb.split(), "--help"]) == [verb]


@pytest.mark.parametrize("words", [[], ["--help"], ["plann"], ["models"], ["models", "lsit"], ["calculon", "--help"]])
def test_all_verbs_are_there_where_none_is_called(words: list[str]) -> None:
    assert called(words) == list(VERBS)


def test_help_of_a_verb_loads_no_numbers() -> None:
    verbs = [verb for verb in VERBS if verb != "schedule"]  # whose options are those of the schedules themselves
    code = (
        "import contextlib, io, sys; from meshwright.cli import main\n"
        f"for verb in {verbs}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert main([*verb.split(), '--help']) == 0\n"
        "    assert 'numpy' not in sys.modules, verb"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
