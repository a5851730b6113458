"""Calculon's 96 statistics by name, and the columns that hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Bool, Float, Int

STATISTICS = (
    "block_fw_flops", "block_fw_flops_time", "block_fw_mem_accessed", "block_fw_mem_time", "block_fw_time",
    "baseblock_fw_tp_time", "edgeblock_fw_tp_time", "baseblock_fw_tp_time_exposed", "edgeblock_fw_tp_time_exposed",
    "block_re_flops", "block_re_flops_time", "block_re_mem_accessed", "block_re_mem_time", "block_re_time",
    "baseblock_recomm_time", "edgeblock_recomm_time", "baseblock_recomm_time_exposed", "edgeblock_recomm_time_exposed",
    "block_agrad_flops", "block_agrad_flops_time", "block_agrad_mem_accessed", "block_agrad_mem_time",
    "block_agrad_time", "baseblock_agrad_tp_time", "edgeblock_agrad_tp_time", "baseblock_agrad_tp_time_exposed",
    "edgeblock_agrad_tp_time_exposed", "block_wgrad_flops", "block_wgrad_flops_time", "block_wgrad_mem_accessed",
    "block_wgrad_mem_time", "block_wgrad_time", "block_optim_flops", "block_optim_flops_time",
    "block_optim_mem_accessed", "block_optim_mem_time", "block_optim_time", "baseblock_fw_tp_size",
    "edgeblock_fw_tp_size", "baseblock_bw_tp_size", "edgeblock_bw_tp_size", "baseblock_recomm_size",
    "edgeblock_recomm_size", "block_fw_pp_size", "block_bw_pp_size", "block_dp_size", "tp_bw_overlap_req",
    "dp_bw_overlap_req_chunk", "dp_bw_overlap_req_tail", "block_weight_space", "block_act_working_space",
    "block_act_storage_space", "block_act_checkpoint_size", "block_weight_grad_space",
    "block_weight_grad_space_no_sharding", "block_act_grad_space", "block_optimizer_space",
    "weight_space_with_offload", "act_space_with_offload", "act_checkpoint_size_with_offload",
    "act_grad_space_with_offload", "weight_grad_space_with_offload", "optimizer_space_with_offload", "weight_space",
    "act_space", "act_checkpoint_size", "act_grad_space", "weight_grad_space", "optimizer_space", "fw_time",
    "bw_time", "optim_step_time", "recompute_time", "recomm_link_time", "recomm_exposed_time", "bubble_time",
    "tp_comm_link_time", "pp_comm_link_time", "dp_comm_link_time", "tp_comm_exposed_time", "pp_comm_exposed_time",
    "dp_comm_exposed_time", "fw_offload_exposed_time", "bw_offload_exposed_time", "total_time",
    "act_offload_bw_req", "weight_offload_bw_req", "optim_offload_bw_req", "offload_mem_bw_req",
    "proc_mem_tier1_cap_req", "proc_mem_tier2_cap_req", "useful_flops", "compute_efficiency", "system_efficiency",
    "total_efficiency", "sample_rate",
)  # fmt: skip
"""Names in Calculon's order: times in s, spaces and sizes in bytes, flops in flop, bw_req in bytes/s, rates in 1/s."""

AMOUNTS = frozenset(
    name
    for name in STATISTICS
    if name.endswith(("_flops", "_accessed", "_size", "_space", "_no_sharding", "_with_offload", "_cap_req"))
)
"""Statistics that count bytes or flop: printed as whole numbers where they are whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculonColumns:
    """The answer for many executions: acceptance, reason and one array per statistic."""

    ok: Bool[np.ndarray, "rows"]
    reason: Int[np.ndarray, "rows"]
    """Code of `legality.RULES`; 0 where accepted."""
    values: Mapping[str, Float[np.ndarray, "rows"]]
    """Columns by name of STATISTICS; NaN in rejected rows (memory of both tiers excepted where only it is too large),
    and where Calculon says None."""

    @property
    def rows(self) -> int:
        """Number of executions."""
        return int(self.ok.shape[0])

    def __getitem__(self, name: str) -> Float[np.ndarray, "rows"]:
        """One statistic's column."""
        return self.values[name]

    def stats(self, row: int) -> dict[str, float | int | None]:
        """All statistics of an accepted row as Calculon writes them; None also where a bandwidth would be infinite."""
        found: dict[str, float | int | None] = {}
        for name in STATISTICS:
            value = float(self.values[name][row])
            if not math.isfinite(value):
                found[name] = None
            elif name in AMOUNTS and value.is_integer():
                found[name] = int(value)
            else:
                found[name] = value
        return found
