"""Pictures of plans: every layer and device once, in the colour of its stage; the one of the page is what is drawn."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import meshwright as mw
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands
from meshwright.compiler.stages.picture import COLOURS
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.stages.search import StageSpace, plan_step

PAGE = Path(__file__).parents[3] / "docs" / "train-steps.svg"


def drawn() -> StagesPlan:
    """A GPT of twelve layers on a host of four slow devices and one of eight quick ones."""
    from benchmarks.compiler import Case, gpt_step

    slow = Hosts(
        name="slow",
        hosts=1,
        devices_per_host=4,
        flop_per_s=60e12,
        memory_bytes=16e9,
        inside_bytes_per_s=130e9,
        between_bytes_per_s=3e9,
    )
    quick = Hosts(
        name="quick",
        hosts=1,
        devices_per_host=8,
        flop_per_s=150e12,
        memory_bytes=40e9,
        inside_bytes_per_s=250e9,
        between_bytes_per_s=3e9,
    )
    step, shapes = gpt_step(Case("GPT of 12 layers", 12, 2560, 32, 12, 0.0))
    return plan_step(
        step, shapes, Islands(groups=(slow, quick)), space=StageSpace(micro_batches=(64,), recompute=(True,))
    )


def test_the_picture_of_the_page_is_that_of_its_plan() -> None:
    plan = drawn()
    picture = mw.stages_svg(plan)
    if os.environ.get("MESHWRIGHT_UPDATE_DOCS"):
        PAGE.write_text(picture)
    assert PAGE.read_text() == picture
    tree = ElementTree.fromstring(picture)
    boxes = [rect.get("fill") for rect in tree.iter("{http://www.w3.org/2000/svg}rect")]
    for number, stage in enumerate(plan.stages):
        layers = stage.layers[1] - stage.layers[0] + 1
        assert boxes.count(COLOURS[number]) == layers + stage.devices + 1
    assert {"quick 0", "slow 0"} <= {text.text for text in tree.iter() if text.text}
