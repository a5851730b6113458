"""Shapes of one (pp, m) as tables of equal size, made once for all blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.search.geometry import Shape
from meshwright.shapes import Bool, Float, Int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeTables:
    """Shapes of one (pp, m), padded to equal numbers of paths and worker classes, so that one product serves all."""

    path_forward: Float[np.ndarray, "shapes paths items"]
    path_backward: Float[np.ndarray, "shapes paths items"]
    path_weight: Float[np.ndarray, "shapes paths items"]
    splits: bool
    """Whether any backward is split."""
    path_transfer: Float[np.ndarray, "shapes paths"]
    held: Float[np.ndarray, "shapes fullest items"]
    alive: Float[np.ndarray, "shapes fullest items"]
    versions: Float[np.ndarray, "shapes fullest"]
    sets: Bool[np.ndarray, "sets items"]
    """Of items that stand on workers: few, however many shapes there are."""
    set_of: Int[np.ndarray, "shapes fullest"]
    """Number of the set of each."""
    first: Float[np.ndarray, "shapes items"]
    per_update: Float[np.ndarray, "shapes"]
    updates: Float[np.ndarray, "shapes"]
    last_passes: Float[np.ndarray, "shapes"]
    apart: Float[np.ndarray, "shapes"]

    @classmethod
    def of(cls, shapes: list[Shape]) -> ShapeTables:
        """The tables of these shapes."""
        fullest = [shape.fullest for shape in shapes]
        path_weight = _padded([shape.path_weight for shape in shapes])
        held = _padded([workers.held for workers in fullest])
        sets, set_of = np.unique((held > 0).reshape(-1, held.shape[2]), axis=0, return_inverse=True)
        return cls(
            path_forward=_padded([shape.path_forward for shape in shapes]),
            path_backward=_padded([shape.path_backward for shape in shapes]),
            path_weight=path_weight,
            splits=bool(path_weight.any()),
            path_transfer=_padded([shape.path_transfer for shape in shapes]),
            held=held,
            sets=sets,
            set_of=set_of.reshape(held.shape[:2]),
            alive=_padded([workers.alive for workers in fullest]),
            versions=_padded([workers.versions for workers in fullest]),
            first=np.stack([workers.first for workers in fullest]),
            per_update=np.array([float(shape.per_update) for shape in shapes]),
            updates=np.array([float(shape.updates) for shape in shapes]),
            last_passes=np.array([shape.schedule.last_passes(shape.p, shape.m, shape.v) for shape in shapes]),
            apart=np.array([float(shape.apart) for shape in shapes]),
        )


def _padded(tables: list[np.ndarray]) -> np.ndarray:
    """Tables as one, the last row of each repeated to the length of the longest."""
    lengths = [len(table) for table in tables]
    filled = np.empty((len(tables), max(lengths), *tables[0].shape[1:]))
    for place, (table, length) in enumerate(zip(tables, lengths, strict=True)):
        filled[place, :length] = table
        filled[place, length:] = table[-1]
    return filled
