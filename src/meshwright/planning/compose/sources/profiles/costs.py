"""Seconds and bytes of stages and transfers from measured layer profiles, by the rule of Sailor's simulator.

    time of a stage      sum over its layers of forward + backward at (device, tp, micro-batch)
    transfer             t(x; link) = x bytes / (1e9 fit(x) GB/s)
    gradients            4 bytes x parameters / smallest tp, in buckets of 500e6 bytes, 2 (D - 1) t(bucket / D) each
    memory               24 bytes per parameter + 4 bytes x saved elements x micro-batch x stages from here on + fixed

Source: sailor/Planner/simulations/runtime_simulator.py of eth-easl/sailor@cf2c8e3 (Sailor, SOSP 2025).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from meshwright.errors import Problem
from meshwright.formats.profiles import End, LayerSizes, LayerTimes, LinkFit, ModelProfile, Point, ProfileSet, Route
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.shapes import Float

ELEMENT_BYTES = 4
"""Profiles are fp32."""
STATE_BYTES = 24
"""Bytes per parameter: weights, gradients, Adam's two moments and Sailor's copies, fp32."""
BUCKET_BYTES = 500e6
FIXED_BYTES = {1: 2e9}
FIXED_SHARDED_BYTES = 3e9
"""What Sailor's planner keeps free for the context and libraries: 2 GB, 3 GB with tensor parallelism."""
BETWEEN = "inter_node_het"
SMALL_LAYER = 0.1
"""Share of a middle layer's parameters below which one beside the embedding or the head counts with it."""


class UnmeasuredLinkError(KeyError):
    """The profiles have no link between two kinds of devices, in neither direction."""

    def problem(self) -> Problem:
        """What the user reads."""
        route: Route = self.args[0]
        ends = [f"{end.device}{f' in {end.zone}' if end.zone else ''}" for end in (route.source, route.target)]
        return Problem(
            what=f"no link between {ends[0]} and {ends[1]} was measured",
            why="devices that hold the same layers, or layers next to each other, exchange data",
            fix="measure it, or put the devices into zones that the profiles have links of",
            field="profiles",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunningSums:
    """Sums over the layers before each cut."""

    seconds: Float[np.ndarray, "cuts"]
    update_s: Float[np.ndarray, "layers"]


class ProfileCosts:
    """One model's profile on the kinds of device of one cluster."""

    def __init__(self, profiles: ProfileSet, model: str, kinds: Iterable[DeviceKind]) -> None:
        self.profile: ModelProfile = profiles.models[model]
        self.kinds = {kind.name: kind for kind in kinds}
        self.num_layers = self.profile.num_layers
        self._links = profiles.links
        self._sums: dict[Point, RunningSums] = {}
        self._bytes: dict[tuple[str, int], Float[np.ndarray, "cuts"]] = {}
        self._rings: dict[tuple[int, int, int, tuple[tuple[str, int], ...]], float] = {}
        self._transfers: dict[tuple[float, tuple[str, int], tuple[str, int]], float] = {}

    @cached_property
    def whole(self) -> LayerSizes:
        """Sizes of the unsplit layers."""
        return self.profile.sizes[1]

    @cached_property
    def ends(self) -> tuple[int, int]:
        """Layers that count with the embedding and with the head: these, and norms and others as small beside them."""
        weights = self.whole.parameters
        small = (weights < SMALL_LAYER * np.median(weights[1:-1])) if len(weights) > 2 else np.zeros(len(weights), bool)
        first = last = 1
        while first + last < len(weights) - 1 and small[first]:
            first += 1
        while first + last < len(weights) - 1 and small[-1 - last]:
            last += 1
        return first, last

    @cached_property
    def parameters(self) -> Float[np.ndarray, "cuts"]:
        """Parameters of the unsplit layers before each cut."""
        return _before_each_cut(self.whole.parameters)

    def tensor_degrees(self, device: str) -> tuple[int, ...]:
        """Profiled degrees that stay inside a node."""
        most = self.kinds[device].devices_per_node
        return tuple(tp for tp in self.profile.tensor_degrees(self.kinds[device].device) if tp <= most)

    def sums(self, device: str, tp: int, micro_batch: int) -> RunningSums | None:
        """Running sums of a point, None where it was not profiled."""
        point = Point(self.kinds[device].device, tp, micro_batch)
        if point not in self._sums:
            times = self.profile.times.get(point)
            if times is None or tp not in self.profile.sizes:
                return None
            self._sums[point] = _running(times)
        return self._sums[point]

    def forward_s(self, device: str, tp: int, micro_batch: int) -> Float[np.ndarray, "cuts"]:
        """Seconds forward of the layers before each cut, of a point that was profiled."""
        return _before_each_cut(self.profile.times[Point(self.kinds[device].device, tp, micro_batch)].forward_s)

    def state_bytes(self, tp: int) -> Float[np.ndarray, "cuts"]:
        """Bytes of parameters, gradients and optimizer before each cut, per device."""
        key = ("state", tp)
        if key not in self._bytes:
            self._bytes[key] = STATE_BYTES * _before_each_cut(self.profile.sizes[tp].parameters)
        return self._bytes[key]

    def saved_bytes(self, tp: int) -> Float[np.ndarray, "cuts"]:
        """Bytes of activations before each cut, per device and sequence."""
        key = ("saved", tp)
        if key not in self._bytes:
            self._bytes[key] = ELEMENT_BYTES * _before_each_cut(self.profile.sizes[tp].saved_elements)
        return self._bytes[key]

    def fixed_bytes(self, tp: int) -> float:
        """Bytes that no layer uses."""
        return FIXED_BYTES.get(tp, FIXED_SHARDED_BYTES)

    def boundary_bytes(self, cut: int) -> float:
        """Activations that cross a cut, per sequence."""
        return ELEMENT_BYTES * float(self.whole.output_elements[cut - 1])

    def transfer_s(self, payload_bytes: float, source: tuple[str, int], target: tuple[str, int]) -> float:
        """Seconds of a transfer between devices of two kinds.

        Args:
            payload_bytes: the payload bytes per transfer.
            source: kind and devices per node that share the interface.
            target: kind and devices per node that share the interface of the receiver.
        """
        key = (payload_bytes, source, target)
        if key not in self._transfers:
            route = Route(BETWEEN, self._end(*source), self._end(*target))
            self._transfers[key] = self.link(route).seconds(payload_bytes)
        return self._transfers[key]

    def link(self, route: Route) -> LinkFit:
        """The fit of a route, or of its other direction where only that was measured."""
        fit = self._links.get(route) or self._links.get(Route(route.kind, route.target, route.source))
        if fit is None:
            raise UnmeasuredLinkError(route)
        return fit

    def joined_columns(self, source: str, target: str) -> bool:
        """Whether the network profile has a link between single devices of two kinds."""
        try:
            self.transfer_s(BUCKET_BYTES, (source, 1), (target, 1))
        except KeyError:
            return False
        return True

    def _end(self, device: str, per_node: int) -> End:
        kind = self.kinds[device]
        return End(kind.device, min(per_node, kind.devices_per_node), kind.zone)

    def run_ring_s(self, first: int, end: int, tp: int, ranks: tuple[tuple[str, int], ...]) -> float:
        """Gradient all-reduce of a run of layers over all its holders, those of one kind side by side.

        Args:
            first: layer.
            end: first layer after the run.
            tp: smallest degree of the holders.
            ranks: holders of each kind.
        """
        key = (first, end, tp, ranks)
        if key not in self._rings:
            devices = [device for device, _ in ranks]
            pairs = [(device, device) for device, count in ranks if count > 1] + list(pairwise(devices))
            parameters = float(self.parameters[end] - self.parameters[first])
            self._rings[key] = self.ring_s(parameters, tp, sum(count for _, count in ranks), pairs)
        return self._rings[key]

    def ring_s(self, parameters: float, tp: int, replicas: int, pairs: Iterable[tuple[str, str]]) -> float:
        """Gradient all-reduce of a stage over its replicas.

            2 (D - 1) t(bucket / D; pair) for each bucket, the slowest pair of neighbours counts

        Args:
            parameters: the parameters of the unsplit layers.
            tp: smallest degree of the replicas.
            replicas: D.
            pairs: kinds of neighbours in the ring.
        """
        if replicas == 1:
            return 0.0
        payload = ELEMENT_BYTES * parameters / tp
        full, rest = divmod(payload, BUCKET_BYTES)
        slowest = 0.0
        for source, target in set(pairs):
            ends = (source, 1), (target, 1)
            time_s = full * self.transfer_s(BUCKET_BYTES / replicas, *ends) if full else 0.0
            time_s += self.transfer_s(rest / replicas, *ends) if rest else 0.0
            slowest = max(slowest, 2 * (replicas - 1) * time_s)
        return slowest


def _running(times: LayerTimes) -> RunningSums:
    return RunningSums(seconds=_before_each_cut(times.forward_s + times.backward_s), update_s=times.update_s)


def _before_each_cut(values: Float[np.ndarray, "layers"]) -> Float[np.ndarray, "cuts"]:
    return np.concatenate(([0.0], np.cumsum(values)))
