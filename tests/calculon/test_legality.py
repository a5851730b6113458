"""Each rule, its words, and what is said of a broken one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.legality import MEMORY_TIER1, RULES, reject
from meshwright.calculon.model import price
from meshwright.calculon.reading import read_application, read_execution, read_system
from meshwright.calculon.rejections import reason
from tests.calculon.figures import execution

GPT = read_application("gpt3-175B")
A100 = read_system("a100_80g")

BROKEN: list[tuple[dict[str, Any], str, str, str]] = [
    ({"num_procs": 65}, "num_procs", "num_procs is 65", "num_procs = tensor_par x pipeline_par x data_par"),
    ({"tensor_par": 0}, "tensor_par", "tensor_par is 0", "1 or more"),
    ({"microbatch_size": -1}, "microbatch_size", "microbatch_size is -1", "1 or more"),
    ({"datatype": "int4"}, "datatype", "datatype is 'int4'", "one of float8"),
    ({"datatype": "bfloat16"}, "datatype", "datatypes of the system float16", "engines"),
    ({"attention_type": "multi-head"}, "attention_type", "'multi-head'", "one of multihead"),
    ({"tensor_par_net": 2}, "tensor_par_net", "tensor_par_net is 2", "networks"),
    ({"data_par_net": -1}, "data_par_net", "data_par_net is -1", "counted from 0"),
    ({"batch_size": 63, "data_par": 2, "num_procs": 128}, "data_par", "batch_size 63", "divides batch_size"),
    ({"microbatch_size": 5}, "microbatch_size", "microbatch_size is 5", "divides batch_size / data_par"),
    ({"training": False}, "activation_recompute", "'attn_only'", "inference recomputes nothing"),
    ({"optimizer_sharding": True}, "optimizer_sharding", "optimizer_sharding is true", "data_par > 1"),
    ({"data_par_overlap": True}, "data_par_overlap", "is true", "data_par > 1"),
    ({"tensor_par_comm_type": "ar"}, "seq_par_ag_redo", "is true", "only rs_ag"),
    ({"activation_recompute": "full"}, "seq_par_ag_redo", "is true", "full recompute"),
    ({"pipeline_interleaving": 5}, "pipeline_interleaving", "num_blocks 96", "divides the blocks of a stage"),
    ({"pipeline_interleaving": 13}, "pipeline_interleaving", "num_blocks 96", "at most the blocks"),
    ({"data_par": 2, "num_procs": 128, "data_par_net": 0}, "tensor_par_net", "8 x 8 x 2", "at most its size"),
    ({"attention_type": "grouped"}, "attention_type", "'grouped'", "kv_heads"),
    ({"microbatch_size": 64}, "proc_mem_tier1_cap_req", "memory tier 1 has 80.000 GiB", "capacity"),
]


@pytest.mark.parametrize(("change", "field", "what", "rule"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_broken_rule_is_told_with_field_value_and_rule(
    change: dict[str, Any], field: str, what: str, rule: str
) -> None:
    row = read_execution(execution(**change))
    answer = price(GPT, A100, ExecutionColumns.from_executions([row]))
    assert not answer.ok[0]
    code = int(answer.reason[0])
    need = float(answer["proc_mem_tier1_cap_req"][0])
    problem = reason(GPT, A100, row, code, tier1_bytes=need)
    assert problem.field.startswith(field)
    assert what in problem.what
    assert rule in problem.why
    assert problem.fix


def test_the_first_broken_rule_is_told_and_others_do_not_disturb() -> None:
    rows = [
        read_execution(execution(**change)) for change in ({}, {"tensor_par": 0}, {"datatype": "x", "num_procs": 0})
    ]
    codes = reject(GPT, A100, ExecutionColumns.from_executions(rows))
    assert codes[0] == 0
    assert [RULES[code].field for code in codes[1:]] == ["tensor_par", "num_procs"]
    assert len(RULES) < 128
    assert RULES[MEMORY_TIER1].field == "proc_mem_tier1_cap_req"


def test_kv_heads_split_or_repeat_over_tensor_ranks() -> None:
    odd = replace(GPT, kv_heads=12)
    row = read_execution(execution(attention_type="grouped"))
    answer = price(odd, A100, ExecutionColumns.from_executions([row]))
    assert not answer.ok[0]
    assert "kv_heads 12" in reason(odd, A100, row, int(answer.reason[0])).what
