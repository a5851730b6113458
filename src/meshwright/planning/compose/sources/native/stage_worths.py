"""Stages of a pipeline in a step: what devices that hold all layers so are worth at least.

Four relaxations of the same rules, of which the largest counts: waits at a price, layers at a price by place, places in
steps of time, and the way of one micro-batch in steps of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.shapes import Float, Int

PLACES = 32
"""Parts of a step in which the way, or the wait, is counted; of each the whole ones."""
MANY_PLACES = 64
"""Parts of half a step in which the wait is counted where layers have a price."""
PRICES = tuple(np.geomspace(0.95, 1.6, 6).tolist())
"""Prices of a layer that are tried, over what devices may be worth a layer."""
LIKELIEST = 12
"""Ways with the least worth of a layer, to which others are compared."""
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

    def undominated(self) -> Stages:
        """The ways that none of the likeliest few beats in every number."""
        names = Stages.__slots__
        numbers = np.stack([getattr(self, name) for name in names], axis=1)
        numbers = numbers[np.argsort(self.worth * self.once_s, kind="stable")]
        place = 0
        while place < min(LIKELIEST, len(numbers)):
            kept = (numbers < numbers[place]).any(axis=1)
            kept[: place + 1] = True
            numbers = numbers[kept]
            place += 1
        return Stages(**dict(zip(names, numbers.T, strict=True)))

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

    def at_a_price(self, layers: int, step_s: float, layer_worth: float) -> float:
        """K of any number of micro-batches: least worth by a price of a layer, over all places in a pipeline.

        With  l_i <= h_i(W_i) = (T - W_i) / once_i  in whole layers, W_i what the stages ahead make stage i wait,

            sum of c_i  >=  y L + min over stages of  sum of (c_i - y h_i(W_i))   for any price y of a layer

        which is found from the longest wait to the shortest, in parts of it: stages that start in one part wait less
        than the part among each other, but for the last of them, so that the others save no more than the part at their
        best rate of saving.

        Args:
            layers: the number of layers, L.
            step_s: the step without what it takes anyway, T.
            layer_worth: what devices may be worth a layer.
        """
        price = layer_worth * np.array(PRICES)
        unit = step_s / 2 / MANY_PLACES
        room_s = step_s - np.arange(MANY_PLACES)[:, None] * unit
        most, last = self._held(layers, room_s), self._held(layers, room_s - self.behind_s)
        steps = np.floor(self.wait_s / unit + ROUNDING).astype(np.int64)
        short = steps == 0
        rate = unit / np.maximum(self.wait_s[short], ROUNDING * unit)
        least = np.empty((MANY_PLACES, len(price)))

        def over(held: Float[np.ndarray, "ways"]) -> Float[np.ndarray, "prices ways"]:
            return np.asarray(np.where(held > 0, self.worth - price[:, None] * held, np.inf))

        for place in reversed(range(MANY_PLACES)):
            ends = np.where(last[place] >= 0, self.worth - price[:, None] * last[place], np.inf).min(axis=1)
            own = over(most[place])
            if place == MANY_PLACES - 1:
                least[place] = ends + layers * np.minimum(own.min(axis=1), 0.0)
                continue
            behind = np.minimum(place + np.maximum(steps, 1), MANY_PLACES - 1)
            more = (own + least[behind].T).min(axis=1)
            saved = (own[:, short] * rate).min(axis=1, initial=0.0)
            least[place] = np.minimum(saved + np.minimum(ends, more), least[place + 1])
        alone = np.where(last[0] >= 0, self.worth - price[:, None] * last[0], np.inf).min(axis=1)
        leads = over(self._held(layers, step_s - self.ahead_s)) + least[np.minimum(steps, MANY_PLACES - 1)].T
        found = price * layers + np.minimum(alone, leads.min(axis=1))
        return float(found.max())

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
