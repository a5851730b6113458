"""Stages of a pipeline in a step: what devices that hold all layers so are worth at least.

Three relaxations of the same rules, of which the largest counts: waits at a price, places in steps of time, and the
way of one micro-batch in steps of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int

PLACES = 32
"""Parts of a step in which the way, or the wait, is counted; of each the whole ones."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """Ways of the stages of a pipeline of some micro-batches."""

    worth: Float[np.ndarray, "ways"]
    once_s: Float[np.ndarray, "ways"]
    """Seconds of a layer in a step."""
    behind_s: Float[np.ndarray, "ways"]
    """Seconds of the last stage behind its layers."""
    ahead_s: Float[np.ndarray, "ways"]
    """Seconds of the first ahead of them, where it is not the last."""
    wait_s: Float[np.ndarray, "ways"]
    """Seconds of a layer and one micro-batch, for which stages behind wait."""
    head_s: Float[np.ndarray, "ways"]
    """Seconds of one micro-batch behind the last layer."""

    def _held(self, layers: int, room_s: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Layers, of that many at most, that a stage does in some time."""
        return np.clip(np.floor(room_s / self.once_s + ROUNDING), -1, layers)

    def waiting(self, layers: int, step_s: float) -> float:
        """K of any number of micro-batches: least worth by a price of the time that stages ahead make others wait.

        Stage i holds l_i layers, at most h_i of them, and those behind it wait l_i s_i / h_i at least. Worth a layer is
        the dual of  l_i once_i + sum over j < i of l_j s_j / h_j <= T,  from the last stage to the first:

            c_i once_i / (T - U s_i / h_i),  U layers of the stages behind it

        and U is l - T / once_i at least where the stage holds the l-th layer from the end.
        """
        most = self._held(layers, np.array(step_s))
        able = most > 0
        if not able.any():
            return math.inf
        worth, once_s, wait_s = self.worth[able], self.once_s[able], self.wait_s[able] / most[able]
        behind = np.maximum(np.arange(layers)[:, None] - step_s / once_s, 0.0)
        left_s = step_s - behind * wait_s
        each = np.where(left_s > 0, worth * once_s / np.maximum(left_s, ROUNDING * step_s), np.inf).min(axis=1)
        head = (self.behind_s[able] / once_s).min() * each[0]
        return float(each.sum() + head)

    def on_their_way(self, layers: int, step_s: float) -> float:
        """K of a few micro-batches: least worth of the last layers by how much of the step their way may take."""
        unit = step_s / PLACES
        most, last = self._held(layers, np.array(step_s)), self._held(layers, step_s - self.behind_s)
        # Every number of layers of every way.
        held = np.concatenate([np.arange(1, top + 1) for top in most])
        way = np.repeat(np.arange(len(most)), np.maximum(most, 0).astype(np.int64))
        steps = np.floor(held * self.wait_s[way] / unit + ROUNDING).astype(np.int64)
        leads = held * self.once_s[way] + self.ahead_s[way] <= step_s * (1.0 + ROUNDING)
        any_where, first = (
            _cheapest(held[able], steps[able], self.worth[way[able]], layers) for able in (steps >= 0, leads)
        )
        found = np.full((layers + 1, PLACES + 1), np.inf)
        for layer in range(layers + 1):
            way_s = layer * self.wait_s + self.head_s
            ends = (last >= layer) & (way_s <= step_s)
            need = np.floor(way_s[ends] / unit + ROUNDING)
            one = np.where(need <= np.arange(PLACES + 1)[:, None], self.worth[ends], np.inf).min(axis=1, initial=np.inf)
            own, taken, worth = first if layer == layers else any_where
            upto = int(np.searchsorted(own, layer, side="right"))
            rest = np.arange(PLACES + 1)[:, None] - taken[:upto]
            more = np.where(rest >= 0, found[layer - own[:upto], np.maximum(rest, 0)] + worth[:upto], np.inf)
            found[layer] = np.minimum(one, more.min(axis=1, initial=np.inf))
        return float(found[layers, -1])

    def in_their_places(self, layers: int, step_s: float) -> float:
        """K of many micro-batches: least worth of the last layers by what their stages have waited."""
        unit = max(float(self.wait_s.min()), step_s / 2 / PLACES)
        steps = np.floor(self.wait_s / unit + ROUNDING).astype(np.int64)
        waited = np.arange(PLACES)[:, None]
        room_s = np.maximum(step_s - waited * unit, 0.0)
        most, last = self._held(layers, room_s), self._held(layers, room_s - self.behind_s)
        behind = np.minimum(waited + steps, PLACES - 1)
        found = np.full((layers + 1, PLACES), np.inf)
        for layer in range(layers + 1):
            here = np.where(last >= layer, self.worth, np.inf).min(axis=1)
            if layer:
                own = most if layer < layers else self._held(layers, room_s - self.ahead_s)
                held = np.minimum(own, layer).astype(np.int64)
                more = self.worth + found[np.minimum(layer - held, layer - 1), behind]
                here = np.minimum(here, np.where(held > 0, more, np.inf).min(axis=1))
            found[layer] = here
        return float(found[layers, 0])


def _cheapest(
    held: Int[np.ndarray, "stages"], steps: Int[np.ndarray, "stages"], worth: Float[np.ndarray, "stages"], layers: int
) -> tuple[Int[np.ndarray, "kept"], Int[np.ndarray, "kept"], Float[np.ndarray, "kept"]]:
    """Stages of which none holds as many layers in as many steps for less, the fewest layers first."""
    least = np.full((layers + 1, PLACES + 1), np.inf)
    within = steps <= PLACES
    np.minimum.at(least, (held[within].astype(np.int64), steps[within]), worth[within])
    own, taken = np.nonzero(np.isfinite(least))
    return own, taken, least[own, taken]
