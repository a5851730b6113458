"""Stage times from CSV and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.formats.stage_times import read_stage_times


def test_csv_and_json_say_the_same(tmp_path: Path) -> None:
    rows = [
        {"forward_s": 1.0, "input_s": 1.5, "weight_s": 0.5, "capacity_bytes": 8e9},
        {"forward_s": 2.0, "input_s": 2.5, "weight_s": 1.5, "capacity_bytes": 9e9},
    ]
    as_json, as_csv = tmp_path / "stages.json", tmp_path / "stages.csv"
    as_json.write_text(json.dumps(rows))
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    as_csv.write_text("\n".join(lines) + "\n")
    for path in (as_json, as_csv):
        read = read_stage_times(path)
        assert read.forward_s.tolist() == [[1.0], [2.0]]
        assert read.weight_s.tolist() == [[0.5], [1.5]]
        assert read.capacity_bytes is not None
        assert read.capacity_bytes.tolist() == [[8e9], [9e9]]
        assert read.transfer_s is None


def test_chunks_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "stages.csv"
    path.write_text("worker,chunk,forward_s,input_s,weight_s\n1,0,3,1,1\n0,1,2,1,1\n0,0,1,1,1\n1,1,4,1,1\n")
    assert read_stage_times(path).forward_s.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("forward_s,input_s\n1,1\n", ["no column weight_s"]),
        ("foward_s,input_s,weight_s\n1,1,1\n", ["unknown column 'foward_s'", "forward_s?", "no column forward_s"]),
        ("forward_s,input_s,weight_s\n-1,x,\n", ["row 1: forward_s is '-1'", "input_s is 'x'", "weight_s is ''"]),
        ("forward_s,input_s,weight_s\n", ["ends after its header"]),
        ("worker,forward_s,input_s,weight_s\n0,1,1,1\n0,1,1,1\n", ["misses or repeats a stage"]),
        ("worker,forward_s,input_s,weight_s\n1e15,1,1,1\n", ["misses or repeats a stage"]),
        ("worker,forward_s,input_s,weight_s\n0.5,1,1,1\n", ["a whole number"]),
        ("forward_s,input_s,weight_s,released_by_input\n1,1,1,1.5\n", ["released_by_input is '1.5'", "at most 1"]),
        ('{"forward_s": 1}', ["a list of objects"]),
        ("[1, 2", ["it is not JSON"]),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, words: list[str]) -> None:
    path = tmp_path / "stages"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_stage_times(path)
    for word in words:
        assert word in str(caught.value)
