"""The price of one layer: its compute, its memory traffic, its tensor traffic and how much of it shows.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from meshwright.calculon.block_layers import split_collectives
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import CHOICES, FULL, PIPE, System
from meshwright.calculon.layers import Amount, BlockKeys, Flag, Layer
from meshwright.shapes import Int


def _parts(kinds: Int[np.ndarray, "rows"]) -> list[tuple[int, Flag | slice]]:
    """Each kind that occurs, and its rows; all of them as a slice, which copies nothing."""
    found = np.unique(kinds).tolist()
    return [(kind, kinds == kind if len(found) > 1 else slice(None)) for kind in found]


class Engines:
    """Times of compute and memory for rows of several datatypes."""

    def __init__(self, *, system: System, datatype: Int[np.ndarray, "rows"]) -> None:
        self.system = system
        self.parts = [(CHOICES["datatype"][code], rows) for code, rows in _parts(datatype)]

    def compute_s(self, flop: Amount, *, matrix: bool) -> Amount:
        """Seconds on the matrix or the vector engine."""
        engines = self.system.matrix if matrix else self.system.vector
        seconds = np.empty(flop.shape)
        for datatype, rows in self.parts:
            seconds[rows] = engines[datatype].time_s(flop[rows])
        return seconds

    def memory_s(self, moved_bytes: Amount) -> Amount:
        """Seconds on the first tier."""
        return self.system.mem1.rate.time_s(moved_bytes)

    def join_s(self, compute_s: Amount, memory_s: Amount) -> Amount:
        """Seconds of both together."""
        return np.maximum(compute_s, memory_s) if self.system.processing_mode == "roofline" else compute_s + memory_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a layer: forward, gradient of activations or gradient of weights."""

    flop: Amount
    moved_bytes: Amount
    compute_s: Amount
    memory_s: Amount
    busy_s: Amount
    """What the block waits for: compute and memory joined, slowed by traffic beside them; 0 for a collective."""

    def amounts(self) -> dict[str, Amount]:
        """Amounts by the last words of Calculon's names."""
        return {
            "flops": self.flop,
            "flops_time": self.compute_s,
            "mem_accessed": self.moved_bytes,
            "mem_time": self.memory_s,
            "time": self.busy_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Tensor traffic of a layer in one direction."""

    size_bytes: Amount
    link_s: Amount
    exposed_s: Amount

    def amounts(self) -> dict[str, Amount]:
        """Amounts by kind."""
        return {"size": self.size_bytes, "link": self.link_s, "exposed": self.exposed_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayer:
    """A layer's stages (fw, agrad, wgrad) and its traffic by direction (fw, agrad, redo) and block (base, edge)."""

    stages: Mapping[str, Stage]
    traffic: Mapping[tuple[str, str], Traffic]
    redo_exposed_s: Mapping[str, Amount]
    """Seconds per block that a redone collective shows beside its layer's weight gradient. B4: the original lists this
    for a layer, and adds what the forward collective shows into the block."""
    overlap_req: Amount
    """Bandwidth (bytes/s) that would hide the layer's traffic; 0 where nothing overlaps."""


class LayerPricer:
    """Prices layers for blocks of one group."""

    def __init__(self, system: System, columns: ExecutionColumns, keys: BlockKeys, *, fixed: bool) -> None:
        self.engines = Engines(system=system, datatype=columns.datatype)
        self.networks = system.networks
        self.parts = _parts(columns.tensor_par_net)
        self.degree = columns.tensor_par
        self.element_bytes = keys.element_bytes
        self.usage = np.asarray([network.processor_usage for network in system.networks])[columns.tensor_par_net]
        """Share of the processor that tensor traffic takes."""
        self.split = {block: split_collectives(keys, edge=block == "edge") for block in ("base", "edge")}
        self.pipe = columns.tensor_par_overlap == PIPE
        self.full = columns.activation_recompute == FULL
        self.training = columns.training
        self.fixed = fixed
        self.zeros = np.zeros(columns.rows)

    def price(self, layer: Layer) -> PricedLayer:
        """Times of one layer."""
        parts = {
            "fw": (layer.fw_flop, layer.fw_bytes),
            "agrad": (layer.agrad_flop, layer.agrad_bytes),
            "wgrad": (layer.wgrad_flop, layer.wgrad_bytes),
        }
        alone = {name: self._alone(layer, flop, moved) for name, (flop, moved) in parts.items()}
        if layer.comm is None:
            nothing = Traffic(size_bytes=self.zeros, link_s=self.zeros, exposed_s=self.zeros)
            return PricedLayer(
                stages=alone,
                traffic={(way, block): nothing for way in WAYS for block in ("base", "edge")},
                redo_exposed_s={"base": self.zeros, "edge": self.zeros},
                overlap_req=self.zeros,
            )
        sent = {way: {block: self._sent(layer, alone, way, block) for block in ("base", "edge")} for way in WAYS}
        if layer.comm.overlapped:
            return self._overlapped(layer, alone, sent)
        stages = {
            name: Stage(
                flop=stage.flop,
                moved_bytes=stage.moved_bytes,
                compute_s=stage.compute_s,
                memory_s=stage.memory_s,
                busy_s=self.zeros,
            )
            for name, stage in alone.items()
        }
        traffic = {
            (way, block): Traffic(size_bytes=size, link_s=link_s, exposed_s=link_s)
            for way, blocks in sent.items()
            for block, (size, link_s) in blocks.items()
        }
        shown = {block: link_s for block, (_, link_s) in sent["redo"].items()}
        return PricedLayer(stages=stages, traffic=traffic, redo_exposed_s=shown, overlap_req=self.zeros)

    def _alone(self, layer: Layer, flop: Amount, moved_bytes: Amount) -> Stage:
        compute_s = self.engines.compute_s(flop, matrix=layer.matrix)
        memory_s = self.engines.memory_s(moved_bytes)
        return Stage(
            flop=flop,
            moved_bytes=moved_bytes,
            compute_s=compute_s,
            memory_s=memory_s,
            busy_s=self.engines.join_s(compute_s, memory_s),
        )

    def _sent(self, layer: Layer, alone: Mapping[str, Stage], way: str, block: str) -> tuple[Amount, Amount]:
        """Bytes and link seconds of one direction, the collective's own arithmetic included (except when redone)."""
        comm = layer.comm
        assert comm is not None
        reduces = comm.gather_first == (way == "agrad")
        split = self.split[block]
        sends = (split | reduces) & (self.degree > 1)
        if way == "redo":
            sends = sends & layer.comm_redone
        link_s = self._collective_s(comm.size_bytes, split, reduces=reduces)
        if way != "redo":
            if not comm.overlapped:
                link_s = link_s + alone[way].busy_s
            elif reduces:
                summed = comm.size_bytes / self.element_bytes * (self.degree - 1) / self.degree
                link_s = link_s + self.engines.compute_s(summed, matrix=False)
        return np.where(sends, comm.size_bytes, 0.0), np.where(sends, link_s, 0.0)

    def _collective_s(self, size_bytes: Amount, split: Flag, *, reduces: bool) -> Amount:
        """Where split, a reduce-scatter or an all-gather; otherwise an all-reduce on the reducing side only."""
        seconds = np.empty(size_bytes.shape)
        for one, rows in self.parts:
            network, size, group = self.networks[one], size_bytes[rows], self.degree[rows]
            parted = network.time_s("reduce_scatter" if reduces else "all_gather", size, group)
            seconds[rows] = np.where(split[rows], parted, network.time_s("all_reduce", size, group))
        return seconds

    def _overlapped(
        self, layer: Layer, alone: Mapping[str, Stage], sent: Mapping[str, Mapping[str, tuple[Amount, Amount]]]
    ) -> PricedLayer:
        """Tiles: the first one computes alone, the other t - 1 beside traffic that takes part of the processor."""
        stages: dict[str, Stage] = {}
        redo_exposed_s: dict[str, Amount] = {}
        exposed: dict[tuple[str, str], Amount] = {}
        for name, way in (("fw", "fw"), ("agrad", "agrad"), ("wgrad", "redo")):
            busy_s, shown_s = self._beside(alone[name], sent[way]["base"][1])
            if self.fixed and name == "wgrad":
                # B10: slowed again, though after full recompute the collective ran beside the forward product.
                busy_s = np.where(self.full, alone[name].busy_s, busy_s)
            stages[name] = Stage(
                flop=alone[name].flop,
                moved_bytes=alone[name].moved_bytes,
                compute_s=alone[name].compute_s,
                memory_s=alone[name].memory_s,
                busy_s=busy_s,
            )
            for block in ("base", "edge"):
                # B4: the edge block shows what the base block shows, whatever its own collectives take.
                shown = self._beside(alone[name], sent[way][block][1])[1] if self.fixed else shown_s
                exposed[way, block] = shown
        for block in ("base", "edge"):
            # B4: what is redone shows as much as in the forward pass, beside whatever it runs.
            redo_exposed_s[block] = exposed["redo", block]
            forward = np.where(layer.comm_redone, exposed["fw", block], 0.0)
            exposed["redo", block] = np.where(self.full, forward, exposed["redo", block]) if self.fixed else forward
        need = self.zeros
        for way in ("fw", "agrad"):
            slowed_s = alone[way].compute_s / (1 - self.usage)
            for block in ("base", "edge"):
                wanted = sent[way][block][0] / slowed_s
                need = np.maximum(need, wanted if way == "fw" else np.where(self.training, wanted, 0.0))
        traffic = {
            (way, block): Traffic(size_bytes=size, link_s=link_s, exposed_s=exposed[way, block])
            for way, blocks in sent.items()
            for block, (size, link_s) in blocks.items()
        }
        return PricedLayer(stages=stages, traffic=traffic, redo_exposed_s=redo_exposed_s, overlap_req=need)

    def _beside(self, alone: Stage, link_s: Amount) -> tuple[Amount, Amount]:
        """Busy and exposed seconds of a product that runs beside its own traffic."""
        slowed_compute_s = alone.compute_s / (1 - self.usage)
        slowed_s = self.engines.join_s(slowed_compute_s, alone.memory_s)
        first = 1 / self.degree
        rest = (self.degree - 1) / self.degree
        bound = link_s > slowed_compute_s
        busy_s = np.where(bound, alone.busy_s * first + rest * slowed_s, alone.busy_s + rest * link_s * self.usage)
        exposed_s = np.where(bound, rest * (link_s - slowed_compute_s), 0.0)
        tile_s = np.where(self.pipe, link_s * first, 0.0)
        if not self.fixed:
            # B3: the tile that nothing hides counts as busy and as exposed.
            busy_s = busy_s + tile_s
        exposed_s = exposed_s + tile_s
        idle = link_s == 0
        return np.where(idle, alone.busy_s, busy_s), np.where(idle, 0.0, exposed_s)


WAYS = ("fw", "agrad", "redo")
"""Directions of tensor traffic; redo is the forward collective again in the backward pass."""
