"""The command line of a request asks the same again."""

from __future__ import annotations

import shlex

import pytest

import meshwright as mw
from meshwright.app.requests.page import WebRequest
from meshwright.app.requests.plan import PlanRequest
from meshwright.fields.command_line import command_line, stated_texts


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"model": "gpt2", "gpus": "8xH100"}, "meshwright plan gpt2 --gpus 8xH100"),
        (
            {"model": "gpt2", "gpus": "8xH100", "seq_len": 1024, "pin": ["tp=2", "pp=2"], "pareto": True},
            "meshwright plan gpt2 --gpus 8xH100 --seq 1024 --pin tp=2 --pin pp=2 --pareto",
        ),
        ({"model": "gpt2", "gpus": "8xH100", "schedule": ["1f1b", "zb-h1"]}, "--schedule 1f1b,zb-h1"),
        ({"model": "gpt2", "gpus": {"H100": 8, "L40S": 4}}, "--gpus 8xH100,4xL40S"),
        ({"model": "gpt2", "gpus": "8xH100", "pin": {"tp": [1, 2], "pp": 2}}, "--pin tp=1,2 --pin pp=2"),
        ({"model": "gpt2", "gpus": "8xH100", "lengths": [(512, 0.5), (1024, 0.5)]}, "histogram:512=0.5,1024=0.5"),
        ({"model": {"model_type": "llama", "hidden_size": 64}, "gpus": "8xH100"}, "plan config.json --gpus 8xH100"),
        ({"model": "a folder/config.json", "gpus": "8xH100"}, "'a folder/config.json'"),
    ],
)
def test_what_was_given_stands_as_it_was_given(values: dict[str, object], line: str) -> None:
    found = command_line("plan", PlanRequest.read(values))
    assert found.endswith(line) if line.startswith(("meshwright", "--")) else line in found
    assert shlex.split(found)[0] == "meshwright"


def test_an_object_stands_by_its_name_and_left_out_fields_are_not_there() -> None:
    model = mw.plan("gpt2", gpus="8xH100", top=1).model
    request = WebRequest.read({"model": model, "gpus": "8xH100", "port": "8500"})
    assert command_line("plan", request, without=("port",)) == "meshwright plan gpt2 --gpus 8xH100"
    assert stated_texts(request) == {"model": "gpt2", "gpus": "8xH100", "port": "8500"}
