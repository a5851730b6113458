"""Tables with communication, sharding, paging, offloading and updates, and how the simulator runs their lanes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Kind, ScheduleTable, Times, makespans, simulate, with_communication
from meshwright.schedules.communication import batches
from meshwright.schedules.kinds import LANE, Lane
from meshwright.schedules.memory import Footprint
from meshwright.schedules.named.bpipe import BPipe
from meshwright.schedules.named.mobius import Mobius
from meshwright.schedules.named.pipedream import PipeDream
from meshwright.schedules.named.pipedream_2bw import PipeDream2BW
from meshwright.schedules.optimizer_step import live_versions, with_optimizer, with_updates
from meshwright.schedules.pairing import peer
from meshwright.schedules.sharding import with_sharding
from tests.schedules.drawn import Drawn, durations, tables

SEEDS = st.integers(0, 2**16)


def naive_lanes(table: ScheduleTable, seconds: np.ndarray) -> list[float]:
    """End of every task, one after the other: its lane is free, the compute task listed before is done, inputs are."""
    ends: dict[int, float] = {}
    left = [list(range(table.first[worker], table.first[worker + 1])) for worker in range(table.p)]
    lanes: dict[tuple[int, int, int], float] = {}
    others = peer(table)
    moved = True
    while moved:
        moved = False
        for worker, own in enumerate(left):
            while own:
                lane = Lane(LANE[table.kind[own[0]]])
                event = [own[0]]
                while table.fused is not None and len(own) > len(event) and table.fused[own[len(event)]]:
                    event.append(own[len(event)])
                inputs = [int(needed) for task in event for needed in table.needs[task] if needed >= 0]
                if any(needed not in ends for needed in inputs):
                    break
                ready = [0.0, *(ends[needed] for needed in inputs)]
                if lane != Lane.RECEIVE:
                    channel = (worker, int(lane), int(others[own[0]]))
                    ready += [lanes.get(channel, 0.0), lanes.get((worker, int(Lane.COMPUTE), -1), 0.0)]
                    lanes[channel] = max(ready) + sum(seconds[task] for task in event)
                ends.update(dict.fromkeys(event, max(ready) + sum(seconds[task] for task in event)))
                del own[: len(event)]
                moved = True
    assert not any(left)
    return [ends[task] for task in range(table.tasks)]


@settings(max_examples=25, deadline=None)
@given(drawn=tables(), seed=SEEDS, which=st.integers(0, 31), ahead=st.integers(1, 3))
def test_lanes_run_beside_each_other(drawn: Drawn, seed: int, which: int, ahead: int) -> None:
    plain = drawn.table()
    table = with_sharding(plain, ahead=ahead, reduce_each=bool(which & 16)) if which & 1 else plain
    table = with_optimizer(table) if which & 4 else table
    table = with_communication(table) if which & 8 else table
    own = table.kind <= Kind.X
    # What passes add leaves the order of the rest alone, and the result is written and read like any table.
    assert [table.name(task) for task in np.nonzero(own)[0].tolist()] == [plain.name(t) for t in range(plain.tasks)]
    again = ScheduleTable.from_dict(table.to_dict())
    assert again.entries() == table.entries()
    times = _with_others(durations(plain, seed), table, seed)
    timeline = simulate(table, times)
    seconds = timeline.solution.task_s
    latency_free = Times(**{**_fields(times), "transfer_s": 0.0, "gradient_transfer_s": None})
    np.testing.assert_allclose(simulate(table, latency_free).end_s, naive_lanes(table, seconds), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(makespans(table, times), timeline.worker_end_s, rtol=1e-10, atol=1e-12)
    path = timeline.critical_path()
    assert (
        timeline.makespan_s == pytest.approx(seconds[path.tasks].sum() + path.wait_s.sum()) or table.fused is not None
    )


@settings(max_examples=25, deadline=None)
@given(drawn=tables())
def test_messages_are_sent_behind_their_producer_and_in_one_order(drawn: Drawn) -> None:
    plain = drawn.table()
    table = with_communication(plain)
    assert with_communication(table) is table
    assert int((LANE[table.kind] == Lane.SEND).sum()) == int(plain.crosses.sum())
    for task in np.nonzero(LANE[table.kind] == Lane.SEND)[0].tolist():
        before = task - 1
        while LANE[table.kind[before]] == Lane.SEND:
            before -= 1
        assert table.node[before] == table.node[table.needs[task, 1]]
    number, other = batches(table), peer(table)
    for batch in range(number.max() + 1):
        members = np.nonzero(number == batch)[0]
        assert len(set(other[members].tolist())) == 1
        assert len(set(table.worker[members].tolist())) == 1
        between = np.arange(members[0], members[-1] + 1)
        assert (number[between] >= 0).all()


def test_1f1b_exchanges_with_one_peer_at_a_time() -> None:
    table = with_communication(SCHEDULES["1f1b"].table(3, 4))
    steady = "RECV_B0.0 B0.0 SEND_B0.0 RECV_F0.2 F0.2 SEND_F0.2 RECV_B0.1 B0.1"
    assert steady in " ".join(table.entries()[1])
    names = [table.name(task) for task in range(table.tasks)]
    number = batches(table)
    together = number[names.index("SEND_B0.0", table.first[1])]
    own = [names[task] for task in np.nonzero(table.worker == 1)[0].tolist() if number[task] == together]
    assert own == ["SEND_B0.0", "RECV_F0.2"]


def test_breadth_first_gathers_each_chunk_once_for_each_direction() -> None:
    breadth, interleaved = (with_sharding(SCHEDULES[name].table(4, 16, 2)) for name in ("breadth-first", "interleaved"))
    # The last chunk of a worker turns from forwards to backwards without another one between.
    assert int((breadth.kind == Kind.UNSHARD).sum()) == 4 * 3
    assert int((interleaved.kind == Kind.UNSHARD).sum()) > 2 * int((breadth.kind == Kind.UNSHARD).sum())


@pytest.mark.parametrize(("reduce_each", "each"), [(None, 4), (True, 4), (False, 1)])
def test_gradients_are_reduced_behind_every_run_or_behind_the_last_of_a_chunk(
    reduce_each: bool | None, each: int
) -> None:
    # Sixteen micro-batches on four workers of two chunks: four groups of gradients of each chunk.
    plain = SCHEDULES["interleaved"].table(4, 16, 2)
    table = with_sharding(plain) if reduce_each is None else with_sharding(plain, reduce_each=reduce_each)
    reduces = table.kind == Kind.REDUCE
    counts = np.bincount(table.stage[reduces], minlength=8)
    assert (counts >= each).all() if each > 1 else (counts == 1).all()
    for stage in range(8):
        last_gradient = np.nonzero((table.stage == stage) & np.isin(table.kind, (Kind.B, Kind.I, Kind.W)))[0].max()
        assert np.nonzero(reduces & (table.stage == stage))[0].max() > last_gradient


def test_gathered_weights_are_counted_between_unshard_and_reshard() -> None:
    table = with_sharding(SCHEDULES["breadth-first"].table(2, 3, 2), ahead=1)
    times = _with_others(Times.equal(2, 2), table, 0, scale=0.0)
    used = simulate(table, times).memory(Footprint(activation_bytes=0.0, gathered_bytes=10.0))
    assert used.peak_bytes.tolist() == [20.0, 20.0]
    whole = simulate(table, times).memory(Footprint(activation_bytes=0.0, gathered_bytes=10.0, static_bytes=5.0))
    assert (whole.live_bytes[whole.first[1:] - 1] == 5.0).all()


def test_pipedream_stashes_p_minus_r_versions() -> None:
    pipedream = PipeDream()
    table = pipedream.versioned_table(4, 9)
    assert live_versions(table).tolist() == list(pipedream.worker_weight_copies(4, 9)) == [4, 3, 2, 1]
    forwards = table.kind == Kind.F
    expected = [
        pipedream.weight_version(4, worker, unit)
        for worker, unit in zip(table.worker[forwards].tolist(), table.micro_batch[forwards].tolist(), strict=True)
    ]
    assert table.version is not None
    assert table.version[forwards].tolist() == expected
    times = _with_others(Times.equal(4), table, 0, scale=0.0)
    used = simulate(table, times).memory(Footprint(activation_bytes=0.0, version_bytes=1.0, static_bytes=1.0))
    assert used.peak_bytes.tolist() == [4, 3, 2, 1]


def test_2bw_keeps_two_versions() -> None:
    table = PipeDream2BW().versioned_table(4, 5, updates=4)
    assert live_versions(table).max() == 2
    assert int((table.kind == Kind.OPT).sum()) == 4 * 4
    assert table.entries()[0][-2:] == ["B0.19@2", "OPT0.3"]


def test_mobius_keeps_two_stages_on_the_device() -> None:
    table = Mobius().paged_table(3, 4, 4)
    times = _with_others(Times.equal(3, 4), table, 0, scale=0.0)
    used = simulate(table, times).memory(Footprint(activation_bytes=0.0, paged_bytes=1.0))
    assert used.peak_bytes.tolist() == [2, 2, 2]
    # Uploads that take longer than the run before them delay the stage.
    slow = {kind: np.full((3, 4), 100.0 if kind is Kind.RELOAD_W else 0.0) for kind in times.others_s}
    late = simulate(table, Times(**{**_fields(times), "others_s": slow}))
    assert late.makespan_s > 100.0 * 7
    assert late.exposed_s.max() > 100.0


def test_bpipe_evicts_down_to_its_limit() -> None:
    table = BPipe().exchange_table(8, 16)
    times = _with_others(Times.equal(8), table, 0, scale=0.0)
    used = simulate(table, times).memory(Footprint(activation_bytes=1.0))
    assert used.peak_bytes.max() <= BPipe().limit(8) == 5
    assert simulate(table, times).makespan_s == simulate(SCHEDULES["1f1b"].table(8, 16), Times.equal(8)).makespan_s


def test_updates_follow_their_gradients() -> None:
    table = with_updates(SCHEDULES["1f1b"].table(2, 4), 2)
    assert " ".join(table.entries()[1]) == "F0.0@0 B0.0@0 F0.1@0 B0.1@0 OPT0.0 F0.2@1 B0.2@1 F0.3@1 B0.3@1 OPT0.1"


def _fields(times: Times) -> dict[str, object]:
    return {name: getattr(times, name) for name in times.__slots__}


def _with_others(times: Times, table: ScheduleTable, seed: int, scale: float = 1.0) -> Times:
    """The times with those of every other kind in the table."""
    rng = np.random.default_rng(seed)
    others = {
        kind: scale * rng.random((table.p, table.v))
        for kind in sorted(table.kinds)
        if kind == Kind.OPT or LANE[kind] > Lane.RECEIVE
    }
    return Times(**{**_fields(times), "others_s": others})
