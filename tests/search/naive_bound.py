"""The bounds of a row as they are defined: each row priced by itself, workers and chunks looked at in loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.layout import ModelLayout
from meshwright.ops.edges import edge_work, edge_works
from meshwright.ops.layers import work_of
from meshwright.search.grid import Grid
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import LayerWork
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import BEST_OVERLAP

EXPERTS = ("moe", "moe_act")


class NaiveBound:
    """One row of a grid, without offload, whose experts are reached in one way."""

    def __init__(self, grid: Grid, row: int, model: ModelSpec, hardware: Hardware, workload: Workload) -> None:
        one = grid.take(np.array([row]))
        self.tp, self.cp, self.pp, self.dp, self.ep, self.etp, self.m = (
            int(getattr(one, name)[0]) for name in ("tp", "cp", "pp", "dp", "ep", "etp", "m")
        )
        self.model, self.hardware, self.workload = model, hardware, workload
        self.columns = replace(one.strategies(workload), data_ranks=None)
        self.layout = ModelLayout.of(model, workload.seq_len)
        self.works = [work_of(model, kind, workload.attention_kernel) for kind in model.kinds()]
        self.counts = [model.kind_counts()[kind] for kind in model.kinds()]
        self.head, self.embedding = edge_work(model, "head"), edge_works(model, "embedding")

    def priced(self, work: LayerWork, quantised: bool) -> np.ndarray:
        """Forward and backward seconds, parameters of the dense part and of experts."""
        total = np.zeros(4)
        for experts in (False, True):
            columns = self.columns
            if experts and columns.ep_overlap is not None:
                columns = replace(columns, ep_overlap=np.where(columns.ep_overlap > 0, BEST_OVERLAP, 0))
            ops = tuple(op for op in work.ops if (op.module in EXPERTS) == experts)
            found = price_work(
                replace(work, ops=ops, kept=()), columns, self.hardware, self.workload, quantised=quantised
            )
            sides = [one.compute_s + one.tp_s + one.cp_s + one.ep_s for one in (found.forward, found.backward)]
            total += [float(value[0]) for value in (*sides, found.dense_parameters, found.expert_parameters)]
        return total

    def seconds(self, work: LayerWork, quantised: bool = True) -> float:
        """Of one micro-batch, there and back in training."""
        forward, backward, *_ = self.priced(work, quantised)
        return float(forward + backward * self.workload.training)

    @property
    def tail_s(self) -> float:
        """Head and prediction modules, each of which has a head of its own."""
        last_s = self.seconds(self.head, quantised=False)
        if self.model.mtp_layers and self.workload.training:
            own = work_of(self.model, self.model.mtp_kind, self.workload.attention_kernel)
            last_s += self.model.mtp_layers * (last_s + self.seconds(own))
        return last_s

    @property
    def time_s(self) -> float:
        """The mean work of the workers, or what the last waits for and does; the least over numbers of chunks."""
        each_s = [self.seconds(work) for work in self.works]
        layers_s = sum(count * one_s for count, one_s in zip(self.counts, each_s, strict=True))
        first_s = sum(self.seconds(work, quantised=False) for work in self.embedding)
        mean_s = self.m * (layers_s + first_s + self.tail_s) / self.pp
        if self.pp == 1:
            return mean_s
        kind_s = [each_s[self.model.kinds().index(layer)] for layer in self.model.layers()]
        least_s = np.inf
        for chunks in range(1, (self.model.most_stages // self.pp if self.m >= self.pp else 1) + 1):
            own = self.layout.ranges(self.pp, chunks)[-1]
            before_s = sum(kind_s[: own[0][0]])
            own_s = sum(sum(kind_s[first : last + 1]) for first, last in own)
            least_s = min(least_s, before_s + self.m * (own_s + self.tail_s))
        return max(mean_s, least_s)

    def peak_bytes(self, least: float) -> float:
        """What every rank of a stage shares that can, and what is always there.

        Args:
            least: fewest bytes of a parameter on all ranks that share it.
        """
        parts = [*zip(self.counts, self.works, strict=True), (1, self.head)]
        parts += [(1, work) for work in self.embedding if not self.model.tied_embeddings]
        dense = sum(count * self.priced(work, quantised=False)[2] for count, work in parts)
        experts = sum(count * self.priced(work, quantised=False)[3] for count, work in parts)
        shards = max(self.tp * self.cp * self.dp // (self.ep * self.etp), 1)
        states = least * (dense / (self.cp * self.dp) + experts / shards) / self.pp
        software, efficiency = self.hardware.software, self.hardware.efficiency
        return float(states * (1 + software.fragmentation) + efficiency.context_bytes + software.engine_bytes)
