"""Layer rows: what each item costs under one strategy, on one kind of device, at one micro-batch; each priced once.

A stage is counts x rows. Homogeneous and mixed plans differ only in how many rows they have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.estimate.data.sync import LayerSync, sync_layers
from meshwright.estimate.layers.item_costs import ItemCosts, item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.estimate.site import Sites
from meshwright.shapes import Bool, Float
from meshwright.specs.dispatchers import dispatcher_code
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.model import ModelSpec
from meshwright.specs.strategy import EXPERT_OVERLAPS, LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.columns import OVERLAPS, StrategyColumns
from meshwright.strategies.data import ShardingColumns

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

    @property
    def edges(self) -> Bool[np.ndarray, "items"]:
        """Items at the ends of the model."""
        mask = np.zeros(self.items, dtype=bool)
        mask[[self.embedding, self.head, self.tie, self.copy]] = True
        return mask


class Rows:
    """Every row that plans of one job ask for."""

    def __init__(self, model: ModelSpec, workload: Workload, sites: Sites) -> None:
        """Price nothing yet.

        Args:
            model: the model whose layers rows hold.
            workload: formats and lengths.
            sites: hardware by view.
        """
        self.model, self.workload, self.sites = model, workload, sites
        self.kinds = model.kinds()
        self.places = ItemPlaces(len(self.kinds), bool(model.mtp_layers))
        self.strategies: list[LayerStrategy] = []
        self._whole: list[int] = []
        self._numbers: dict[tuple[LayerStrategy, int], int] = {}
        self._rows: dict[RowKey, Float[np.ndarray, "costs items"]] = {}

    def number(self, strategy: LayerStrategy, whole: int = 0) -> int:
        """The number of a strategy; equal ones share it.

        Args:
            strategy: the strategy of layers.
            whole: what FSDP keeps whole between its micro-batches, as `whole_between` says it.
        """
        if (strategy, whole) not in self._numbers:
            self._numbers[strategy, whole] = len(self.strategies)
            self.strategies.append(strategy)
            self._whole.append(whole)
        return self._numbers[strategy, whole]

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
        whole = [self._whole[number] for _, number, _ in keys]
        sharding = sharding_columns(strategies, whole) if len(keys) > 1 else sharding_of(strategies[0], whole[0])
        modes = tuple(dict.fromkeys((*(strategy.recompute for strategy in strategies), NONE)))
        items = (
            *(Item("layer", kind, mode) for mode in modes for kind in self.kinds),
            *(Item(part) for part in ("embedding", "head", "tie", "copy")),
            *(Item("mtp", self.model.mtp_kind, mode) for mode in modes if self.places.modules),
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


def strategy_columns(
    strategies: Sequence[LayerStrategy], micro_batch: float | Float[np.ndarray, "rows"], workload: Workload
) -> StrategyColumns:
    """Strategies as columns, one row each.

    Args:
        strategies: the strategies of a plan, of one tensor strategy.
        micro_batch: sequences per micro-batch, of all or each; a fraction for a section of one.
        workload: sequence length and expert load.

    Returns:
        The columns.
    """
    tensors = [strategy.tensor for strategy in strategies]
    levels = [[math.prod(c.degree for c in s.context if c.name == kind) for kind in CONTEXTS] for s in strategies]
    return StrategyColumns(
        tp=np.array([t.degree for t in tensors]),
        sp=np.array([t.shards_sequence for t in tensors]),
        tp_overlap=np.array([OVERLAPS.index(t.overlap) if isinstance(t, Tensor1D) else 0 for t in tensors]),
        context=np.array(levels).reshape(-1, len(CONTEXTS)),
        ep=np.array([s.expert.ep for s in strategies]),
        etp=np.array([s.expert.etp for s in strategies]),
        mbs=np.broadcast_to(np.asarray(micro_batch), (len(strategies),)),
        capacity=np.array(
            [np.nan if s.expert.capacity_factor is None else s.expert.capacity_factor for s in strategies]
        ),
        ep_chunks=np.array([s.expert.overlap_degree for s in strategies]),
        offload_weights=np.array([s.offload.weights * fetched_share(s) for s in strategies]),
        offload_activations=np.array([s.offload.activations for s in strategies]),
        seq_len=workload.seq_len,
        imbalance=workload.expert_imbalance,
        tensor=tensors[0].name,
        dispatcher=np.array([dispatcher_code(s.expert.dispatcher) for s in strategies]),
        ep_overlap=np.array([EXPERT_OVERLAPS.index(s.expert.overlap) for s in strategies]),
        weights_on_disk=np.array([s.offload.tier == "nvme" for s in strategies]),
        data_ranks=np.array([s.dp for s in strategies]) if workload.sequence_lengths else None,
        load=workload.expert_load,
        shadowed=_where_any([s.expert.shadowed * (s.expert.ep > 1) for s in strategies]),
        placed=_where_any([s.expert.placed_by_load for s in strategies]),
        whole_tokens=_where_any([s.expert.drop_duplicates for s in strategies]),
        leaving=_where_any([1.0 if s.expert.locality is None else s.expert.locality for s in strategies], neutral=1.0),
        stashed=_where_any([s.expert.stash_collectives for s in strategies]),
        prioritised=_where_any([s.expert.prioritised for s in strategies]),
        compression=_where_any([s.data.compression for s in strategies], neutral=""),
    )


def _where_any(values: list[Any], neutral: float | str = 0) -> np.ndarray | None:
    """A column of settings, None where all are neutral."""
    return None if all(value == neutral for value in values) else np.array(values)


def fetched_share(strategy: LayerStrategy) -> float:
    """Part of a layer's weights that one rank fetches from its host: with zero 3 its shard, which is then gathered."""
    ranks, expert = strategy.cp * strategy.dp, strategy.expert
    if strategy.data.zero < 3:
        return 1.0
    shard = ranks // strategy.data.replicate
    return 1.0 / max(1, min(shard, shard * strategy.tp // (expert.ep * expert.etp)))


@lru_cache(maxsize=1024)
def sharding_of(strategy: LayerStrategy, whole: int, workers: int = 1) -> ShardingColumns:
    """Data-parallel record of one strategy as a row, the same for all workers; plans of many questions share it.

    Args:
        strategy: the strategy of layers.
        whole: what FSDP keeps whole between micro-batches.
        workers: columns of the row.
    """
    one = sharding_columns([strategy], [whole])
    names = [field.name for field in fields(ShardingColumns)]
    return ShardingColumns(**{name: np.repeat(getattr(one, name), workers, axis=1) for name in names})


def sharding_columns(strategies: Sequence[LayerStrategy], whole: Sequence[int] = ()) -> ShardingColumns:
    """Data-parallel records as columns of shape strategies x 1.

    Args:
        strategies: the strategies of layers.
        whole: what FSDP keeps whole between micro-batches, of each; nothing where it is not said.
    """

    def column(values: list[object]) -> np.ndarray:
        return np.array(values)[:, None]

    held = whole or [0] * len(strategies)
    shard, replicate, expert_shard, expert_replicate = [], [], [], []
    for strategy in strategies:
        data, ranks = strategy.data, strategy.cp * strategy.dp
        expert_ranks = max(1, strategy.devices // (strategy.expert.ep * strategy.expert.etp))
        if data.zero == 0:
            groups, expert_groups = ranks, expert_ranks
        else:
            groups = data.replicate
            expert_groups = groups if expert_ranks % groups == 0 else 1
        shard.append(data.across or ranks // groups)
        replicate.append(groups)
        expert_shard.append(data.across or expert_ranks // expert_groups)
        expert_replicate.append(expert_groups)
    return ShardingColumns(
        zero=column([s.data.zero for s in strategies]),
        fsdp=column([s.data.family == "fsdp" for s in strategies]),
        reshard=column([s.data.reshard for s in strategies]),
        shard=column(list(shard)),
        replicate=column(list(replicate)),
        expert_shard=column(list(expert_shard)),
        expert_replicate=column(list(expert_replicate)),
        overlap=column([s.data.overlap for s in strategies]),
        offload_optimizer=column([s.offload.optimizer for s in strategies]),
        offload_gradients=column([s.offload.gradients for s in strategies]),
        offload_weights=column([s.offload.weights for s in strategies]),
        offload_disk=column([float(s.offload.tier == "nvme") for s in strategies]),
        delayed_update=column([float(s.offload.delayed_update) for s in strategies]),
        gather_bytes=column([DTYPE_BYTES.get(s.data.gather_dtype or "", np.nan) for s in strategies]),
        reduce_bytes=column([DTYPE_BYTES.get(s.data.reduce_dtype or "", np.nan) for s in strategies]),
        secondary=column([s.data.secondary_shard for s in strategies]),
        prefetch=column([s.data.prefetch for s in strategies]),
        compression=column([s.data.compression for s in strategies]),
        averaging_steps=column([s.data.averaging_steps * (s.data.averaging != "synchronous") for s in strategies]),
        passing=column([s.data.passing for s in strategies]),
        tile=column([float(strategy.optimizer_tile) for strategy in strategies]),
        outer=column([s.data.averaging == "diloco" for s in strategies]),
        whole=column([kept * (s.data.family == "fsdp") for s, kept in zip(strategies, held, strict=True)]),
    )
