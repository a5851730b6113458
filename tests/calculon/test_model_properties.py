"""What holds for any execution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calculon.executions import KEYS, ExecutionColumns
from meshwright.calculon.inputs import CHOICES, Execution, Network, System
from meshwright.calculon.legality import reject
from meshwright.calculon.model import price, price_for_search, price_memory
from meshwright.calculon.reading import read_application, read_execution, read_system
from meshwright.calculon.statistics import STATISTICS
from tests.calculon.figures import execution, system_named

GPT = read_application("gpt3-175B")
ROOMY = read_system("a100_80e")

TIMES = (
    "fw_time", "bw_time", "optim_step_time", "fw_offload_exposed_time", "bw_offload_exposed_time", "recompute_time",
    "recomm_exposed_time", "bubble_time", "tp_comm_exposed_time", "pp_comm_exposed_time", "dp_comm_exposed_time",
)  # fmt: skip


@st.composite
def executions(draw: st.DrawFn) -> Execution:
    """Executions of gpt3-175B, most of them legal where memory is no object."""
    tensor, pipeline, data = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4, 8), (1, 2, 5, 8), (1, 2, 4)))
    blocks = -(-96 // pipeline)
    chunks = draw(st.sampled_from([one for one in (1, 2, 3, 5, blocks) if blocks % one == 0]))
    micro = draw(st.sampled_from((1, 2, 4)))
    training = draw(st.booleans() | st.just(True))
    comm = draw(st.sampled_from(CHOICES["tensor_par_comm_type"]))
    recompute = draw(st.sampled_from(CHOICES["activation_recompute"])) if training else "none"
    flag = st.booleans()
    return Execution(
        num_procs=tensor * pipeline * data,
        tensor_par=tensor,
        pipeline_par=pipeline,
        data_par=data,
        tensor_par_net=0 if tensor == 8 else 1,
        pipeline_par_net=1,
        data_par_net=1,
        batch_size=data * micro * draw(st.integers(1, 40)),
        microbatch_size=micro,
        datatype="float16",
        fused_activation=draw(flag),
        attention_type=draw(st.sampled_from(("multihead", "multiquery", "flash"))),
        activation_recompute=recompute,
        pipeline_interleaving=1 if pipeline == 1 else chunks,
        optimizer_sharding=data > 1 and draw(flag),
        tensor_par_comm_type=comm,
        tensor_par_overlap=draw(st.sampled_from(CHOICES["tensor_par_overlap"])) if tensor > 1 else "none",
        seq_par_ag_redo=comm == "rs_ag" and recompute != "full" and draw(flag),
        data_par_overlap=training and data > 1 and draw(flag),
        weight_offload=draw(flag),
        activations_offload=draw(flag),
        optimizer_offload=training and draw(flag),
        training=training,
    )


many = st.lists(executions(), min_size=1, max_size=12)


def priced(rows: list[Execution], system: System = ROOMY, *, fixed: bool = False) -> Any:
    return price(GPT, system, ExecutionColumns.from_executions(rows), fixed=fixed)


@given(many)
@settings(max_examples=8)
def test_one_row_equals_many_rows(rows: list[Execution]) -> None:
    together = priced(rows)
    for number, row in enumerate(rows):
        alone = priced([row])
        assert alone.ok[0] == together.ok[number]
        for name in STATISTICS:
            np.testing.assert_equal(alone[name][0], together[name][number])


@given(many, st.booleans())
@settings(max_examples=8)
def test_the_times_add_up_to_the_batch(rows: list[Execution], fixed: bool) -> None:
    answer = priced(rows, fixed=fixed)
    total = sum(answer[name] for name in TIMES)
    np.testing.assert_allclose(total[answer.ok], answer["total_time"][answer.ok], rtol=1e-12)
    sizes = np.asarray([row.batch_size for row in rows])
    np.testing.assert_allclose((answer["sample_rate"] * answer["total_time"])[answer.ok], sizes[answer.ok], rtol=1e-12)


@given(many)
@settings(max_examples=8)
def test_a_search_and_an_estimate_agree_bit_for_bit(rows: list[Execution]) -> None:
    columns = ExecutionColumns.from_executions(rows)
    whole, quick = price(GPT, ROOMY, columns), price_for_search(GPT, ROOMY, columns)
    assert (whole.reason == quick.reason).all()
    legal = reject(GPT, ROOMY, columns) == 0
    assert (whole["total_time"][legal] == quick.total_time_s[legal]).all()
    memory = price_memory(GPT, ROOMY, columns.take(legal))
    assert (memory.tier1_bytes == whole["proc_mem_tier1_cap_req"][legal]).all()
    assert (memory.tier2_bytes == whole["proc_mem_tier2_cap_req"][legal]).all()


def faster(network: Network) -> Network:
    return replace(network, bandwidth_bytes_per_s=1.7 * network.bandwidth_bytes_per_s)


@given(many, st.sampled_from(("networks", "mem1", "mem2")))
@settings(max_examples=12)
def test_more_bandwidth_is_never_slower_when_fixed(rows: list[Execution], part: str) -> None:
    if part == "networks":
        better = replace(ROOMY, networks=tuple(faster(network) for network in ROOMY.networks))
    else:
        tier = getattr(ROOMY, part)
        better = replace(ROOMY, **{part: replace(tier, rate=replace(tier.rate, peak=1.7 * tier.rate.peak))})
    before, after = priced(rows, fixed=True), priced(rows, better, fixed=True)
    ok = before.ok
    assert (after["total_time"][ok] <= before["total_time"][ok] * (1 + 1e-12)).all()


@given(many)
@settings(max_examples=8)
def test_memory_does_not_depend_on_networks_or_overlap_of_data_traffic(rows: list[Execution]) -> None:
    columns = ExecutionColumns.from_executions(rows)
    other = replace(
        columns,
        tensor_par_net=1 - columns.tensor_par_net,
        pipeline_par_net=1 - columns.pipeline_par_net,
        data_par_overlap=~columns.data_par_overlap,
    )
    legal = reject(GPT, ROOMY, columns) == 0
    one, two = (price_memory(GPT, ROOMY, some.take(legal)) for some in (columns, other))
    assert (one.tier1_bytes == two.tier1_bytes).all()
    assert (one.tier2_bytes == two.tier2_bytes).all()


@given(executions())
def test_an_execution_survives_its_columns(row: Execution) -> None:
    columns = ExecutionColumns.from_executions([row, row])
    assert columns.rows == 2
    assert columns.row(1) == row
    assert columns.take(np.asarray([1])).row(0) == row
    assert len(KEYS) == 23


def test_many_parts_in_threads_equal_one_part() -> None:
    few = ExecutionColumns.from_executions(
        [
            read_execution(execution(batch_size=size, tensor_par_overlap=overlap))
            for size in (8, 16, 64)
            for overlap in CHOICES["tensor_par_overlap"]
        ]
    )
    pattern = np.resize(np.arange(few.rows), 40_000)
    small, large = price(GPT, ROOMY, few), price(GPT, ROOMY, few.take(pattern))
    for name in STATISTICS:
        np.testing.assert_array_equal(large[name], small[name][pattern])


def test_no_rows_have_no_answers() -> None:
    none = ExecutionColumns.from_executions([])
    assert price(GPT, ROOMY, none).rows == 0
    assert price_for_search(GPT, ROOMY, none).ok.size == 0


def test_a_rejected_row_has_no_times_and_the_wanted_memory_is_known() -> None:
    rows = [
        read_execution(execution(**change))
        for change in ({}, {"batch_size": 63, "data_par": 2}, {"microbatch_size": 64})
    ]
    answer = priced(rows, system_named("a100_80g"))
    assert answer.ok.tolist() == [True, False, False]
    assert np.isnan(answer["total_time"]).tolist() == [False, True, False]
    assert answer["proc_mem_tier1_cap_req"][2] > 80 * 2**30
    quick = price_for_search(GPT, system_named("a100_80g"), ExecutionColumns.from_executions(rows))
    assert quick.sample_rate[1] == 0
    assert np.isinf(quick.tier1_bytes[1])


@pytest.mark.parametrize("name", ["tensor_par_comm_type", "datatype"])
def test_an_unknown_choice_is_rejected_not_priced(name: str) -> None:
    row = read_execution(execution(**{name: "nonsense"}))
    assert priced([row]).ok.tolist() == [False]
