"""`tune` and `calculon tune` on the command line."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run

QUESTION = ("tune", "gpt2", "--gpus", "2xH100", "--gbs", "8")
EXECUTIONS = ("calculon", "tune", "gpt3-13B", "a100_80g", "--procs", "4", "--batch", "4", "--pin", "tensor_par=2,4")


def test_a_study_is_shown_and_goes_on(run: Run) -> None:
    first = run(*QUESTION, "--trials", "6", "--storage", "sqlite:///trials.db")
    assert first.code == 0, first.err
    assert "the best of 6 trials with random" in first.out
    assert "exact search: " in first.out
    again = run(*QUESTION, "--trials", "9", "--storage", "sqlite:///trials.db")
    assert again.code == 2
    assert "go on with --resume" in again.err
    resumed = run(*QUESTION, "--trials", "9", "--storage", "sqlite:///trials.db", "--resume", "--json").document
    assert resumed["count"] == 9
    assert resumed["resumed"] == 6


def test_a_comparison_draws_its_figure(run: Run) -> None:
    ran = run(*EXECUTIONS, "--with", "random", "--compare", "--trials", "8", "--repeats", "2", "--figure", "r.svg")
    assert ran.code == 0, ran.err
    assert "medians over 2 seeds" in ran.out
    assert Path("r.svg").read_text().startswith("<svg")


def test_the_same_question_has_the_same_answer_times_apart(run: Run) -> None:
    documents = [run(*EXECUTIONS, "--trials", "5", "--seed", "3", "--json").document for _ in range(2)]
    for document in documents:
        assert document["schema"] == "meshwright.tune/1"
        document.pop("timing")
    assert documents[0] == documents[1]


def test_what_is_wrong_is_said_together(run: Run) -> None:
    ran = run("calculon", "tune", "gpt3-13", "a100_80", "--batch", "x", "--with", "smc", "--trials", "0", "--resume")
    assert ran.code == 2
    for part in ("--procs is missing", "--batch", "'smc'", "--trials", "--resume", "gpt3-13", "a100_80"):
        assert part in ran.err
    ran = run("tune", "gpt", "--gpus", "8xH10", "--with", "optima", "--figure", "none/r.svg", "--no-optimum")
    for part in ("H10", "optima", "none", "the optimum is missing"):
        assert part in ran.err
