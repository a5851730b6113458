"""Lines of the user's code are told by mesh."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

import meshwright as mw
from tests.compiler.models import initial, step, tokens


def test_every_mesh_says_what_share_of_which_lines_it_runs() -> None:
    run = mw.parallelize(step, method=mw.PipeshardParallel(num_stages=2, num_micro_batches=2))
    said = run.lower(initial(), tokens(16)).lines()
    assert said.count("of the products and convolutions of a step") == 2
    assert "tests/compiler/models.py:" in said


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (mw.DataParallel(), "nothing is split: one device runs the whole step"),
        (
            mw.DataParallel(num_micro_batches=2),
            "nothing is split: one device runs the whole step, which adds up the gradients of 2 micro-batches",
        ),
        (mw.LocalPipeline(num_stages=2), "nothing is split: 2 stages run on one device each"),
    ],
)
def test_one_device_is_explained_too(method: mw.DataParallel | mw.LocalPipeline, said: str) -> None:
    run = mw.parallelize(step, method=replace(method, devices=jax.devices()[:1]))
    first, *lines = run.lower(initial(), tokens(16)).explain().splitlines()
    assert first == said
    assert any("tests/compiler/models.py:" in line for line in lines)
