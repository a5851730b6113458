"""A mutation is noticed, survives or is undecided; what could not be asked counts neither way."""

from __future__ import annotations

import pytest

from tests.mutants import ROOT, Copy, Verdict, summary

CHANGED = ROOT / "src" / "meshwright" / "errors.py"
TESTS = {
    "test_reads.py": "from pathlib import Path\n"
    "def test_it(): assert Path('src/meshwright/errors.py').read_text() == 'as it was'\n",
    "test_passes.py": "def test_it(): pass\n",
    "test_fails.py": "def test_it(): assert False\n",
    # As the limit of processor time ends a test.
    "test_is_cut_off.py": "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGXCPU)\n",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    place = tmp_path_factory.mktemp("copy")
    for name, text in TESTS.items():
        (place / name).write_text(text)
    target = place / CHANGED.relative_to(ROOT)
    target.parent.mkdir(parents=True)
    target.write_text("as it was")
    return Copy(place=place, limit_s=60)


@pytest.mark.parametrize(
    ("rings", "verdict"),
    [
        ([["test_passes.py"], ["test_reads.py"]], Verdict.NOTICED),
        ([["test_passes.py"]], Verdict.SURVIVES),
        ([["test_fails.py"], ["test_passes.py"]], Verdict.UNDECIDED),
        ([["test_fails.py"], ["test_reads.py"]], Verdict.NOTICED),
        ([["test_is_cut_off.py"]], Verdict.UNDECIDED),
    ],
)
def test_what_fails_without_a_mutation_decides_nothing(copy: Copy, rings: list[list[str]], verdict: Verdict) -> None:
    assert copy.verdict_of(CHANGED, "changed", rings) is verdict


def test_what_is_not_decided_is_said_beside_the_share() -> None:
    counted = {Verdict.NOTICED: 9, Verdict.SURVIVES: 1, Verdict.UNDECIDED: 3}
    assert summary(counted, 20) == "9 of 10 mutations noticed (90%), 3 undecided, 7 not run"
    assert summary(dict.fromkeys(Verdict, 0), 0) == "0 of 0 mutations noticed"
