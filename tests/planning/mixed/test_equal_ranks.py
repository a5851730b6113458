"""Plans that give every rank the same work, whatever device it stands on: what data-parallel launchers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright import export, plan
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import UnsupportedError
from meshwright.formats.megatron.read import read_flags
from meshwright.formats.shell import read_script
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.equal_ranks import counted_as_one, evener
from meshwright.planning.question.job_inputs import resolve_cluster

MODEL, GPUS, BATCH = "llama-3.1-8b", "8xH100,8xH200", 128


@pytest.fixture(scope="module")
def plans() -> PlanSet:
    return plan(MODEL, gpus=GPUS, global_batch=BATCH, target="accelerate", top=3)


def test_one_fsdp_group_covers_both_kinds(plans: PlanSet) -> None:
    best = plans[0]
    assert best.plan.devices == 16
    assert best.row is not None
    assert best.row.dp * best.row.cp_degree == 16
    assert best.row.sharding.startswith("fsdp")
    assert plans.mixing is not None
    assert (plans.mixing.used, plans.mixing.idle) == (2, ())
    assert best.estimate.step_time_s < (plans.mixing.best_alone.step_time_s or 0.0)


def test_its_ranks_are_priced_as_the_weakest_of_them(plans: PlanSet) -> None:
    (stage,) = plans[0].estimate.stages
    assert stage.group == "H100 + H200"
    alike = plan(MODEL, gpus="16xH100", global_batch=BATCH, target="accelerate", top=1)
    assert plans[0].name == alike[0].name
    assert stage.capacity_bytes == alike[0].estimate.stages[0].capacity_bytes
    assert plans[0].estimate.step_time_s == pytest.approx(alike[0].estimate.step_time_s, rel=0.02)
    assert "every rank has the same work" in " ".join(plans.verdict.why)


def test_it_is_written_for_the_framework_with_the_order_of_its_nodes(plans: PlanSet, tmp_path: Path) -> None:
    written = export(plans[0], "accelerate", tmp_path / "job")
    assert "num_processes: 16" in (tmp_path / "job" / "accelerate.yaml").read_text()
    assert any("H100, then H200" in note for note in written.notes)


def test_each_kind_alone_is_the_best_that_the_target_starts() -> None:
    found = plan("llama-3.2-1b", gpus="2xRTX4090,2xRTX3090", global_batch=64, seq_len=2048, target="deepspeed", top=2)
    alone = plan("llama-3.2-1b", gpus="2xRTX4090", global_batch=64, seq_len=2048, target="deepspeed", top=1)
    assert found[0].estimate.step_time_s == pytest.approx(alone[0].estimate.step_time_s)
    assert found[0].estimate.stages[0].group == "RTX-4090"


def test_the_refusals_of_a_target_are_said_where_it_starts_nothing() -> None:
    with pytest.raises(UnsupportedError, match="rotates"):
        plan(MODEL, gpus="2xH100,2xH200", global_batch=16, target="galvatron")


def test_nodes_of_different_sizes_count_as_more_smaller_ones() -> None:
    cluster = resolve_cluster(None, "1x4xH100,1x6xH200")
    seen = counted_as_one(cluster, [IslandPart(0, 4), IslandPart(1, 6)])
    assert seen is not None
    (group,) = seen.groups
    assert (group.nodes, group.devices_per_node, group.members) == (5, 2, ("H100", "H200"))
    assert [domain.size for domain in group.domains] == [2, 10]


def test_groups_in_several_zones_are_not_one(tmp_path: Path) -> None:
    file = tmp_path / "zones.toml"
    group = '[[group]]\nname = "{0}"\ndevice = "H100"\nnodes = 1\nzone = "{0}"\n'
    file.write_text(group.format("east") + group.format("west"))
    cluster = resolve_cluster(file)
    assert counted_as_one(cluster, [IslandPart(0, 8), IslandPart(1, 8)]) is None


def test_devices_of_two_collective_libraries_are_not_one() -> None:
    cluster = resolve_cluster(None, "8xH100,8xMI300X")
    assert counted_as_one(cluster, [IslandPart(0, 8), IslandPart(1, 8)]) is None


def test_a_device_more_of_an_odd_node_is_never_slower_for_a_launcher() -> None:
    """Nodes of 8 and 5 have one device in common: four of each are quicker than thirteen nodes of one."""
    asked = {"global_batch": 64, "target": "megatron", "top": 1}
    fewer, more = (plan(MODEL, gpus=gpus, **asked) for gpus in ("12xH100", "13xH100"))
    assert more.best.estimate.step_time_s <= fewer.best.estimate.step_time_s * (1 + 1e-9)
    assert more.mixing is not None
    assert [(one.group, one.idle) for one in more.mixing.idle] == [("H100-2", 1)]
    assert [(one.group, one.nodes) for one in more.mixing.places] == [("H100", (0, 0)), ("H100-2", (0, 0))]


def test_an_odd_node_is_started_by_a_launcher_of_its_own() -> None:
    """8 and 5 devices, all of them one group: 8 processes on the first node, 5 on the second."""
    asked = {"global_batch": 104, "target": "deepspeed", "top": 1, "pin": "dp=13"}
    best = plan("llama-3.2-1b", gpus="8xH100,5xH200", **asked)[0]
    written = export(best, "deepspeed")
    assert "torchrun --nproc-per-node $((NODE_RANK < 1 ? 8 : 5)) --nnodes 2 --node-rank $NODE_RANK" in written.start
    assert any("node rank 1 has 5 devices (H200)" in note for note in written.notes)
    script = dict(export(best, "megatron").files)["train.sh"]
    assert "--nproc_per_node $((NODE_RANK < 1 ? 8 : 5)) --nnodes 2" in script
    read = read_flags(script)
    assert not read.problems
    assert (read.started, read.row.dp) == (13, 13)
    assert read_flags(read_script(script, environment={"NODE_RANK": "1"})).started == 13
    numbered = read_flags(script.replace("#!/usr/bin/env bash", "#!/usr/bin/env bash\nNODE_RANK=0"))
    assert numbered.started == 16
    unknown = read_flags(script.replace("NODE_RANK < 1", "NODE_RANK < FULL"))
    assert any("NODE_RANK" in problem.why for problem in unknown.problems)  # no number of devices is guessed


def test_fewer_devices_of_each_node_have_more_in_common() -> None:
    cluster = resolve_cluster(None, "2x8xH100,3x5xH200")
    whole = [IslandPart(0, 16), IslandPart(1, 15)]
    assert evener(cluster, whole) == [
        (IslandPart(0, 16), IslandPart(1, 12)),
    ]
    seen = counted_as_one(cluster, evener(cluster, whole)[0])
    assert seen is not None
    assert (seen.groups[0].nodes, seen.groups[0].devices_per_node) == (7, 4)
    assert evener(resolve_cluster(None, "2x8xH100,3x8xH200"), [IslandPart(0, 16), IslandPart(1, 24)]) == []
