"""Data parallelism around a step: what is sent, what hides it, what stays."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.estimate.data.network import DataGroups, DataNetwork
from meshwright.estimate.data.sync import (
    BUCKET_PARAMETERS,
    LayerSync,
    StepCompute,
    StepSync,
    buckets_of,
    layer_sync,
    step_sync,
)
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.library.clusters import resolve_gpus
from meshwright.library.software import software
from meshwright.schedules import schedule_named
from meshwright.specs import Workload
from meshwright.specs.precision import precision
from meshwright.specs.software import Software
from meshwright.specs.strategy import COLLECTIVE
from meshwright.strategies.data import ShardingColumns
from tests.strategies.columns import sharding

BF16 = precision("bf16")
NAMES = ("z0", "z1", "z2", "z3", "fsdp", "fsdp-keep", "hsdp")


PUNCTUAL = replace(software(), overlap=1.0, step_s=0.0, gradient_touches=0.0)
"""A framework that issues all communication in time and does nothing else between steps."""


def hardware(gpus: str = "64xH100", driver: Software = PUNCTUAL) -> Hardware:
    return hardware_of(resolve_gpus(gpus).groups[0], Workload(seq_len=1, global_batch=1, precision=BF16), driver)


def network(name: str, ranks: int, *, groups: int = 1, gpus: str = "64xH100", offload: float = 0.0) -> DataNetwork:
    choice = sharding(name, ranks, groups=groups, offload=offload)
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    return DataNetwork(choice, strides, hardware(gpus))


def column(value: float) -> np.ndarray:
    return np.array([float(value)])


def around(
    name: str,
    ranks: int = 64,
    *,
    dense: float = 1e9,
    experts: float = 0.0,
    forward_s: float = 0.0,
    backward_s: float = 0.0,
    m: int = 1,
    passes: float = 1.0,
    groups: int = 1,
    offload: float = 0.0,
    training: bool = True,
    overlap: bool = True,
    meeting_s: float = 0.0,
    ahead_s: float = 0.0,
    hops_s: float = 0.0,
    expert_ranks: int | None = None,
    whole: int = 0,
) -> StepSync:
    choice = replace(sharding(name, ranks, groups=groups, offload=offload), overlap=np.array([overlap]))
    choice = replace(choice, whole=np.array([whole]))
    if expert_ranks is not None:
        choice = replace(choice, expert_shard=np.array([expert_ranks]))
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    return step_sync(
        column(dense),
        column(experts),
        StepCompute(
            forward_s=column(forward_s),
            backward_s=column(backward_s),
            micro_batches=column(m),
            passes=passes,
            meeting_s=meeting_s,
            ahead_s=ahead_s,
            hops_s=hops_s,
        ),
        choice,
        DataNetwork(choice, strides, hardware()),
        Workload(seq_len=4096, global_batch=64, training=training),
    )


@pytest.mark.parametrize(("name", "touched"), [("z0", True), ("z1", True), ("z2", True), ("z3", False)])
def test_whole_gradients_are_read_and_written_besides_where_weights_are_whole(name: str, touched: bool) -> None:
    """Zeroed and looked through: 8 bytes of fp32 for each parameter, whatever share of it a rank updates."""
    parameters, often = 1e9, replace(PUNCTUAL, gradient_touches=2.0)
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    choice, workload = sharding(name, 64), Workload(seq_len=4096, global_batch=64)
    compute = StepCompute(forward_s=column(0), backward_s=column(0), micro_batches=column(1))
    found = []
    for driver in (PUNCTUAL, often):
        network = DataNetwork(choice, strides, hardware(driver=driver))
        found.append(seconds(step_sync(column(parameters), column(0), compute, choice, network, workload).optimizer_s))
    bandwidth = hardware().achieved_memory_bytes_per_s
    assert found[1] - found[0] == pytest.approx(8 * parameters / bandwidth if touched else 0.0, abs=1e-12)


def seconds(value: np.ndarray) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def test_reduced_and_gathered_bytes_with_nothing_to_hide_them() -> None:
    """Gradients in fp32 are reduced and weights in bf16 gathered; in one bucket, at once."""
    few = BUCKET_PARAMETERS
    net = network("z1", 64)
    z1 = around("z1", dense=few)
    assert seconds(z1.gradients_s) == pytest.approx(seconds(net.scatter_s(column(4 * few), expert=False)))
    assert seconds(z1.gather_s) == pytest.approx(seconds(net.gather_s(column(2 * few), expert=False)))
    replicated = network("z0", 64, groups=64)
    z0 = around("z0", dense=few, groups=64)
    assert seconds(z0.gradients_s) == pytest.approx(seconds(replicated.replica_sum_s(column(4 * few), expert=False)))
    assert seconds(z0.gather_s) == 0


def test_experts_are_reduced_and_gathered_among_their_own_ranks() -> None:
    """64 ranks of which 8 hold the same experts: what experts add is a scatter and a gather of 8."""
    few = BUCKET_PARAMETERS
    dense, both = (around("z1", dense=few, experts=experts, expert_ranks=8) for experts in (0.0, few))
    eight = network("z1", 8)
    added_s = seconds(both.gradients_s) - seconds(dense.gradients_s)
    assert added_s == pytest.approx(seconds(eight.scatter_s(column(4 * few), expert=True)))
    added_s = seconds(both.gather_s) - seconds(dense.gather_s)
    assert added_s == pytest.approx(seconds(eight.gather_s(column(2 * few), expert=True)))


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_waits_for_nobody(name: str) -> None:
    sync = around(name, 1)
    assert (seconds(sync.gradients_s), seconds(sync.gather_s), seconds(sync.copies_s)) == (0, 0, 0)
    assert seconds(sync.optimizer_s) > 0


@given(
    name=st.sampled_from(NAMES),
    dense=st.floats(1e8, 1e11),
    experts=st.sampled_from([0.0, 1e9, 1e11]),
    shorter=st.floats(0.0, 1.0),
    longer=st.floats(0.0, 1.0),
    m=st.integers(1, 8),
    offload=st.sampled_from([0.0, 1.0]),
)
def test_quicker_compute_never_makes_a_step_longer(
    name: str, dense: float, experts: float, shorter: float, longer: float, m: int, offload: float
) -> None:
    """What compute no longer hides is never more than what it saves, though several transfers hide behind it."""

    def total(backward_s: float) -> float:
        sync = around(name, dense=dense, experts=experts, backward_s=backward_s, m=m, offload=offload)
        return m * backward_s + seconds(sync.gradients_s) + seconds(sync.copies_s)

    low, high = sorted((shorter, longer))
    assert total(low) <= total(high) * (1 + 1e-9)


def test_dense_and_expert_gradients_do_not_hide_behind_the_same_compute_twice() -> None:
    alone = seconds(around("z1", dense=2e10).gradients_s)
    hidden = seconds(around("z1", dense=2e10, backward_s=alone).gradients_s)
    both = seconds(around("z1", dense=2e10, experts=2e10, backward_s=alone).gradients_s)
    assert hidden < 0.2 * alone
    assert both > 0.9 * alone


def test_no_overlap_exposes_everything() -> None:
    hidden, shown = (around("z1", dense=2e10, backward_s=9.0, forward_s=9.0, overlap=o) for o in (True, False))
    assert seconds(hidden.gradients_s) < 0.5 * seconds(shown.gradients_s)
    assert seconds(hidden.gather_s) < 0.5 * seconds(shown.gather_s)


def test_zero_2_scatters_every_micro_batch() -> None:
    one, eight = (seconds(around("z2", dense=2e10, m=m).gradients_s) for m in (1, 8))
    assert eight == pytest.approx(8 * one)
    assert seconds(around("z1", dense=2e10, m=8).gradients_s) == pytest.approx(one)


def test_forward_only_gathers_what_is_sharded_and_sums_nothing() -> None:
    for name in NAMES:
        sync = around(name, groups=8 if name == "hsdp" else 1, training=False)
        assert (seconds(sync.gradients_s), seconds(sync.optimizer_s), seconds(sync.offload_s)) == (0, 0, 0)
        assert (seconds(sync.gather_s) > 0) == (name == "fsdp-keep")


def layer(name: str, *, forward_s: float = 0.0, backward_s: float = 0.0, groups: int = 1, whole: int = 0) -> LayerSync:
    choice = replace(sharding(name, 64, groups=groups), whole=np.array([whole]))
    return layer_sync(
        column(1e9),
        column(0.0),
        column(forward_s),
        column(backward_s),
        choice,
        network(name, 64, groups=groups),
        Workload(seq_len=4096, global_batch=64),
    )


def test_sharded_weights_are_gathered_twice_and_gradients_scattered_once() -> None:
    """3 (d-1)/d of the weights per micro-batch, the gradients in the format they are reduced in."""
    net = network("z3", 64)
    gather = seconds(net.gather_s(column(2e9), expert=False))
    scatter = seconds(net.scatter_s(column(4e9), expert=False))
    for name in ("z3", "fsdp"):
        assert seconds(layer(name).forward_s) == pytest.approx(gather)
        assert seconds(layer(name).backward_s) == pytest.approx(gather + scatter)
    assert seconds(layer("fsdp-keep").forward_s) == 0
    assert seconds(layer("fsdp-keep").backward_s) == pytest.approx(scatter)
    for name in ("z0", "z1", "z2"):
        assert (seconds(layer(name).forward_s), seconds(layer(name).backward_s)) == (0, 0)


def test_whole_gradients_are_scattered_once_a_step() -> None:
    """Behind the last backward, or after it where stages of a pipeline hold them."""
    few = BUCKET_PARAMETERS
    gather, scatter = (
        seconds(call(column(size * few), expert=False))
        for call, size in ((network("fsdp", 64).gather_s, 2), (network("fsdp", 64).scatter_s, 4))
    )
    one, none = layer("fsdp", whole=1), layer("fsdp")
    layers = seconds(network("fsdp", 64).scatter_s(column(4e9), expert=False))
    assert seconds(none.backward_s) - seconds(one.backward_s) == pytest.approx(layers)
    assert seconds(one.forward_s) == seconds(none.forward_s)
    assert seconds(around("fsdp", dense=few, m=8).gradients_s) == 0
    for whole in (1, 2):
        assert seconds(around("fsdp", dense=few, m=8, whole=whole).gradients_s) == pytest.approx(scatter)
    hidden, shown = (
        seconds(around("fsdp", dense=8 * few, m=8, whole=whole, backward_s=10 * gather).gradients_s) for whole in (1, 2)
    )
    assert hidden < shown


def test_long_layers_hide_their_gathers() -> None:
    shown, hidden = layer("fsdp"), layer("fsdp", forward_s=1.0, backward_s=1.0)
    assert seconds(hidden.forward_s) < 0.2 * seconds(shown.forward_s)
    assert seconds(hidden.backward_s) < 0.2 * seconds(shown.backward_s)


def test_groups_inside_a_node_gather_over_its_links() -> None:
    """And sum a shard of the gradients between nodes once per step."""
    whole, inside = layer("fsdp"), layer("hsdp", groups=8)
    assert seconds(inside.forward_s) < seconds(whole.forward_s)
    assert seconds(around("hsdp", groups=8).gradients_s) > 0
    assert seconds(around("fsdp").gradients_s) == 0


def test_an_optimizer_on_the_host_is_fed_over_its_link() -> None:
    away, here = (around("z1", 8, backward_s=1.0, offload=share) for share in (1.0, 0.0))
    assert seconds(away.optimizer_s) == 0 < seconds(here.optimizer_s)
    # 1e9 / 8 parameters: 30 bytes each at an eighth of 56 GB/s for Adam, 2 bytes back; the copies hide behind backward.
    assert seconds(away.offload_s) == pytest.approx(1e9 / 8 * (30 / (56e9 / 8) + 2 / hardware().host_bytes_per_s))
    assert seconds(away.copies_s) == 0
    assert seconds(around("z1", 8, offload=1.0).copies_s) >= 0


def test_what_is_issued_late_stays_exposed() -> None:
    """However long the layer is, a share of the gather has nothing beside it in time."""
    net, choice = network("fsdp", 64), sharding("fsdp", 64)
    gather = seconds(net.gather_s(column(2e9), expert=False))
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    late = DataNetwork(choice, strides, hardware(driver=replace(PUNCTUAL, overlap=0.75)))
    costs = [column(1e9), column(0.0), column(100.0), column(100.0)]
    workload = Workload(seq_len=4096, global_batch=64)
    on_time_s, late_s = (seconds(layer_sync(*costs, choice, each, workload).forward_s) for each in (net, late))
    slowed = 1 - 1 / net.hardware.efficiency.overlap_slowdown
    assert on_time_s == pytest.approx(gather * slowed)
    assert late_s == pytest.approx(gather * (0.25 + 0.75 * slowed))


def test_everything_else_of_a_step_is_paid_once() -> None:
    """Data, clipping and logging come with the update, when there is one."""
    choice = sharding("z1", 64)
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    busy = DataNetwork(choice, strides, hardware(driver=replace(PUNCTUAL, step_s=0.5)))
    for training in (True, False):
        workload = Workload(seq_len=4096, global_batch=64, training=training)
        nothing = StepCompute(forward_s=column(0.0), backward_s=column(0.0), micro_batches=column(4))
        rest = column(1e9), column(0.0), nothing
        extra = step_sync(*rest, choice, busy, workload).optimizer_s - around("z1", training=training, m=4).optimizer_s
        assert seconds(extra) == pytest.approx(0.5 if training else 0.0)


def test_gradients_of_chunks_hide_behind_the_chunks_that_follow() -> None:
    """Four chunks on eight workers: (1 + 3 x 8) / 4 = 6.25 backwards beside which all but the last bucket leaves."""
    passes = schedule_named("interleaved").last_passes(8, 64, 4)
    assert passes == 6.25
    assert schedule_named("1f1b").last_passes(8, 64, 1) == 1.0
    assert schedule_named("breadth-first").last_passes(8, 64, 4) == 48.25
    few = 40 * BUCKET_PARAMETERS
    once, often = (around("z1", dense=few, backward_s=0.005, forward_s=0.003, passes=n) for n in (1.0, passes))
    alone = around("z1", dense=few)
    assert seconds(often.gradients_s) < seconds(once.gradients_s) < seconds(alone.gradients_s)
    assert seconds(often.gather_s) < seconds(once.gather_s)


@given(
    name=st.sampled_from(["z0", "z1", "z2"]),
    dense=st.floats(1e8, 1e11),
    backward_s=st.floats(0.0, 10.0),
    share=st.floats(0.0, 1.0),
    m=st.integers(1, 4),
)
def test_exchanges_that_go_first_never_cost_more_than_those_that_share_links(
    name: str, dense: float, backward_s: float, share: float, m: int
) -> None:
    """Lina: what both have to send takes the links as long; those that go first leave them idle for no less long."""
    exchanged_s = share * backward_s
    alone, shared, first = (
        seconds(around(name, dense=dense, backward_s=backward_s, m=m, groups=64, **how).gradients_s)
        for how in ({}, {"meeting_s": exchanged_s}, {"ahead_s": exchanged_s})
    )
    assert alone <= first * (1 + 1e-9)
    assert first <= shared * (1 + 1e-9)
    # A flow beside exchanges makes them twice as long at most.
    assert shared <= alone + exchanged_s * (m if name == "z2" else 1) * (1 + 1e-9)


def test_few_gradients_cost_what_they_send_beside_exchanges_and_nothing_behind_them() -> None:
    usual, shared, first = (
        seconds(around("z0", dense=1e9, backward_s=10.0, groups=64, **how).gradients_s)
        for how in ({}, {"meeting_s": 5.0}, {"ahead_s": 5.0})
    )
    assert first == pytest.approx(usual)
    sent_s = seconds(around("z0", dense=1e9, groups=64, overlap=False).gradients_s)
    assert usual < shared == pytest.approx(sent_s)


@pytest.mark.parametrize(("exchanged", "meets"), [(8, 0), (16, 1)])
def test_gradients_meet_exchanges_that_leave_a_node_as_they_do(exchanged: int, meets: int) -> None:
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([exchanged]))
    assert seconds(DataNetwork(sharding("z1", 64), strides, hardware()).meets_exchanges) == meets


def unlike(name: str, ranks: int = 64, *, groups: int = 1, offload: float = 0.0, **own: object) -> ShardingColumns:
    """A row of which everything is stated."""
    usual: dict[str, object] = {
        "gather_bytes": np.nan,
        "reduce_bytes": np.nan,
        "offload_gradients": 0.0,
        "offload_weights": 0.0,
        "offload_disk": 0.0,
        "delayed_update": 0.0,
        "secondary": 0,
        "prefetch": 1,
        "averaging_steps": 0.0,
        "outer": False,
        "whole": 0,
        "tile": 0.0,
    }
    stated = {key: np.array([own.get(key, value)]) for key, value in usual.items()}
    stated["overlap"] = np.array([own.get("overlap", True)])
    stated["compression"] = np.array([own.get("compression", "")])
    stated["passing"] = np.array([own.get("passing", COLLECTIVE)])
    return replace(sharding(name, ranks, groups=groups, offload=offload), **stated)


ROWS = {
    "z0": unlike("z0", groups=64),
    "z0 averaged": unlike("z0", groups=64, averaging_steps=8.0, outer=True),
    "z0 compressed": unlike("z0", groups=64, compression="powersgd4"),
    "z0 on the host": unlike("z0", groups=64, offload=1.0),
    "z1": unlike("z1"),
    "z1 without overlap": unlike("z1", overlap=False),
    "z1 in tiles": unlike("z1", tile=1e6),
    "z1 on the host": unlike("z1", 8, offload=1.0),
    "z1 streamed, later": unlike("z1", 8, offload=1.0, offload_gradients=1.0, delayed_update=1.0),
    "z2": unlike("z2"),
    "z2 in groups": unlike("z2", groups=8),
    "z3 with a second copy": unlike("z3", secondary=8),
    "z3 in 8 bits": unlike("z3", gather_bytes=1.0, reduce_bytes=2.0),
    "fsdp": unlike("fsdp"),
    "fsdp with whole gradients": unlike("fsdp", whole=1),
    "fsdp with whole weights": unlike("fsdp-keep", whole=2),
    "fsdp two layers ahead": unlike("fsdp", prefetch=2),
    "z3 with nothing ahead": unlike("z3", prefetch=0),
    "fsdp in rings": unlike("fsdp", passing="ring"),
    "hsdp": unlike("hsdp", groups=8),
    "one rank": unlike("z2", 1),
}
WORKLOAD = Workload(seq_len=4096, global_batch=64)


def stacked(rows: list[ShardingColumns]) -> ShardingColumns:
    """Rows below each other."""
    return ShardingColumns(
        **{one.name: np.concatenate([getattr(row, one.name) for row in rows]) for one in fields(ShardingColumns)}
    )


def synced(choice: ShardingColumns, experts: float, workload: Workload = WORKLOAD) -> dict[str, np.ndarray]:
    """What a choice costs a step and a layer."""
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    net = DataNetwork(choice, strides, hardware())
    compute = StepCompute(
        forward_s=column(0.004),
        backward_s=column(0.009),
        micro_batches=column(3),
        passes=1.5,
        meeting_s=0.001,
        ahead_s=0.0005,
    )
    dense = column(3e8)
    payloads = column(2e6), column(3e6)
    step = step_sync(dense, column(experts), compute, choice, net, workload, payloads)
    of_layer = layer_sync(
        dense / 8,
        column(experts / 8),
        column(0.0005),
        column(0.001),
        choice,
        net,
        workload,
        (column(1e7), column(experts / 100)),
    )
    rows = choice.zero.shape
    return {
        one.name: np.broadcast_to(getattr(of, one.name), rows) for of in (step, of_layer) for one in fields(type(of))
    }


@pytest.mark.parametrize("experts", [0.0, 5e8])
def test_rows_beside_each_other_cost_what_each_costs_alone(experts: float) -> None:
    """A row alone takes the short ways through the sums, rows together none of them."""
    together = synced(stacked(list(ROWS.values())), experts)
    for number, (name, choice) in enumerate(ROWS.items()):
        for what, found in synced(choice, experts).items():
            assert seconds(found) == pytest.approx(together[what][number], rel=1e-9, abs=1e-12), (name, what)


def bare(name: str) -> ShardingColumns:
    """A row with nothing stated that it does not use."""
    choice = ROWS[name]
    unused = {
        "gather_bytes": np.isnan,
        "reduce_bytes": np.isnan,
        "compression": lambda word: word == "",
        "passing": lambda word: word == COLLECTIVE,
        "prefetch": lambda depth: depth == 1,
        **dict.fromkeys(
            (
                "offload_gradients",
                "offload_weights",
                "offload_disk",
                "delayed_update",
                "secondary",
                "averaging_steps",
                "outer",
                "whole",
                "tile",
            ),
            np.logical_not,
        ),
    }
    return replace(choice, **{key: None for key, says in unused.items() if np.all(says(getattr(choice, key)))})


@pytest.mark.parametrize("name", ROWS)
def test_what_no_row_states_is_what_rows_state_as_none(name: str) -> None:
    for what, found in synced(bare(name), 5e8).items():
        assert seconds(found) == pytest.approx(seconds(synced(ROWS[name], 5e8)[what]), rel=1e-12), what


@pytest.mark.parametrize("name", ROWS)
def test_without_compute_dense_and_expert_parameters_cost_the_sum(name: str) -> None:
    """Nothing hides either of them, so neither hides the other."""
    choice, strides = ROWS[name], DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1]))
    net = DataNetwork(choice, strides, hardware())
    idle = StepCompute(forward_s=column(0.0), backward_s=column(0.0), micro_batches=column(3))
    dense, experts, none = column(3e8), column(5e8), column(0.0)
    sizes = (dense, experts), (dense, none), (none, experts)
    # What tiles and disks do to both together is not the sum; nor is what both send as one message.
    both, first, second = (
        step_sync(*pair, idle, choice, net, WORKLOAD, (pair[0] / 50, pair[1] / 50)) for pair in sizes
    )
    empty = step_sync(none, none, idle, choice, net, WORKLOAD, (none, none))
    for what in ("gradients_s", "gather_s", "optimizer_s", "offload_s"):
        together = seconds(getattr(both, what)) + seconds(getattr(empty, what))
        assert together == pytest.approx(seconds(getattr(first, what)) + seconds(getattr(second, what)), rel=1e-9), what
    if not choice.has_travelling:
        layers = [layer_sync(*pair, none, none, choice, net, WORKLOAD) for pair in sizes]
        empty_layer = layer_sync(none, none, none, none, choice, net, WORKLOAD)
        for what in ("forward_s", "backward_s"):
            whole, one, other = (seconds(getattr(each, what)) for each in layers)
            assert whole + seconds(getattr(empty_layer, what)) == pytest.approx(one + other, rel=1e-9), what


def test_buckets_leave_one_after_the_other_beside_the_backward() -> None:
    """Ten buckets: all but the last beside the backward, at 1 / slowdown of its speed, and the last one after it."""
    size = 10 * BUCKET_PARAMETERS
    net = network("z1", 16)
    each = seconds(net.scatter_s(column(4 * BUCKET_PARAMETERS), expert=False))
    slowed = 1 - 1 / net.hardware.efficiency.overlap_slowdown
    for backward_s in (0.0, 3 * each, 9 * each, 20 * each):
        left = max(9 * each - backward_s, 9 * each * slowed) + each
        assert seconds(around("z1", 16, dense=size, backward_s=backward_s).gradients_s) == pytest.approx(left)
        # z2 sends all ten of the earlier micro-batches beside theirs.
        early = max(10 * each - backward_s, 10 * each * slowed)
        found = around("z2", 16, dense=size, backward_s=backward_s, m=4).gradients_s
        assert seconds(found) == pytest.approx(left + 3 * early)


@pytest.mark.parametrize("passes", [1.0, 3.0])
def test_transfers_between_stages_and_gradients_take_longer_by_the_shorter_of_both(passes: float) -> None:
    """Flows of equal right have half the links each until the shorter ends: all of it is waited for."""
    size = 10 * BUCKET_PARAMETERS
    net = network("z1", 16)
    scattered_s = seconds(net.scatter_s(column(4 * BUCKET_PARAMETERS), expert=False))
    gathered_s = seconds(net.gather_s(column(2 * BUCKET_PARAMETERS), expert=False))
    slowed = 1 - 1 / net.hardware.efficiency.overlap_slowdown
    long_s = 50 * scattered_s
    for hops_s in (0.0, scattered_s, 20 * scattered_s):
        found = around("z1", 16, dense=size, forward_s=long_s, backward_s=long_s, hops_s=hops_s, passes=passes)
        for sent_s, exposed in ((scattered_s, found.gradients_s), (gathered_s, found.gather_s)):
            met_s = min(9 * sent_s, hops_s * passes)
            assert seconds(exposed) == pytest.approx(met_s + (9 * sent_s - met_s) * slowed + sent_s)


def test_transfers_between_stages_meet_nothing_where_gradients_leave_at_the_end() -> None:
    alone, beside = (
        around("z1", 16, dense=4e9, forward_s=9.0, backward_s=9.0, hops_s=hops_s, overlap=False)
        for hops_s in (0.0, 5.0)
    )
    assert seconds(beside.gradients_s) == seconds(alone.gradients_s)
    assert seconds(beside.gather_s) == seconds(alone.gather_s)


@pytest.mark.parametrize(
    ("gpus", "tp", "ranks", "meets"),
    [("64xH100", 1, 8, 0), ("64xH100", 8, 4, 1), ("64xH100", 4, 2, 0), ("64xH100", 1, 16, 1), ("8xH100", 1, 4, 0)],
)
def test_gradients_meet_transfers_between_stages_on_the_links_between_nodes(
    gpus: str, tp: int, ranks: int, meets: int
) -> None:
    """A stage that fills a node or less sums its gradients inside; a larger one sends both over the same adapters."""
    strides = DataGroups(dense_stride=np.array([tp]), expert_stride=np.array([tp]))
    assert seconds(DataNetwork(sharding("z1", ranks), strides, hardware(gpus)).meets_hops) == meets


def test_buckets_grow_with_the_ranks() -> None:
    """40 M parameters, and one more million with each rank above 40."""
    for ranks, size, known in (
        (8, 1.0, 1),
        (8, 40e6, 1),
        (8, 41e6, 2),
        (40, 80e6, 2),
        (100, 400e6, 4),
        (100, 401e6, 5),
    ):
        assert seconds(buckets_of(column(size), column(ranks))) == known


def test_shards_are_summed_between_groups() -> None:
    """Of 8 groups of 8: every rank sums the eighth of the gradients that it keeps."""
    few = BUCKET_PARAMETERS
    net = network("hsdp", 64, groups=8)
    for name in ("hsdp", "z3"):
        found = around(name, dense=few, groups=8)
        assert seconds(found.gradients_s) == pytest.approx(
            seconds(net.replica_sum_s(column(4 * few / 8), expert=False))
        )


def test_zero_1_in_groups_scatters_inside_and_sums_shards_between_them() -> None:
    """Of 8 groups of 8: a reduce-scatter among 8 ranks, then an all-reduce of the eighth that each rank keeps."""
    few = BUCKET_PARAMETERS
    net = network("z1", 64, groups=8)
    found = around("z1", dense=few, groups=8)
    scattered, summed = (
        seconds(one(column(size), expert=False))
        for one, size in ((net.scatter_s, 4 * few), (net.replica_sum_s, 4 * few / 8))
    )
    assert summed > 0
    assert seconds(found.gradients_s) == pytest.approx(scattered + summed)
    assert seconds(found.gather_s) < seconds(around("z1", dense=few).gather_s)


def test_a_second_copy_near_by_serves_the_backward() -> None:
    """Forward gathers over 64 ranks, backward over the 8 of a node, in the format of the weights."""
    choice = replace(unlike("z3", secondary=8), expert_shard=np.array([16]))
    strides = DataGroups(dense_stride=np.array([1]), expert_stride=np.array([4]))
    net = DataNetwork(choice, strides, hardware())
    for dense, experts in ((1e9, 0.0), (0.0, 1e9)):
        found = layer_sync(column(dense), column(experts), column(0.0), column(0.0), choice, net, WORKLOAD)
        kind = experts > 0
        far = seconds(net.gather_s(column(2e9), expert=kind))
        near = seconds(net.second_gather_s(column(2e9), np.array([8]), expert=kind))
        scatter = seconds(net.scatter_s(column(4e9), expert=kind))
        assert near < far
        assert seconds(found.forward_s) == pytest.approx(far, rel=1e-3)
        assert seconds(found.backward_s) == pytest.approx(near + scatter, rel=1e-3)


def test_frozen_weights_are_gathered_twice_as_they_are_stored() -> None:
    net, choice = network("fsdp", 64), sharding("fsdp", 64)
    costs = column(1e9), column(0.0), column(0.0), column(0.0), choice, net, WORKLOAD
    plain = layer_sync(*costs)
    for stored in ((1e9, 0.0), (0.0, 1e9)):
        found = layer_sync(*costs, (column(stored[0]), column(stored[1])))
        added = seconds(net.gather_s(column(1e9), expert=stored[1] > 0))
        assert seconds(found.forward_s) - seconds(plain.forward_s) == pytest.approx(added)
        assert seconds(found.backward_s) - seconds(plain.backward_s) == pytest.approx(added)


def test_travelling_weights_come_from_a_neighbour_and_gradients_go_on() -> None:
    choice = unlike("fsdp", 8, passing="ring")
    net = DataNetwork(choice, DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1])), hardware())
    found = layer_sync(column(1e9), column(5e8), column(0.0), column(0.0), choice, net, WORKLOAD)
    weights, gradients = (seconds(net.pass_s(column(1.5e9 * size), expert=False)) for size in (2, 4))
    assert seconds(found.forward_s) == pytest.approx(weights)
    assert seconds(found.backward_s) == pytest.approx(weights + gradients)


def test_averaged_replicas_send_nothing_but_their_average() -> None:
    """Once in 8 steps 4 bytes of every parameter, which nothing hides."""
    choice = unlike("z0", groups=64, averaging_steps=8.0)
    found = synced(choice, 0.0)["gradients_s"]
    net = DataNetwork(choice, DataGroups(dense_stride=np.array([1]), expert_stride=np.array([1])), hardware())
    assert seconds(found) == pytest.approx(seconds(net.replica_sum_s(column(3e8 * 4), expert=False)) / 8)


def test_tiles_of_the_optimizer_are_launched_one_after_the_other() -> None:
    """64 ranks keep 3e8 / 64 parameters each: in tiles of a million five, so four more of two launches."""
    tiled, whole, one = (synced(unlike("z1", tile=size), 0.0)["optimizer_s"] for size in (1e6, 0.0, 1e12))
    assert seconds(tiled) - seconds(whole) == pytest.approx(4 * 2 * hardware().efficiency.launch_s)
    assert seconds(one) == seconds(whole)


def test_a_delayed_update_has_the_next_step() -> None:
    """What is left of it beyond three micro-batches of 4 and 9 ms."""
    rest = {"offload_gradients": 1.0}
    late, at_once = (
        synced(unlike("z1", 8, offload=1.0, delayed_update=delayed, **rest), 0.0)["offload_s"] for delayed in (1.0, 0.0)
    )
    assert seconds(at_once) > 3 * 0.013
    assert seconds(late) == pytest.approx(seconds(at_once) - 3 * 0.013)


def test_gradients_that_stream_are_waited_for_in_every_micro_batch() -> None:
    """3e8 / 8 gradients of 4 bytes over the host's link, less a backward of 9 ms, three times."""
    found = synced(unlike("z1", 8, offload=1.0, offload_gradients=1.0), 0.0)["copies_s"]
    stream_s = 3e8 / 8 * 4 / hardware().host_bytes_per_s
    assert seconds(found) == pytest.approx(3 * max(stream_s - 0.009, 0.0))
    many = synced(replace(unlike("z1", 8, offload=1.0, offload_gradients=1.0), shard=np.array([1])), 0.0)["copies_s"]
    assert seconds(many) == pytest.approx(3 * (3e8 * 4 / hardware().host_bytes_per_s - 0.009))


def test_pages_of_states_come_and_go_and_shards_of_matrices_too() -> None:
    plain, paged = (
        Workload(seq_len=4096, global_batch=64, optimizer=name) for name in ("adamw-8bit", "paged-adamw-8bit")
    )
    added = [
        seconds(synced(unlike(name), 0.0, paged)["optimizer_s"])
        - seconds(synced(unlike(name), 0.0, plain)["optimizer_s"])
        for name in ("z0", "z1")
    ]
    once = 2 * paged.update.each_bytes(paged.precision.bytes_of("moments")) * 3e8 / hardware().host_bytes_per_s
    assert added == pytest.approx([once, once / 64])


def test_layers_without_overlap_wait_for_all_that_they_gather() -> None:
    net = network("fsdp", 64)
    choice = replace(sharding("fsdp", 64), overlap=np.array([False]))
    found = layer_sync(column(1e9), column(0.0), column(9.0), column(9.0), choice, net, WORKLOAD)
    gather = seconds(net.gather_s(column(2e9), expert=False))
    assert seconds(found.forward_s) == pytest.approx(gather)
    assert seconds(found.backward_s) == pytest.approx(gather + seconds(net.scatter_s(column(4e9), expert=False)))
    forward = replace(WORKLOAD, training=False)
    assert seconds(layer_sync(column(1e9), column(0.0), column(0.0), column(0.0), choice, net, forward).backward_s) == 0


def test_weights_without_overlap_are_waited_for_bucket_by_bucket() -> None:
    found = around("z1", dense=8 * BUCKET_PARAMETERS * 1.6, forward_s=9.0, backward_s=9.0, overlap=False)
    net = network("z1", 64)
    # With 64 ranks a bucket is of 64 M parameters.
    gather, scatter = net.gather_s(column(2 * 64e6), expert=False), net.scatter_s(column(4 * 64e6), expert=False)
    assert seconds(found.gather_s) == pytest.approx(8 * seconds(gather))
    assert seconds(found.gradients_s) == pytest.approx(8 * seconds(scatter))


def test_whole_matrices_are_sent_to_the_rank_that_updates_them() -> None:
    """Where they are sharded: 16 bits there, and 16 bits of the update back."""
    muon = replace(WORKLOAD, optimizer="muon")
    assert muon.update.whole
    there = 2 * seconds(network("z3", 64).gather_s(column(2 * 3e8), expert=False))
    sharded, kept = (seconds(synced(unlike(name), 0.0, muon)["optimizer_s"]) for name in ("z3", "z1"))
    assert sharded == pytest.approx(kept + there)
