"""Adapters of exported plans as Megatron-Bridge's own class understands them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from meshwright.planning.question.tuned import with_tuning
from tests.targets.cases import job
from tests.targets.test_round_trip import written

if find_spec("megatron") is None or not list(distributions(name="megatron-bridge")):
    pytest.skip("megatron-bridge is not installed", allow_module_level=True)
ALL = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]


ADAPTERS = {
    "r=16,targets=linear_qkv,linear_proj": ALL[:2],
    "r=8,targets=linear_fc1,linear_fc2": ALL[2:],
    f"r=32,targets={','.join(ALL)}": ALL,
}


def overrides(lora: str) -> str:
    """The overrides of the adapters, as JSON."""
    whole = job("tp2.dp8.z1", "llama-3.1-8b")
    text = written("bridge", replace(whole, model=with_tuning(whole.model, lora, ())))["overrides.txt"]
    return json.dumps(dict(line.partition("=")[::2] for line in text.splitlines() if line.startswith("peft.")))


def test_adapters_stand_where_the_plan_has_them() -> None:
    program = Path(__file__).with_name("bridge_lora.py")
    words = [sys.executable, program, *map(overrides, ADAPTERS)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()[-len(ADAPTERS) :]]
    assert [one["modules"] for one in found] == list(ADAPTERS.values())
    assert [(one["rank"], one["scale"]) for one in found] == [(16, 2.0), (8, 2.0), (32, 2.0)]
