"""What tensor groups that are grids of ranks ask of a model and of the other degrees."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from meshwright.shapes import Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.tensor_grids import GRIDS, TensorGrid
from meshwright.strategies.base import DegreeRule, Degrees

Ranks = Callable[[Int[np.ndarray, "rows"]], Int[np.ndarray, "rows"]]
"""Ranks among which something is shared, of tensor degrees."""


def sides(name: str, tp: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "rows sides"]:
    """Sides of the grids of these tensor degrees; of the nearest grid where a degree makes none.

    Args:
        name: the name of the strategy.
        tp: degrees.
    """
    grid = GRIDS[name]
    different, place = np.unique(np.asarray(tp, dtype=np.int64), return_inverse=True)
    found = [grid.sides(one) or grid.sides(grid.nearest(one)) for one in different.tolist()]
    return np.array(found, dtype=np.int64).reshape(-1, grid.count)[place.ravel()]


def grid_rules(name: str, model: ModelSpec, *, sequences: Ranks, width: Ranks) -> tuple[DegreeRule, ...]:
    """A whole grid whose sides divide widths and the sequences of a micro-batch; dense models without cp.

    Heads are shared by the ranks of a side where other strategies share them by tp, so that no more is asked of them
    here.

    Args:
        name: the name of the strategy.
        model: the model whose layers are cut.
        sequences: ranks that share the sequences of a micro-batch.
        width: ranks that share the width of the stream.
    """
    grid = GRIDS[name]

    def whole(d: Degrees) -> np.ndarray:
        return np.array([one == 1 or grid.sides(one) is not None for one in d["tp"].tolist()])

    def rows(d: Degrees) -> np.ndarray:
        return (d["mbs"] % sequences(d["tp"]) == 0) | ~whole(d)  # other degrees are told by the first rule

    def batch(row: Mapping[str, int]) -> str:
        ranks = int(sequences(np.array([row["tp"]]))[0])
        return f"use mbs {max(ranks, round(row['mbs'] / ranks) * ranks)}, which {ranks} divides"

    def degree(row: Mapping[str, int]) -> str:
        return f"use {grid.token(grid.nearest(row['tp']))}"

    return (
        DegreeRule(
            f"{name} grid", whole, f"a {name} tensor group is a grid of {grid.shape}", f"use {_few(grid)}", "tp", degree
        ),
        DegreeRule(
            f"{name} width",
            lambda d: model.hidden % width(d["tp"]) == 0,
            f"a row of the {name} grid shares a width of {model.hidden}",
            f"use a grid whose sides divide {model.hidden}",
            "tp",
        ),
        DegreeRule(
            f"{name} sequences",
            rows,
            f"the rows of a {name} grid share the sequences of a micro-batch",
            "use a micro-batch that the rows of the grid divide",
            "mbs",
            batch,
        ),
        DegreeRule(
            f"{name} context",
            lambda d: d["cp"] == 1,
            f"a {name} grid already spreads sequences over its rows; its exchanges with context ranks have no rule",
            "leave cp at 1",
            "cp",
        ),
        DegreeRule(
            f"{name} experts",
            lambda d: np.full(len(d["tp"]), not model.is_moe),
            f"how tokens on a {name} grid reach experts has no rule",
            "use a 1d tensor strategy",
            "tensor",
        ),
    )


def _few(grid: TensorGrid) -> str:
    """The first degrees of a shape, in words."""
    return f"tp {', '.join(map(str, grid.degrees(64)[:4]))} ..."
