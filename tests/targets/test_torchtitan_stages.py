"""Layers of pipeline stages are those that torchtitan makes, read and written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.fields.job import JobFields
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.torch_csv import write_actions
from meshwright.launch_files.script import script_question
from meshwright.schedules import schedule_named
from meshwright.schedules.torch_actions import to_actions
from meshwright.specs.row_of import homogeneous
from meshwright.targets import TARGETS
from meshwright.targets.pytorch_pipeline import schedule_of_file
from meshwright.targets.torchtitan.stages import MODULES, by_weights, dealt
from tests.targets.cases import job
from tests.targets.test_round_trip import written

_TOML = """[model]
name = "{}"
flavor = "{}"
[training]
local_batch_size = 8
seq_len = 4096
[activation_checkpoint]
mode = "full"
[parallelism]
data_parallel_shard_degree = 2
pipeline_parallel_degree = {}
"""


def read(more: str = "", pp: int = 4, model: tuple[str, str] = ("llama3", "8B")) -> LaunchFile:
    target = TARGETS["torchtitan"]
    assert target.read is not None
    return target.read({"run.toml": _TOML.format(*model, pp) + more}, 2 * pp)


@pytest.mark.parametrize(
    ("more", "layout"),
    [
        ("", (8, 9, 8, 7)),  # 32 layers + 2 = 34 = 9 + 9 + 8 + 8, less one at either end
        ("pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0\n", (8,) * 4),
        ("pipeline_parallel_last_stage_less_layers = 3\n", (8, 9, 9, 6)),
        ('pipeline_parallel_schedule = "Interleaved1F1B"\n', (4, 5, 4, 4, 4, 4, 4, 3)),
        ('pipeline_parallel_split_points = "layers.4,layers.16,layers.28"\n', (4, 12, 12, 4)),
        ('pipeline_parallel_split_points = ["layers.4", "layers.16", "layers.28"]\n', (4, 12, 12, 4)),
        ("pipeline_parallel_layers_per_stage = 9\n", (8, 9, 8, 7)),
        ('pipeline_parallel_schedule = "Interleaved1F1B"\npipeline_parallel_layers_per_stage = 3\n', None),
    ],
)
def test_layers_are_dealt_as_torchtitan_deals_them(more: str, layout: tuple[int, ...] | None) -> None:
    found = read(more)
    assert found.row is not None
    if layout is None:  # 34 / 3 = 12 stages: three on each of four ranks
        layout = (2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1)
    assert not found.problems
    assert found.layout == layout
    assert found.row.pp * found.row.vpp == len(layout)


def test_before_embedding_and_head_counted_the_rest_went_behind_the_first_stage() -> None:
    text = _TOML.format("llama3", "405B", 4).replace("[parallelism]", "[experimental]")
    target = TARGETS["torchtitan"]
    assert target.read is not None
    assert target.read({"run.toml": text}, 8).layout == (31, 32, 32, 31)


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ("pipeline_parallel_layers_per_stage = 8\n", "it makes 5 stages"),
        ("pipeline_parallel_first_stage_less_layers = 20\n", "wants at least 20"),
        ('pipeline_parallel_split_points = "layers.8,layers.16,layers.40"\n', "layers 0 to 31"),
        ('pipeline_parallel_split_points = "layers.8,layers.4,layers.30"\n', "begin at layers in order"),
        ('pipeline_parallel_split_points = "layers.8"\n', "it makes 2 stages"),
    ],
)
def test_stages_that_torchtitan_refuses_are_refused(more: str, what: str) -> None:
    (problem,) = read(more).problems
    assert what in problem.why


def test_the_rule_holds_for_a_model_that_the_file_does_not_describe(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(_TOML.format("llama3", "debugmodel", 4))
    asked = JobFields(model="qwen3-14b", gpus="8xH100")
    question, violations, _, _ = script_question(tmp_path / "run.toml", "torchtitan", asked)
    assert question is not None
    assert question.plan is not None
    assert not violations
    assert [chunk.num_layers for chunk in question.plan.pipelines[0].chunks()] == [10, 11, 10, 9]


@given(st.integers(1, 200), st.integers(1, 24), st.integers(0, 4), st.integers(0, 4))
def test_no_layer_is_lost_and_stages_differ_by_one(layers: int, stages: int, first: int, last: int) -> None:
    try:
        counts = dealt(layers, stages=stages, first=first, last=last)
    except InputError:
        assert stages > 1
        assert (layers + first + last) // stages < max(1, first, last)
        return
    assert sum(counts) == layers
    weights = [counts[0] + first, *counts[1:-1], counts[-1] + last] if stages > 1 else [layers]
    assert max(weights) - min(weights) <= 1
    names = [[f"layers.{number}" for number in range(count)] for count in counts]
    if stages > 1:  # some weights deal layers so, and those that are found do
        found = by_weights(names, stages)
        assert dealt(layers, stages=stages, first=found[_FIRST], last=found[_LAST]) == counts


_FIRST, _LAST = (f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))


@pytest.mark.parametrize("line", ["pp4.fsdp", "pp2.vpp4.fsdp", "pp4.vpp2.fsdp.zb-v", "pp4.vpp2.fsdp.v-half"])
def test_a_plans_stages_are_named_and_read_back(line: str) -> None:
    one = job(line, model="llama-3.1-8b")
    found, _ = homogeneous(one.plan)
    assert found is not None
    files = written("torchtitan", one)
    assert MODULES.partition(".")[2] in files["meshwright_plan.py"]
    target = TARGETS["torchtitan"]
    assert target.read is not None
    assert target.read(files, 16).layout == found.layers


@pytest.mark.parametrize("schedule", ["hanayo", "v-half", "v-min", "v-1f1b"])
def test_the_file_of_a_schedule_names_it_whatever_else_there_is(schedule: str) -> None:
    """Schedules that PyTorch does not run, of segments of a sequence, are passed over."""
    text = write_actions(to_actions(schedule_named(schedule).table(4, 16, 2)))
    found = schedule_of_file(text, 4, 2, 16)
    assert found is not None
    assert write_actions(to_actions(schedule_named(found).table(4, 16, 2))) == text


def test_a_file_names_no_schedule_whose_recomputations_it_cannot_hold() -> None:
    """Of three micro-batches on two stages FTPipe's order is Varuna's without its recomputations."""
    table = schedule_named("ftpipe-flush").settled(2, 3).table(2, 3, 1)
    found = schedule_of_file(write_actions(to_actions(table)), 2, 1, 3)
    assert found is not None
    assert not schedule_named(found).recomputes_in_tasks


@pytest.mark.parametrize("target", ["torchtitan", "automodel"])
def test_two_stages_in_a_v_are_built_by_a_class_that_folds(target: str) -> None:
    """A schedule's file says when a stage runs; on which rank it is built follows from the class that is named."""
    text = "".join(written(target, job("pp4.vpp2.fsdp.v-half", model="llama-3.1-8b")).values())
    assert "ZBVZeroBubble" in text
    (problem,) = TARGETS[target].refused(job("pp2.vpp4.fsdp.hanayo", model="llama-3.1-8b"))
    assert "in turn over the ranks" in problem.why
