"""Lengths of sequences from files and by name: read exactly, or refused with the lines that are wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.formats.lengths import lengths_of


def write(folder: Path, text: str) -> Path:
    path = folder / "lengths.txt"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "512\n2048\n512\n\n8192\n",
        '{"length": 512, "text": "a"}\n{"text": "b, c", "length": 2048}\n{"length":512}\n{"length": 8192}\n',
        '{"id": {"n": 1}, "num_tokens": 512}\n{"length": 2048}\n512\n{"tokens": 8192}\n',
        "[512, 512, 2048, 8192]",
        "[[512, 2], [2048, 1], [8192, 1]]",
        '{"512": 0.5, "2048": 0.25, "8192": 0.25}',
        '{\n "512": 2,\n "2048": 1,\n "8192": 1\n}',
    ],
)
def test_every_kind_of_file_says_the_same(tmp_path: Path, text: str) -> None:
    assert lengths_of(write(tmp_path, text)) == ((512, 0.5), (2048, 0.25), (8192, 0.25))


def test_by_name() -> None:
    assert lengths_of("histogram:512=2,2048=1,8192=1") == ((512, 0.5), (2048, 0.25), (8192, 0.25))
    assert lengths_of("uniform(low=100,high=300)") == lengths_of("uniform:low=100,high=300")
    with pytest.raises(InputError, match="say lognormal:mean="):
        lengths_of("lognormal(7, 1)")
    found = lengths_of("uniform:low=100,high=300")
    assert found[0][0], found[-1][0] == (100, 300)
    assert sum(length * share for length, share in found) == pytest.approx(200, rel=1e-3)


def test_a_log_normal_has_its_mean_and_is_cut_at_its_longest() -> None:
    wide = lengths_of("lognormal:mean=1200,sigma=0.8,max=1000000")
    assert sum(length * share for length, share in wide) == pytest.approx(1200, rel=0.01)
    cut = lengths_of("lognormal:mean=1200,sigma=0.8,max=2048")
    assert cut[-1][0] == 2048
    assert cut[-1][1] > 0.1


def test_a_million_lines_are_read_at_once(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).lognormal(7, 1, 1_000_000).astype(int).clip(1)
    path = write(tmp_path, "\n".join(map(str, numbers.tolist())))
    began = time.process_time()
    found = lengths_of(path)
    assert time.process_time() - began < 2.0
    assert len(found) <= 512
    assert found[-1][0] == numbers.max()
    for power in (1, 2):
        expected = (numbers.astype(float) ** power).mean()
        assert sum(length**power * share for length, share in found) == pytest.approx(expected, rel=2e-3)


def test_a_bad_line_of_many_is_named(tmp_path: Path) -> None:
    lines = ["512"] * 100_000
    lines[70_000] = "oops"
    with pytest.raises(InputError, match="line 70,001"):
        lengths_of(write(tmp_path, "\n".join(lines)))


def test_every_kind_of_bad_line_is_said_once(tmp_path: Path) -> None:
    lines = ["512", "-4", "0", "12.5", "oops", '{"text": "a"}', json.dumps({"length": 2**40}), "2048"]
    with pytest.raises(InputError) as caught:
        lengths_of(write(tmp_path, "\n".join(lines)))
    said = [problem.what.rpartition(", line ")[2] for problem in caught.value.problems]
    assert [text.partition(":")[0] for text in said] == ["2 and 1 more", "4", "5", "6", "7"]
    assert all(problem.why and problem.fix for problem in caught.value.problems)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[[512, 0]]", '{"512": -1}', "{broken"])
def test_files_without_lengths_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        lengths_of(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("lognormal:mean=5,scale=2", 3),
        ("lognormal:mean=9000,sigma=1,max=4096", 1),
        ("uniform:low=0,high=x", 2),
        ("uniform:low=9,high=3", 1),
        ("histogram:512=.4,0=.1,x=1", 2),
        ("lognormle:mean=1", 1),
        ("lognormal", 3),
    ],
)
def test_everything_wrong_with_a_name_is_said_together(text: str, problems: int) -> None:
    with pytest.raises(InputError) as caught:
        lengths_of(text)
    assert len(caught.value.problems) == problems
