"""Plans again after a change of the cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright import plan
from meshwright.app.replan import Replanned, replan
from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.plan_json import write_job
from meshwright.library.clusters import resolve_gpus
from meshwright.library.made_with import made_with
from meshwright.planning.changed_cluster import changed_cluster, resized
from meshwright.specs.failures import Failures
from meshwright.specs.job import Job


@pytest.fixture(scope="module")
def job() -> Job:
    """A job on four nodes of two, its optimizer sharded over all eight devices."""
    return plan("gpt2", gpus="4x2xH100", global_batch=24, top=1, pin=["dp=8", "sharding=z1", "recompute=none"])[0].job


@pytest.fixture(scope="module")
def found(job: Job) -> Replanned:
    """Its plans without the last node."""
    return replan(job, lost="2xH100", pin=["tp=1", "cp=1", "vpp=1", "recompute=none"])


def test_devices_of_a_group_are_lost_from_its_end() -> None:
    change = changed_cluster(resolve_gpus("32xH100,16xA100-80"), lost="8xH100")
    assert [(group.name, group.devices) for group in change.cluster.groups] == [("H100", 24), ("A100-80", 16)]
    assert change.number_after.tolist() == [*range(24), *[-1] * 8, *range(24, 40)]
    assert (change.lost, change.stranded, change.added) == (8, 0, 0)
    assert [domain.size for domain in change.cluster.groups[0].domains] == [8, 24]


def test_a_group_is_lost_whole_by_its_name() -> None:
    cluster = resolve_gpus("32xH100,16xA100-80")
    assert changed_cluster(cluster, lost="A100-80").cluster == changed_cluster(cluster, lost="16xA100-80").cluster


def test_nodes_that_lost_some_devices_form_groups_of_what_is_left_of_them() -> None:
    change = changed_cluster(resolve_gpus("32xH100"), lost="9,20-21")
    groups = [(group.name, group.nodes, group.devices_per_node) for group in change.cluster.groups]
    assert groups == [("H100", 2, 8), ("H100-7", 1, 7), ("H100-6", 1, 6)]
    assert (change.lost, change.stranded, change.broken) == (3, 0, ("H100-7", "H100-6"))
    second = [16, -1, *range(17, 23)]
    third = [23, 24, 25, 26, -1, -1, 27, 28]
    assert change.number_after.tolist() == [*range(8), *second, *third, *range(8, 16)]
    assert change.on_whole_nodes.number_after.tolist() == [*range(8), *[-1] * 16, *range(8, 16)]
    fabric = {link.bandwidth_bytes_per_s for link in change.cluster.links}
    assert fabric == {change.cluster.groups[0].domains[-1].bandwidth_bytes_per_s}


def test_what_is_left_of_a_node_keeps_the_links_of_its_group() -> None:
    cluster = resolve_gpus("16xH100,16xA100-80")
    slow = replace(cluster, links=(replace(cluster.links[0], bandwidth_bytes_per_s=3e9, basis="user"),))
    change = changed_cluster(slow, lost="3,30")
    between = {frozenset(link.between): link.bandwidth_bytes_per_s for link in change.cluster.links}
    assert [group.name for group in change.cluster.groups] == ["H100", "A100-80", "H100-7", "A100-80-7"]
    assert {between[frozenset(pair)] for pair in (("H100-7", "A100-80"), ("H100-7", "A100-80-7"))} == {3e9}
    assert between[frozenset(("H100", "H100-7"))] > 3e9


def test_of_many_nodes_that_lost_unlike_numbers_the_largest_groups_are_kept() -> None:
    change = changed_cluster(resolve_gpus("40xH100"), lost="0,8,16-17,24-26,32-35")
    assert change.broken == ("H100-7", "H100-6")
    assert [group.devices for group in change.cluster.groups] == [14, 6]
    assert change.stranded == 5 + 4
    again = changed_cluster(change.cluster, lost="H100-6")
    assert again.cluster.devices == 14


def test_nodes_that_are_left_keep_their_places_and_the_last_or_added_ones_fill_the_holes() -> None:
    fewer = changed_cluster(resolve_gpus("4x2xH100"), lost="2-3")
    assert fewer.number_after.tolist() == [0, 1, -1, -1, 4, 5, 2, 3]
    replaced = changed_cluster(resolve_gpus("4x2xH100"), lost="2-3", added="1x2xH100")
    assert replaced.number_after.tolist() == [0, 1, -1, -1, 4, 5, 6, 7]


def test_the_neighbours_of_a_lost_device_go_on_training() -> None:
    before = plan("llama-3.2-1b", gpus="8xH100", global_batch=64, seq_len=2048, top=1)[0]
    assert isinstance(before.job, Job)
    again = replan(before.job, lost="3")
    assert again.best.plan.plan.devices > 4
    # Of whole nodes there is none; by powers of two it would take twice as long.
    assert again.best.step_time_s < 1.6 * before.estimate.step_time_s
    assert "H100-7" in again.text


def test_added_devices_join_their_group_or_form_one() -> None:
    change = changed_cluster(resolve_gpus("8xH100"), added="16xH100,8xA100-80")
    assert [(group.name, group.nodes) for group in change.cluster.groups] == [("H100", 3), ("A100-80", 1)]
    assert [domain.size for domain in change.cluster.groups[0].domains] == [8, 24]
    assert change.added == 24
    assert change.cluster.links[0].between == ("H100", "A100-80")


def test_a_group_of_any_size_is_resized_to_any_other() -> None:
    for text in ("8xH100", "64xH100", "144xGB200", "16xH100-NVL"):
        group = resolve_gpus(text).groups[0]
        for nodes in (1, 2, 5, 40):
            other = resized(group, nodes)
            assert other.devices == nodes * group.devices_per_node
            assert other.domains[-1].size == other.devices


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("8xH1000", "did you mean H100"),
        ("40xH100", "there are 32 of them"),
        ("30-40", "devices count from 0 to 31"),
        ("a node", "it names no group or device"),
        ("32xH100", "every node is lost"),
        (None, "nothing is lost and nothing added"),
    ],
)
def test_a_change_that_cannot_be_is_a_clear_error(lost: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        changed_cluster(resolve_gpus("32xH100"), lost=lost)


def test_unknown_devices_cannot_be_added() -> None:
    with pytest.raises(UnsupportedError):
        changed_cluster(resolve_gpus("32xH100"), added="8xH1000")


def test_a_run_that_failures_interrupt_is_planned_again_as_a_step(job: Job) -> None:
    interrupted = replace(job.workload, tokens=1e12, failures=Failures(rate_per_device_hour=1e-5))
    again = replan(replace(job, workload=interrupted), lost="2xH100", pin=["tp=1", "cp=1", "vpp=1", "recompute=none"])
    assert again.answer.run is None
    assert again.answer[0].estimate.step_time_s > 0


def test_a_plan_is_made_for_what_is_left_with_what_it_moves(job: Job, found: Replanned) -> None:
    assert found.change.cluster.devices == 6
    assert found.best.plan.job.workload == job.workload
    # A quarter of the sharded optimizer is gone with two of its eight devices: master copies and two moments.
    tables = job.model.parameters + job.model.head_parameters
    assert found.best.state.lost_bytes == pytest.approx(12 * tables / 4, rel=0.25)
    document = found.to_dict()
    assert document["moves"][0]["step_time_s"] == pytest.approx(found.best.step_time_s)
    assert "state to move:" in found.text
    assert "to be read from a checkpoint" in found.text


def test_what_has_changed_since_the_plan_was_made_is_a_note(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(write_job(job, replace(made_with(job), calibration="sha256:of another time")))
    again = replan(path, lost="2xH100", pin=["tp=1", "cp=1", "vpp=1", "recompute=none"], top=1)
    assert "the calibration has changed since this plan was made" in again.notes[0]
    assert again.notes[0] in again.text


def test_the_first_plan_is_the_quickest_or_as_quick_and_moves_less(found: Replanned) -> None:
    quickest = min(move.step_time_s for move in found.moves)
    assert found.best.step_time_s <= 1.01 * quickest
    near = [move for move in found.moves if move.step_time_s <= 1.01 * quickest]
    assert found.best.state.moved_bytes == min(move.state.moved_bytes for move in near)


def test_an_answer_says_where_its_first_plan_is_not_the_one_of_most_steps(found: Replanned) -> None:
    first_s, *others_s = (move.worth_s(found.horizon_s) for move in found.moves)
    assert ("the one that moves least" in found.text) == (min(others_s) < first_s)


def test_unequal_pipelines_use_what_a_batch_that_does_not_divide_leaves(job: Job) -> None:
    odd = replan(job, lost="2xH100", added="4x2xH100", pin=["pp=1", "tp=1", "cp=1", "vpp=1", "recompute=none"])
    assert odd.change.cluster.devices == 14
    used = odd.best.plan.plan.devices
    assert used == 14 or any(f"{14 - used} idle" in note for note in odd.notes)
    assert odd.best.plan.plan.global_batch == job.workload.global_batch


def test_most_of_a_cluster_that_lost_a_node_is_used_again() -> None:
    before = plan("llama-3.1-70b", gpus="32x8xH100", global_batch=1024, top=1)[0]
    again = replan(before.job, lost="8xH100", top=1)
    # 31 nodes: a prime that neither batch, layers nor heads have.
    assert again.best.plan.plan.devices >= 240
    assert len(again.best.plan.plan.pipelines) > 1
    assert again.best.step_time_s < 1.1 * before.estimate.step_time_s * 256 / 248


def test_a_plan_file_is_planned_again(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(write_job(job))
    grown = replan(path, added="2x2xH100", top=1, pin=["tp=1", "cp=1", "vpp=1", "pp=1", "recompute=none"])
    assert grown.change.cluster.devices == 12
    assert grown.best.state.lost_bytes == 0


def test_devices_that_may_not_talk_to_the_rest_are_idle_for_that() -> None:
    before = plan("llama-3.2-1b", gpus="8xH100,8xMI300X,8xA100-80", global_batch=32, seq_len=2048, top=1)
    again = replan(before.best.job, lost="A100-80", top=1)
    assert "on 16 devices (8 H100, 8 MI300X) after 8 lost" in again.text
    assert any("share no communicator" in note for note in again.notes)


def test_what_is_left_of_a_node_makes_no_plan_slower() -> None:
    """Over fewer groups shares are finer: those of whole nodes are planned by themselves, too."""
    before = plan("llama-3.2-1b", gpus="32xGB200", global_batch=64, seq_len=2048, top=1)[0]
    assert isinstance(before.job, Job)
    some, whole = (replan(before.job, lost=lost, top=1).best.step_time_s for lost in ("3", "0-3"))
    assert some <= whole * 1.001
