"""Parallelizers by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.planning.compose.sources.parallelizers.registry import HOMES, parallelizers_named
from meshwright.planning.compose.sources.parallelizers.with_galvatron import VARIABLE
from tests.planning.compose.sources.parallelizers.slices import Plain

SLICES = "tests.planning.compose.sources.parallelizers.slices"


def test_every_name_makes_a_parallelizer_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/usr/bin/python3")
    found = parallelizers_named(",".join(HOMES))
    assert [one.name for one in found] == list(HOMES)


def test_names_and_objects_stand_side_by_side_and_count_once() -> None:
    own = Plain()
    found = parallelizers_named(["native, calculon", own, "native"])
    assert [one.name for one in found] == ["native", "calculon", "plain"]
    assert found[2] is own
    assert parallelizers_named(own) == [own]


def test_a_class_of_the_users_folder_is_found_and_its_folder_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_planner_here.py").write_text("class Mine:\n    name = 'mine'\n    def plan(self, *a): return []\n")
    monkeypatch.chdir(tmp_path)
    for said in ("my_planner_here:Mine", "my_planner_here.py:Mine"):
        (found,) = parallelizers_named(said)
        assert found.name == "mine"


@pytest.mark.parametrize(
    ("names", "kind", "said"),
    [
        ("calclon", UnsupportedError, "did you mean calculon?"),
        ("elephant", UnsupportedError, "known: native"),
        (" , ", InputError, "no parallelizer is named"),
        ("no_such_module_here:X", UnsupportedError, "there is no module 'no_such_module_here'"),
        (
            "tests.planning.compose.sources.parallelizers.slices:Plan",
            InputError,
            "did you mean tests.planning.compose.sources.parallelizers.slices:Plain?",
        ),
        ("json:loads", InputError, "cannot be made: TypeError"),
        ("json:JSONDecoder", InputError, "is a JSONDecoder without a plan method"),
    ],
)
def test_what_is_no_parallelizer_is_said(names: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as raised:
        parallelizers_named(names)
    assert said in str(raised.value)


def test_all_problems_come_together() -> None:
    with pytest.raises(InputError) as raised:
        parallelizers_named("calclon,json:loads")
    assert len(raised.value.problems) == 2


def test_what_a_module_needs_and_has_not_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import package_that_is_nowhere\n")
    (tmp_path / "fails_at_once.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedError, match="needs package_that_is_nowhere, which is not installed"):
        parallelizers_named("needs_more:X")
    with pytest.raises(InputError, match="fails_at_once cannot be imported: ZeroDivisionError"):
        parallelizers_named("fails_at_once:X")


def test_galvatron_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UnsupportedError, match="pip install --no-deps hetu-galvatron"):
        parallelizers_named("galvatron")
