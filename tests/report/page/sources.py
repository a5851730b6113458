"""Answers that the tests of the views share: one device type, two, experts on thousands, one that does not fit."""

from __future__ import annotations

from functools import cache

from meshwright import estimate, plan
from meshwright.app.page import source_of
from meshwright.report.page.source import PageSource

NAMES = ("dense", "mixed", "experts", "overfull")


@cache
def source(name: str) -> PageSource:
    """One of NAMES."""
    made = {
        "dense": lambda: plan("llama-3-8b", gpus="8xH100", top=1),
        "mixed": lambda: plan("llama-3.1-70b", gpus="32xH100,32xA100-80", top=1),
        "experts": lambda: plan("deepseek-v3", gpus="2048xH800", pin=("ep=64",), top=1),
        "overfull": lambda: estimate("llama-3.1-70b", "tp4.pp2.dp1.z1.mbs2.gbs32", gpus="8xH100"),
    }
    return source_of(made[name]())
