"""Layer rows: what each item costs under one strategy, on one kind of device, at one micro-batch; each priced once.

A stage is counts x rows. Homogeneous and mixed plans differ only in how many rows they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from meshwright.estimate.items import NONE, Item, ItemCosts, item_costs
from meshwright.estimate.pipeline import sync_layers
from meshwright.estimate.site import Sites
from meshwright.estimate.sync import LayerSync
from meshwright.estimate.unpack import sharding_columns, strategy_columns
from meshwright.shapes import Bool, Float
from meshwright.specs.model import ModelSpec
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

_COSTS = tuple(f.name for f in fields(ItemCosts))

RowKey = tuple[int, int, float]
"""View of a site, number of a strategy, sequences of a rank's micro-batch or of its section."""


@dataclass(frozen=True, slots=True)
class ItemPlaces:
    """Columns of a row: layer kinds as the strategy recomputes them, then with nothing recomputed, then the edges."""

    kinds: int
    modules: bool
    """Whether the model has multi-token-prediction modules."""

    @property
    def items(self) -> int:
        """Number of columns."""
        return self.tail + 2 * self.modules

    @property
    def embedding(self) -> int:
        """Column of the embedding."""
        return 2 * self.kinds

    @property
    def head(self) -> int:
        """Column of final norm, projection and loss."""
        return self.embedding + 1

    @property
    def tie(self) -> int:
        """Column that takes back a shared table."""
        return self.embedding + 2

    @property
    def copy(self) -> int:
        """Column that adds one."""
        return self.embedding + 3

    @property
    def tail(self) -> int:
        """First column behind the edges: a prediction module, and one with nothing recomputed."""
        return self.embedding + 4

    @property
    def whole(self) -> Bool[np.ndarray, "items"]:
        """Items that FSDP gathers as one unit."""
        mask = np.ones(self.items, dtype=bool)
        mask[[self.tie, self.copy]] = False
        return mask


class Rows:
    """Every row that plans of one job ask for."""

    def __init__(self, model: ModelSpec, workload: Workload, sites: Sites) -> None:
        """Price nothing yet.

        Args:
            model: whose layers rows hold.
            workload: formats and lengths.
            sites: hardware by view.
        """
        self.model, self.workload, self.sites = model, workload, sites
        self.kinds = model.kinds()
        self.places = ItemPlaces(len(self.kinds), bool(model.mtp_layers))
        self.strategies: list[LayerStrategy] = []
        self._numbers: dict[LayerStrategy, int] = {}
        self._rows: dict[RowKey, Float[np.ndarray, "costs items"]] = {}

    def number(self, strategy: LayerStrategy) -> int:
        """The number of a strategy; equal ones share it."""
        if strategy not in self._numbers:
            self._numbers[strategy] = len(self.strategies)
            self.strategies.append(strategy)
        return self._numbers[strategy]

    def price(self, wanted: Iterable[RowKey]) -> None:
        """Price those that are not known, all of a view and a tensor strategy together."""
        missing: dict[tuple[int, str], list[RowKey]] = {}
        for key in dict.fromkeys(wanted):
            if key not in self._rows:
                missing.setdefault((key[0], self.strategies[key[1]].tensor.name), []).append(key)
        for (view, _), keys in missing.items():
            self._price(view, keys)

    def costs(self, keys: Sequence[RowKey]) -> tuple[ItemCosts, LayerSync]:
        """Rows and items flattened to one row of cells, as pipelines are composed from."""
        table = np.stack([self._rows[key] for key in keys], axis=1)
        flat = table.reshape(len(table), 1, -1)
        *costs, forward_s, backward_s = flat
        return ItemCosts(**dict(zip(_COSTS, costs, strict=True))), LayerSync(forward_s=forward_s, backward_s=backward_s)

    def _price(self, view: int, keys: list[RowKey]) -> None:
        strategies = [self.strategies[number] for _, number, _ in keys]
        hardware, workload = self.sites.views[view], self.workload
        columns = strategy_columns(strategies, np.array([micro_batch for *_, micro_batch in keys]), workload)
        sharding = sharding_columns(strategies)
        modes = tuple(dict.fromkeys((*(strategy.recompute for strategy in strategies), NONE)))
        items = (
            *(Item("layer", kind, mode) for mode in modes for kind in self.kinds),
            *(Item(part) for part in ("embedding", "head", "tie", "copy")),
            *(Item("mtp", self.model.last_layer(), mode) for mode in modes if self.places.modules),
        )
        costs = item_costs(items, columns, self.model, hardware, workload)
        sync = sync_layers(costs, columns, sharding, hardware, workload, anything=bool((sharding.zero == 3).any()))
        table = np.stack([*(getattr(costs, name) for name in _COSTS), sync.forward_s, sync.backward_s])
        kinds, bare = np.arange(len(self.kinds)), modes.index(NONE)
        edges = len(modes) * len(kinds) + np.arange(4)
        for row, (key, strategy) in enumerate(zip(keys, strategies, strict=True)):
            both = [modes.index(strategy.recompute), bare]
            layers = [kinds + mode * len(kinds) for mode in both]
            modules = [edges[-1:] + 1 + mode for mode in both] if self.places.modules else []
            self._rows[key] = table[:, row, np.concatenate([*layers, edges, *modules])]
