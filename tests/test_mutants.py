"""A mutation is noticed, survives or is undecided; what could not be asked counts neither way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.mutants import Copy, Verdict, summary
from tests.mutants_alike import means_the_same, unseen, within
from tests.mutants_in_place import said_in_place
from tests.mutants_near import ROOT

CHANGED = ROOT / "src" / "meshwright" / "errors.py"
TESTS = {
    "test_reads.py": "from pathlib import Path\n"
    "def test_it(): assert Path('src/meshwright/errors.py').read_text() == 'as it was'\n",
    "test_passes.py": "def test_it(): pass\n",
    "test_fails.py": "def test_it(): assert False\n",
    # As the limit of processor time ends a test.
    "test_is_cut_off.py": "import os, signal\ndef test_it(): os.kill(os.getpid(), signal.SIGXCPU)\n",
}


@pytest.fixture(autouse=True)
def _without_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of copies need none, and loading them takes two thirds of the time of each run."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


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


MODULE = """from functools import cache

LIMIT = 1 + 1

@cache
def least(a, b):
    return a if a < b else b

def turns(n):
    while n > 0:
        n -= 1
    return n

def unasked():
    return 1 + 1

def told():
    return 2 * 3
"""
ASKED_OF_IT = """from meshwright.module import least, turns

KEPT = least(1, 2)

def test_least(): assert least(1, 2) == 1
def test_turns(): assert turns(3) == 0
def test_late():
    from meshwright.late import doubled
    assert doubled(3) == 6
def test_fails(): assert turns(2) == 1
"""
RECORDED = """import pytest
from meshwright.module import told, unasked

@pytest.mark.parametrize("line", ["plan it", "run it"])
def test_the_answer_is_the_recorded_one(line): assert (told() if line == "plan it" else unasked()) == len(line) - 1
"""


def test_code_is_exchanged_in_place(tmp_path: Path) -> None:
    package = tmp_path / "src" / "meshwright"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "tests" / "room").mkdir(parents=True)
    module = package / "module.py"
    module.write_text(MODULE)
    (tmp_path / "tests" / "answers").mkdir()
    (tmp_path / "tests" / "room" / "test_it.py").write_text(ASKED_OF_IT)
    (tmp_path / "tests" / "answers" / "test_answers.py").write_text(RECORDED)
    for name in ("mutants.py", "mutants_alike.py", "mutants_in_place.py", "mutants_near.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    late, text = package / "late.py", "def doubled(n):\n    return 2 * n\n"
    late.write_text(text)
    changes = [("a < b", "a > b"), ("a < b", "a <= b"), ("LIMIT = 1 +", "LIMIT = 1 -"), ("-= 1", "+= 1")]
    changes += [("return 1 +", "return 1 -"), ("2 * 3", "2 + 3")]
    made = [(module, MODULE[: MODULE.index(old)].count("\n") + 1, MODULE.replace(old, new)) for old, new in changes]
    made.append((late, 2, text.replace("*", "+")))
    said = said_in_place(tmp_path, "room", made, limit_s=1.0)
    noticed, survives = Verdict.NOTICED.value, Verdict.SURVIVES.value
    assert said == [noticed, survives, None, noticed, survives, Verdict.RECORDED.value, noticed]


ALIKE = """from functools import lru_cache

@record(slots=True, order=True)
@lru_cache(maxsize=1 << 4)
def paired(a: int | None, b: list[int]) -> int | None:
    left: int | None = 1 + 2
    assert a > 1
    for one, two in zip(b, b, strict=True):
        return left * one if a < two else None
"""


def test_what_nobody_sees_is_not_drawn() -> None:
    spans = unseen(ALIKE)
    seen = {
        text: not within(spans, number, line.index(text))
        for number, line in enumerate(ALIKE.splitlines(), 1)
        for text in ("slots=True", "order=True", "<< 4", "| None", "1 + 2", "a > 1", "True)", "* one", "< two")
        if text in line
    }
    assert {text for text, is_seen in seen.items() if is_seen} == {"order=True", "1 + 2", "* one", "< two"}
    names = ("Eq_Is", "Gt_IsNot", "Is_Eq", "IsNot_NotEq", "Is_IsNot", "Is_Lt", "Gt_GtE", "Eq_NotEq")
    alike = [name for name in names if means_the_same(f"core/ReplaceComparisonOperator_{name}")]
    assert alike == ["Eq_Is", "Gt_IsNot", "Is_Eq", "IsNot_NotEq"]


def test_what_is_not_decided_is_said_beside_the_share() -> None:
    counted = {Verdict.NOTICED: 9, Verdict.RECORDED: 0, Verdict.SURVIVES: 1, Verdict.UNDECIDED: 3}
    assert summary(counted, 20) == "9 of 10 mutations noticed (90%), 3 undecided, 7 not run"
    counted |= {Verdict.RECORDED: 2, Verdict.UNDECIDED: 0}
    assert summary(counted, 12) == "11 of 12 mutations noticed (92%), 2 of them by recorded answers alone"
    assert summary(dict.fromkeys(Verdict, 0), 0) == "0 of 0 mutations noticed"
