"""Rows in the middle of being priced: each one's counts, and its block and optimizer step by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.calculon.blocks import (
    block_keys,
    block_values,
    distinct_blocks,
    distinct_optimizers,
    optimizer_values,
    price_blocks,
    price_optimizers,
)
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import AR, CHOICES, FULL, RS_AG, Application, System
from meshwright.calculon.layers import BlockKeys
from meshwright.search.distinct import Distinct, Numbering
from meshwright.shapes import Float, Int

Column = Float[np.ndarray, "rows"]

BOOK_BLOCKS = 1 << 16
"""Most blocks that are priced before they are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """The distinct blocks and optimizer steps of many executions, priced."""

    app: Application
    system: System
    fixed: bool
    blocks: Mapping[str, Float[np.ndarray, "blocks"]]
    """Statistics of the blocks by name, and the sums `_sums` adds."""
    optimizers: Mapping[str, Float[np.ndarray, "optimizers"]]
    block_index: Int[np.ndarray, "rows"]
    """Block of each execution."""
    optimizer_index: Int[np.ndarray, "rows"]
    """Optimizer step of each execution."""

    def at(self, blocks: Int[np.ndarray, "chosen"], optimizers: Int[np.ndarray, "chosen"]) -> Prepared:
        """Executions with the blocks of some rows and the optimizer steps of some rows."""
        return replace(self, block_index=self.block_index[blocks], optimizer_index=self.optimizer_index[optimizers])


def prepare(app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False) -> Prepared:
    """Price what the rows have in common; the rows are legal."""
    return _price(app, system, columns, distinct_blocks(columns), distinct_optimizers(columns), fixed=fixed)


def _price(
    app: Application, system: System, columns: ExecutionColumns, block: Distinct, optimizer: Distinct, *, fixed: bool
) -> Prepared:
    chosen = columns.take(block.example)
    blocks = dict(price_blocks(app, system, chosen, fixed=fixed).values)
    blocks.update(_sums(app, system, chosen, block_keys(chosen), blocks, fixed=fixed))
    return Prepared(
        app=app,
        system=system,
        fixed=fixed,
        blocks=blocks,
        optimizers=price_optimizers(app, system, columns.take(optimizer.example), fixed=fixed).values,
        block_index=block.index,
        optimizer_index=optimizer.index,
    )


@dataclass(frozen=True, slots=True)
class Book:
    """Blocks and optimizer steps priced beforehand, for all executions that are made of no others."""

    prepared: Prepared
    blocks: Numbering
    optimizers: Numbering

    @classmethod
    def of(cls, app: Application, system: System, columns: ExecutionColumns, *, fixed: bool = False) -> Book | None:
        """The blocks and steps of some executions, legal or not; none where there are too many."""
        block, optimizer = distinct_blocks(columns), distinct_optimizers(columns)
        if block.numbering is None or optimizer.numbering is None or len(block.example) > BOOK_BLOCKS:
            return None
        prepared = _price(app, system, columns, block, optimizer, fixed=fixed)
        return cls(prepared, block.numbering, optimizer.numbering)

    def prepare(self, system: System, columns: ExecutionColumns) -> Prepared:
        """Executions made of its blocks and steps.

        Args:
            system: one with the same processors and the networks, in order, that tensor traffic uses.
            columns: the executions.
        """
        return replace(
            self.prepared,
            system=system,
            block_index=self.blocks.of(block_values(columns)),
            optimizer_index=self.optimizers.of(optimizer_values(columns)),
        )


def _sums(
    app: Application,
    system: System,
    columns: ExecutionColumns,
    keys: BlockKeys,
    block: Mapping[str, np.ndarray],
    *,
    fixed: bool,
) -> dict[str, np.ndarray]:
    """What batches need of a block, added up once per block.

    alone_fw_X, alone_bw_X: seconds of a base (edge) block forward and backward, exposed tensor traffic included,
    stage traffic and offload not. p2p_N: seconds of its stage traffic on network N.
    """
    found: dict[str, np.ndarray] = {}
    backward = block["block_agrad_time"] + block["block_wgrad_time"]
    for x in ("base", "edge"):
        found[f"alone_fw_{x}"] = block["block_fw_time"] + block[f"{x}block_fw_tp_time_exposed"]
        found[f"alone_bw_{x}"] = (
            block["block_re_time"]
            + block[f"{x}block_recomm_time_exposed"]
            + backward
            + block[f"{x}block_agrad_tp_time_exposed"]
        )
        found[f"bw_link_{x}"] = block[f"{x}block_recomm_time"] + block[f"{x}block_agrad_tp_time"]
    found["bw_mem_time"] = block["block_agrad_mem_time"] + block["block_wgrad_mem_time"]
    found["busy_mem_time"] = found["bw_mem_time"] + block["block_re_mem_time"]
    found["bw_flops_time"] = (
        block["block_agrad_flops_time"] + block["block_wgrad_flops_time"] + block["block_re_flops_time"]
    )

    whole = (keys.microbatch * app.seq_size * app.hidden).astype(np.float64) * keys.element_bytes
    part = (keys.microbatch * app.seq_size // keys.tensor_par * app.hidden).astype(np.float64) * keys.element_bytes
    full = keys.recompute == FULL
    # B6: a checkpoint is not divided by the tensor degree under sequence parallelism.
    checkpoint = np.where(keys.comm_type == RS_AG, part, whole) if fixed else whole
    found["block_act_checkpoint_size"] = np.where(full, checkpoint, 0.0)
    found["full"] = full.astype(np.float64)
    found["offloaded_act"] = np.where(full, found["block_act_checkpoint_size"], block["block_act_storage_space"])
    stage_bytes = np.where(keys.comm_type == AR, whole, part)
    found["stage_bytes"] = stage_bytes
    for place, network in enumerate(system.networks):
        found[f"p2p_{place}"] = network.time_s("p2p", stage_bytes, 2)
    peaks = [system.matrix[name].peak if name in system.matrix else np.nan for name in CHOICES["datatype"]]
    found["peak_flop_per_s"] = np.asarray(peaks)[columns.datatype]
    return found


class ExecutionRows:
    """Executions being priced: their counts, and by name the statistics of their blocks and optimizer steps.

    A statistic is gathered when it is first asked for.
    """

    def __init__(self, prepared: Prepared, columns: ExecutionColumns, part: slice) -> None:
        self.prepared = prepared
        self.columns = columns
        self.block_index = prepared.block_index[part]
        self.optimizer_index = prepared.optimizer_index[part]
        self._gathered: dict[str, Column] = {}

        self.stages = columns.pipeline_par.astype(np.float64)
        self.chunks = columns.pipeline_interleaving.astype(np.float64)
        """Chunks of a stage (interleaving)."""
        self.replicas = columns.data_par.astype(np.float64)
        self.micro_batches = columns.batch_size / (self.replicas * columns.microbatch_size)
        self.blocks = np.ceil(prepared.app.num_blocks / self.stages)
        """Blocks of a full stage."""
        self.chunk_blocks = self.blocks / self.chunks
        """Blocks of a chunk; all but one of them are base blocks, one is the edge block."""
        self.missing = self.blocks * self.stages - prepared.app.num_blocks
        """Blocks by which the last stages fall short."""
        self.trains = bool(columns.training.all())
        """Whether every row trains."""

    @cached_property
    def passes(self) -> Column:
        """Chunks that a stage runs in a batch: n v."""
        return self.micro_batches * self.chunks

    @cached_property
    def inner_blocks(self) -> Column:
        """Base blocks of a chunk."""
        return self.chunk_blocks - 1

    @cached_property
    def rounds(self) -> Column:
        """Chunks that 1F1B idles for: p - 1, more where the last round of interleaved micro-batches is not full."""
        n, p = self.micro_batches, self.stages
        left = n - p * np.floor(n / p)
        return p - 1 + np.where(left > 0, (self.chunks - 1) * (p - left), 0.0)

    @cached_property
    def uneven(self) -> bool:
        """Whether stages fall short anywhere."""
        return bool(self.missing.any())

    def __getitem__(self, name: str) -> Column:
        """A statistic of the rows' blocks or optimizer steps."""
        found = self._gathered.get(name)
        if found is None:
            blocks = self.prepared.blocks
            if name in blocks:
                found = blocks[name].take(self.block_index)
            else:
                found = self.prepared.optimizers[name].take(self.optimizer_index)
            self._gathered[name] = found
        return found

    def in_training(self, value: Column) -> Column:
        """A value where rows train, 0 where they only infer."""
        return value if self.trains else np.where(self.columns.training, value, 0.0)

    def per_batch(self, base: Column, edge: Column) -> Column:
        """Sum over all micro-batches, chunks and blocks: n v ((c - 1) base + edge)."""
        return self.micro_batches * self.chunks * ((self.chunk_blocks - 1) * base + edge)

    def of_network(self, network: Int[np.ndarray, "rows"], values: list[float]) -> Column:
        """A number per network, for the network of every row."""
        return np.asarray(values, dtype=np.float64)[network]
