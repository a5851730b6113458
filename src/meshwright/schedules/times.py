"""How long tasks and transfers take: what users give, and the same as one column per class of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.schedules.kinds import LANE, Kind, Lane, Placement
from meshwright.shapes import Float

Seconds = Float[np.ndarray, "*rows_and_edges"] | float

TIMED = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.X, Kind.SEND_F, Kind.RECV_F, Kind.SEND_B, Kind.RECV_B})
"""Kinds with a field of their own in `Times`; the others are in `others_s`."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Times:
    """Seconds of the tasks of one micro-batch, by worker and chunk; leading axes hold sets of durations."""

    forward_s: Float[np.ndarray, "*#rows workers chunks"]
    backward_s: Float[np.ndarray, "*#rows workers chunks"]
    """Full backward; input gradients take what `weight_s` leaves of it."""
    transfer_s: Seconds = 0.0
    """Latency between a virtual stage and the next one, the same in both directions: by worker and chunk of the
    upstream stage (*rows, workers, chunks), or along the chain (*rows, workers*chunks - 1). Ignored inside a worker."""
    weight_s: Float[np.ndarray, "*#rows workers chunks"] | None = None
    """Weight gradient; needed by schedules that split the backward."""
    recompute_s: Float[np.ndarray, "*#rows workers chunks"] | None = None
    """Recomputation, and redundant forward; needed by schedules with such tasks."""
    sending_s: Seconds = 0.0
    """Seconds that a message occupies its channel, bytes / bandwidth, in the shapes of `transfer_s`; the messages of a
    channel follow each other. A message that takes t s to send arrives t + latency after it starts."""
    gradient_transfer_s: Seconds | None = None
    """Latency of gradients, by the same upstream stage; None: that of activations."""
    gradient_sending_s: Seconds | None = None
    """Seconds that a gradient occupies its channel; None: as long as an activation."""
    others_s: Mapping[Kind, Float[np.ndarray, "*#rows workers chunks"]] = field(default_factory=dict)
    """Seconds of every other kind in the table (OPT, UNSHARD, REDUCE, OFFLOAD_A, ...); RESHARD takes none if absent."""
    by_micro_batch: bool = False
    """Whether the durations of tasks have one more axis, the last: micro-batches (transfers have none)."""

    @classmethod
    def equal(
        cls,
        p: int,
        v: int = 1,
        *,
        forward_s: float = 1.0,
        backward_s: float = 2.0,
        transfer_s: float = 0.0,
        weight_s: float | None = None,
        recompute_s: float | None = None,
    ) -> Times:
        """The same times, given per full worker share, on every worker; a chunk takes 1/v of them."""

        def share(seconds: float) -> np.ndarray:
            return np.full((p, v), seconds / v)

        return cls(
            forward_s=share(forward_s),
            backward_s=share(backward_s),
            transfer_s=np.full((p, v), float(transfer_s)),
            weight_s=None if weight_s is None else share(weight_s),
            recompute_s=None if recompute_s is None else share(recompute_s),
        )

    @property
    def occupies_channels(self) -> bool:
        """Whether messages hold up the messages behind them."""
        return bool(np.any(self.sending_s)) or bool(np.any(_or_zero(self.gradient_sending_s)))

    @property
    def plain(self) -> bool:
        """Whether latency is all that transfers cost, alike in both directions, and micro-batches are alike."""
        return not (self.occupies_channels or self.by_micro_batch or self.others_s) and self.gradient_transfer_s is None


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ClassSeconds:
    """Seconds by class, one column per set of durations."""

    tasks: Float[np.ndarray, "classes rows"]
    """Seconds by kind, worker, chunk (and micro-batch, if they differ); 0 in one more class at the end."""
    edges: Float[np.ndarray, "edge_classes rows"]
    """What the way from a task to one that needs it adds: `forward`, `backward`, nothing, and with serial messages the
    time of a message taken off, forward and backward; each by worker and chunk of the upstream stage."""
    lead: tuple[int, ...]
    """Leading axes of the times."""


def class_seconds(
    placement: Placement, times: Times, kinds: frozenset[Kind], micro_batches: int, *, serial: bool = False
) -> ClassSeconds:
    """Seconds of every class of tasks and edges; all problems at once.

    Args:
        placement: the placement of the virtual stages.
        times: sets of durations.
        kinds: kinds of the tasks.
        micro_batches: the number of micro-batches of the longest chain.
        serial: messages occupy the workers that send and receive them.
    """
    p, v = placement.p, placement.v
    shape = (p, v, micro_batches) if times.by_micro_batch else (p, v)
    given = _given(times)
    problems = _problems(times, given, kinds, shape)
    if problems:
        raise InputError(problems)
    lead = np.broadcast_shapes(*(array.shape[: array.ndim - len(shape)] for array in given.values()))
    by_kind = {Kind.F: given["forward_s"], Kind.B: given["backward_s"], **times.others_s}
    if "weight_s" in given:
        by_kind |= {Kind.I: given["backward_s"] - given["weight_s"], Kind.W: given["weight_s"]}
    if "recompute_s" in given:
        by_kind |= {Kind.R: given["recompute_s"], Kind.X: given["recompute_s"]}
    if Kind.I in kinds and (by_kind[Kind.I] < 0).any():
        raise InputError(
            what="weight_s is longer than backward_s",
            why="backward_s is the sum of input and weight gradient",
            field="weight_s",
        )
    latency = edge_latency_s(placement, times.transfer_s, lead)
    back_latency = latency
    if times.gradient_transfer_s is not None:
        back_latency = edge_latency_s(placement, times.gradient_transfer_s, lead, "gradient_transfer_s")
    sending = edge_latency_s(placement, times.sending_s, lead, "sending_s")
    back_sending = sending
    if times.gradient_sending_s is not None:
        back_sending = edge_latency_s(placement, times.gradient_sending_s, lead, "gradient_sending_s")
    if any(LANE[kind] == Lane.SEND for kind in kinds):
        by_kind |= _message_seconds(placement, latency, back_latency, sending, back_sending, serial=serial)
    rows = int(np.prod(lead, dtype=int))
    classes = int(np.prod(shape))
    tasks = np.zeros((len(Kind) * classes + 1, rows))
    for kind in kinds & by_kind.keys():
        seconds = np.asarray(by_kind[kind], float)
        if times.by_micro_batch and kind not in _MICRO_BATCHED:
            seconds = seconds[..., None]
        tasks[kind * classes : (kind + 1) * classes] = np.broadcast_to(seconds, (*lead, *shape)).reshape(rows, -1).T
    nothing = np.zeros((1, rows))
    ways = [latency, back_latency] if not serial else [latency * 0.0] * 2
    held = [-latency - sending, -back_latency - back_sending] if serial else []
    columns = [way.reshape(rows, -1).T for way in ways]
    return ClassSeconds(
        tasks=tasks, edges=np.vstack([*columns, nothing, *(way.reshape(rows, -1).T for way in held)]), lead=lead
    )


_MICRO_BATCHED = frozenset({Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.X})


def _message_seconds(
    placement: Placement,
    latency: np.ndarray,
    back_latency: np.ndarray,
    sending: np.ndarray,
    back_sending: np.ndarray,
    *,
    serial: bool,
) -> dict[Kind, np.ndarray]:
    """Seconds of SEND and RECV by their own worker and chunk; the other arrays are by the upstream stage's."""
    forward, backward = (latency + sending, back_latency + back_sending) if serial else (sending, back_sending)
    has_before = placement.preceding >= 0
    own, before = np.nonzero(has_before)[0], placement.preceding[has_before]

    def downstream(seconds: np.ndarray) -> np.ndarray:
        moved = np.zeros_like(seconds)
        moved[..., placement.worker[own], placement.chunk[own]] = seconds[
            ..., placement.worker[before], placement.chunk[before]
        ]
        return moved

    free = np.zeros_like(forward)
    return {
        Kind.SEND_F: forward,
        Kind.RECV_F: downstream(forward) if serial else free,
        Kind.SEND_B: downstream(backward),
        Kind.RECV_B: backward if serial else free,
    }


def edge_latency_s(
    placement: Placement, transfer_s: Seconds, lead: tuple[int, ...], name: str = "transfer_s"
) -> Float[np.ndarray, "*#rows workers chunks"]:
    """Seconds behind each virtual stage by worker and chunk; 0 behind the last of a chain and inside a worker.

    Args:
        placement: the placement of the virtual stages.
        transfer_s: seconds, by worker and chunk of the upstream stage, along the chain, or one for all.
        lead: leading axes of the other times.
        name: the name of the field, for its problems.
    """
    p, v = placement.p, placement.v
    given = np.asarray(transfer_s, float)
    if given.ndim == len(lead) + 1 and placement.chains == 1 and given.shape[-1] == placement.stages - 1:
        along = np.zeros((*given.shape[:-1], p, v))
        along[..., placement.worker[:-1], placement.chunk[:-1]] = given
        given = along
    try:
        given = np.broadcast_to(given, (*lead, p, v))
    except ValueError:
        raise InputError(_shape_problem(name, given.shape, (p, v))) from None
    crosses = np.zeros((p, v), bool)
    crosses[placement.worker, placement.chunk] = (placement.following >= 0) & (
        placement.worker[placement.following] != placement.worker
    )
    return np.where(crosses, given, 0.0)


def _given(times: Times) -> dict[str, np.ndarray]:
    """Durations of computation that are given, by field."""
    names = ("forward_s", "backward_s", "weight_s", "recompute_s")
    return {name: np.asarray(getattr(times, name), float) for name in names if getattr(times, name) is not None}


def _problems(
    times: Times, given: dict[str, np.ndarray], kinds: frozenset[Kind], shape: tuple[int, ...]
) -> list[Problem]:
    problems = []
    if kinds & {Kind.I, Kind.W} and times.weight_s is None:
        problems.append(_missing("weight_s", "I and W"))
    if kinds & {Kind.R, Kind.X} and times.recompute_s is None:
        problems.append(_missing("recompute_s", "R" if Kind.R in kinds else "X"))
    for kind in sorted(kinds - TIMED - {Kind.RESHARD} - times.others_s.keys()):
        problems.append(_missing(f"others_s[{kind.name}]", kind.name))
    others = {f"others_s[{kind.name}]": np.asarray(seconds, float) for kind, seconds in times.others_s.items()}
    problems += [_shape_problem(n, a.shape, shape) for n, a in given.items() if a.shape[-len(shape) :] != shape]
    problems += [_shape_problem(n, a.shape, shape[:2]) for n, a in others.items() if a.shape[-2:] != shape[:2]]
    transfers = ("transfer_s", "sending_s", "gradient_transfer_s", "gradient_sending_s")
    ways = {name: np.asarray(_or_zero(getattr(times, name)), float) for name in transfers}
    problems += [
        Problem(
            what=f"{name} has values that are negative, infinite or not numbers",
            why="a duration is at least 0 s",
            field=name,
        )
        for name, array in {**given, **others, **ways}.items()
        if not (np.isfinite(array).all() and (array >= 0).all())
    ]
    return problems


def _or_zero(seconds: Seconds | None) -> Seconds:
    return 0.0 if seconds is None else seconds


def _missing(name: str, tasks: str) -> Problem:
    return Problem(
        what=f"{name} is missing",
        why=f"the schedule has {tasks} tasks",
        fix=f"pass {name} for every worker and chunk",
        field=name,
    )


def _shape_problem(name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> Problem:
    axes = "workers, chunks and micro-batches" if len(wanted) == 3 else "workers and chunks"
    return Problem(
        what=f"{name} has shape {shape}",
        why=f"the last axes are {axes}, here {wanted}",
        fix=f"pass an array whose shape ends in {wanted}",
        field=name,
    )
