"""The ranks that share gradients and weights, and how long their collectives take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.kernels.collectives import GroupLines, all_gather_s, all_reduce_s, point_to_point_s
from meshwright.kernels.lines import LevelRates, group_span
from meshwright.shapes import Array, Column, Int
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.data import Z0, ShardingColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class DataGroups:
    """The ranks that share gradients: strides and sizes in rank order tp-cp-ep-dp."""

    dense_stride: Int[np.ndarray, "..."]
    """tp: dense gradients are summed over context and data ranks."""
    expert_stride: Int[np.ndarray, "..."]
    """etp x ep."""

    def take(self, index: Int[np.ndarray, "picked"]) -> DataGroups:
        """The rows of this index."""
        return DataGroups(dense_stride=self.dense_stride[index], expert_stride=self.expert_stride[index])


def data_groups(columns: StrategyColumns) -> DataGroups:
    """Strides of the groups that share gradients, shape plans x 1."""
    return DataGroups(dense_stride=columns.tp[:, None], expert_stride=(columns.etp * columns.ep)[:, None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Partners:
    """Workers of other pipelines that hold the same layers, as each worker sees them.

    Gradients are reduced inside a worker's own data group, then between pipelines, each device on its own part. A
    partner with fewer devices has larger parts; the links of those with more are as much less busy.
    """

    members: tuple[Array, ...]
    """Pipelines, the own one counted, inside one domain of each level of the worker's group."""
    pipelines: int
    """All of them."""
    between: LevelRates
    """The slowest link that leaves the group, one column per worker."""
    wider: Array
    """Devices of the worker over those of its narrowest partner, 1 or more."""

    def rates(self, levels: tuple[LevelRates, ...]) -> tuple[LevelRates, ...]:
        """The group's levels at the pace of the narrowest partner where partners meet, and the links between groups."""
        inside = (
            replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s / np.where(members > 1, self.wider, 1.0))
            for level, members in zip(levels, self.members, strict=True)
        )
        slowed = self.between.bandwidth_bytes_per_s / self.wider
        return (*inside, replace(self.between, bandwidth_bytes_per_s=slowed))


def joined_workers(parts: Sequence[Partners]) -> Partners:
    """Workers of one group, side by side as columns of one row."""
    between = [part.between for part in parts]
    return Partners(
        members=tuple(np.concatenate(level)[None, :] for level in zip(*(part.members for part in parts), strict=True)),
        pipelines=parts[0].pipelines,
        between=LevelRates(
            bandwidth_bytes_per_s=np.concatenate([np.asarray(link.bandwidth_bytes_per_s) for link in between])[None, :],
            efficiency=1.0,
            latency_s=np.concatenate([np.asarray(link.latency_s) for link in between])[None, :],
            base_latency_s=between[0].base_latency_s,
        ),
        wider=np.concatenate([part.wider for part in parts])[None, :],
    )


def _joint_span(stride: Column, size: Column, sizes: Sequence[int]) -> tuple[Array, ...]:
    """Members of one group over all pipelines inside a domain: the fewest of any, however many others have.

    As many of every domain send to the next one side by side.
    """
    stride, size = np.broadcast_arrays(stride, size)
    return (*(np.clip(inner // stride, 1, size).astype(float) for inner in sizes[:-1]), size.astype(float))


class DataNetwork:
    """Collectives of the shard and replica groups of dense and expert parameters."""

    def __init__(
        self, sharding: ShardingColumns, groups: DataGroups, hardware: Hardware, partners: Partners | None = None
    ) -> None:
        self.hardware, self.partners = hardware, partners
        sizes, rates = hardware.joint or (hardware.domain_sizes, hardware.rates)
        self.shard_rates, self.replicas = rates, sharding.replicate
        self.strides = {
            False: (groups.dense_stride, sharding.shard),
            True: (groups.expert_stride, sharding.expert_shard),
        }
        span = group_span if hardware.joint is None else _joint_span
        self.shard = {
            False: span(groups.dense_stride, sharding.shard, sizes),
            True: span(groups.expert_stride, sharding.expert_shard, sizes),
        }
        self.replica = {
            False: group_span(groups.dense_stride * sharding.shard, sharding.replicate, sizes),
            True: group_span(groups.expert_stride * sharding.expert_shard, sharding.expert_replicate, sizes),
        }
        self.every = {
            False: (groups.dense_stride, sharding.shard * sharding.replicate),
            True: (groups.expert_stride, sharding.expert_shard * sharding.expert_replicate),
        }
        self.tensor = group_span(1, groups.dense_stride, hardware.domain_sizes)
        self.replica_rates = rates
        if partners is not None:
            # A replica group goes on in the partners: as many times its members at each level, and all at the last.
            self.replica = {
                expert: (
                    *(own * members for own, members in zip(inside, partners.members, strict=True)),
                    inside[-1] * partners.pipelines,
                )
                for expert, inside in self.replica.items()
            }
            self.replica_rates = partners.rates(hardware.rates)

    @cached_property
    def meets_exchanges(self) -> Array:
        """1 where gradients of dense weights and exchanges of tokens leave the same domains, over the same links."""
        (stride, shards), replicas = self.strides[False], self.replicas
        within, exchanged = stride * shards * replicas, self.strides[True][0]
        sizes = self.hardware.domain_sizes
        left = [sum(np.asarray(ranks > size, dtype=np.int64) for size in sizes) for ranks in (within, exchanged)]
        return np.asarray(left[0] == left[1], dtype=float)

    @cached_property
    def meets_hops(self) -> Array:
        """1 where gradients of dense weights leave the innermost domain, as far as transfers to the next stage do."""
        (stride, shards), sizes = self.strides[False], self.hardware.domain_sizes
        left = gone = np.zeros(1, dtype=np.int64)
        for level, size in enumerate(sizes[:-1]):
            shard, replica = (np.less(spans[level], spans[-1]) for spans in (self.shard[False], self.replica[False]))
            left = left + (shard | replica)
            gone = gone + (stride * shards * self.replicas >= size)
        return np.asarray((left > 0) & (left == gone), dtype=float)

    @cached_property
    def _in_shard(self) -> dict[bool, GroupLines]:
        return {expert: GroupLines(inside=self.shard[expert], rates=self.shard_rates) for expert in self.shard}

    @cached_property
    def _in_replica(self) -> dict[bool, GroupLines]:
        return {expert: GroupLines(inside=self.replica[expert], rates=self.replica_rates) for expert in self.replica}

    def gather_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-gather over the shard group."""
        return np.asarray(self._in_shard[expert].gather.seconds(size_bytes))

    def scatter_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """Reduce-scatter over the shard group."""
        return np.asarray(self._in_shard[expert].gather.seconds(size_bytes))

    def replica_sum_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-reduce between shard groups, and between pipelines."""
        return np.asarray(self._in_replica[expert].sum.seconds(size_bytes))

    def rank_sum_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-reduce over all data ranks, whatever they shard, and between pipelines."""
        sizes, rates = self.hardware.joint or (self.hardware.domain_sizes, self.hardware.rates)
        inside = group_span(*self.every[expert], sizes)
        return np.asarray(all_reduce_s(size_bytes, inside=inside, rates=rates) + self.partner_sum_s(size_bytes))

    def replica_gather_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-gather between shard groups."""
        return np.asarray(self._in_replica[expert].gather.seconds(size_bytes))

    def pass_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """One message to the next rank of the shard group, over the slowest link between neighbours."""
        inside, rates = self.shard[expert], self.shard_rates
        return np.asarray(point_to_point_s(size_bytes, inside=inside, rates=rates))

    def second_gather_s(self, size_bytes: Array, ranks: Int[np.ndarray, "..."], *, expert: bool) -> Array:
        """All-gather over the ranks that hold a second copy of the weights, neighbours in the shard group.

        Args:
            size_bytes: the size in bytes of all that is gathered.
            ranks: the ranks of the second copy; those of the first where these are fewer.
            expert: whether experts' weights.
        """
        stride, shards = self.strides[expert]
        inside = group_span(stride, np.clip(ranks, 1, shards).astype(np.int64), self.hardware.domain_sizes)
        return np.asarray(all_gather_s(size_bytes, inside=inside, rates=self.hardware.rates))

    def tensor_sum_s(self, parameters: Array, sharding: ShardingColumns, workload: Workload) -> Array:
        """All-reduce over tensor ranks of gradients that data ranks have summed: of each rank's shard, where sharded.

        Nothing hides it: it comes after the last sum over data ranks. Megatron-LM does so with gradients of norms under
        sequence parallelism.

        Args:
            parameters: the parameters that tensor ranks hold whole, each with the gradient of its own tokens.
            sharding: the data-parallel choice.
            workload: formats.
        """
        shards = np.where(sharding.zero > Z0, sharding.shard, 1)
        size = parameters * sharding.reduced_bytes(workload.precision) / shards * workload.training
        return np.asarray(all_reduce_s(size, inside=self.tensor, rates=self.hardware.rates))

    def partner_sum_s(self, size_bytes: Array) -> Array:
        """All-reduce between pipelines alone, of what is summed inside each."""
        if self.partners is None:
            return np.zeros(1)
        inside = (*self.partners.members, np.full(np.shape(self.partners.wider), float(self.partners.pipelines)))
        return np.asarray(all_reduce_s(size_bytes, inside=inside, rates=self.replica_rates))
