"""FTPipe's blocks in steps that drain the pipeline: the gradient is that of 1F1B, wherever layers stand."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.schedules.base import Schedule
from meshwright.schedules.named.ftpipe import FTPipe
from meshwright.schedules.ordered import Updates


@dataclass(frozen=True, kw_only=True)
class FTPipeFlush(FTPipe):
    """The maps of `ftpipe` with one version of the weights, which all micro-batches of a step share.

    No version is stashed, so that a stage of depth d may keep 2 (d + 1) micro-batches: what comes back to a worker in
    between then finds forwards to run.

    Source: Eliad et al., "Fine-tuning giant neural networks on commodity hardware with automatic pipeline model
    parallelism", USENIX ATC 2021; its public repository has synchronous pipelines as well.
    """

    name = "ftpipe-flush"
    flushes = True
    updates_each = False
    title = "FTPipe with a flush: blocks that are not neighbours, one version of the weights"
    exact_semantics = True
    weight_copies = 1

    def worker_weight_copies(self, p: int, m: int, v: int = 1) -> tuple[int, ...]:
        """One version on each worker."""
        return Schedule.worker_weight_copies(self, p, m, v)

    def _admitted(self, stage: int, stages: int) -> int:
        return 2 * (stages - stage)

    def updates(self, p: int, m: int, v: int = 1, count: int | None = None) -> Updates:
        """One update behind all micro-batches."""
        return Schedule.updates(self, p, m, v, count)
