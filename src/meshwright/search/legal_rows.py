"""Every legal row of degrees of a space: meshes of (tp, cp, pp, dp), their rows checked many at a time, as a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.budget import MEMORY_LIMIT, left_bytes, spent
from meshwright.estimate.rules.degrees import model_rules
from meshwright.search.axes import AXES, only_in_groups, ways, ways_of
from meshwright.search.grid import COLUMNS, NARROW, Grid, Ints
from meshwright.search.space import Space, only_in_pipelines, tensor_overlaps
from meshwright.search.table import divisors
from meshwright.shapes import Bool, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS
from meshwright.strategies.base import DegreeRule
from meshwright.strategies.columns import OVERLAPS, ranks_of
from meshwright.strategies.context import half_ranks, head_ranks

Folds = Int[np.ndarray, "folds"]
BULK, HALVES = OVERLAPS.index("bulk"), OVERLAPS.index("halves")
CHECKED_TOGETHER = 1 << 16
"""Rows checked for legality at a time: their columns stay in the cache, and what is illegal never fills the memory."""
BETWEEN_LOOKS = 1 << 20
"""Rows built between two looks at the time, half a second of them."""
BOUNDED_TOGETHER = 1 << 18
"""Rows of a part whose bounds are wanted alone: with them it takes some 100 MB."""
COPIES_OF_ROWS = 4.0
"""Memory that a search of rows takes, in sizes of their columns: bounds and what is left of them take as much again,
and as much is spare before the limit when it is looked at (2.7 measured for 10.7 million rows, NumPy 2.3, 2026-11)."""
LEAST_ROWS_BYTES = 8e6
"""Bytes of columns that any search may have: without rows there is no answer."""


def most_offload(space: Space) -> str:
    """What a space keeps away from the devices, as `PlanRow.offload` says it; of several what frees the most."""
    tokens = ["" if value == "none" else str(value) for value in space.pinned("offload") or ("none",)]
    return max(tokens, key=lambda token: (len(token.partition("-")[0]), "nvme" not in token))


def build_grid(model: ModelSpec, workload: Workload, devices: int, space: Space, ways: Ints | None = None) -> Grid:
    """All legal rows on exactly so many devices.

    Args:
        model: sets which degrees are legal.
        workload: sets batch and sequence.
        devices: tp x cp x pp x dp of every row.
        space: pinned axes.
        ways: the ways to reach experts on other ranks; those of the space if not given.

    Returns:
        The rows; none if no degrees are legal. Where the limits of the question leave no room or time for all, those of
        the least context degrees, and `stopped` says which limit.
    """
    most_bytes = max(LEAST_ROWS_BYTES, left_bytes() / COPIES_OF_ROWS)
    legal, looked_at = _Legal(model, workload, space), 0
    for number, mesh in _meshes_by_context(model, workload, devices, space, ways, legal):
        if legal.bytes > most_bytes:
            legal.stopped = MEMORY_LIMIT
        elif legal.rows - looked_at >= BETWEEN_LOOKS:
            legal.stopped, looked_at = spent(), legal.rows
        if legal.stopped:
            break
        legal.add(number, mesh)
    return legal.grid()


def grid_parts(
    model: ModelSpec, workload: Workload, devices: int, space: Space, ways: Ints | None = None
) -> Iterator[Grid]:
    """The rows of `build_grid` part after part, each of so few that its bounds need little memory.

    Args:
        model: sets which degrees are legal.
        workload: sets batch and sequence.
        devices: tp x cp x pp x dp of every row.
        space: pinned axes.
        ways: the ways to reach experts on other ranks; those of the space if not given.
    """
    legal = _Legal(model, workload, space)
    yield from legal.in_parts(_meshes_by_context(model, workload, devices, space, ways, legal))


def of_any_count(
    model: ModelSpec, workload: Workload, most: int, space: Space, ways: Ints | None = None
) -> Iterator[Grid]:
    """Rows of one stage and one micro-batch: for each row of any number of devices one with its tp, cp, ep, etp and
    mbs, as more data ranks divide experts no worse.

    Args:
        model: sets which degrees are legal.
        workload: sets batch and sequence.
        most: devices of a tensor and context group.
        space: pinned axes; those of pp and dp are not looked at.
        ways: the ways to reach experts on other ranks; those of the space if not given.
    """
    legal = _Legal(model, workload, space)
    yield from legal.in_parts((0, mesh) for mesh in _meshes_of_any_count(model, workload, most, space, ways, legal))


def _meshes_of_any_count(
    model: ModelSpec, workload: Workload, most: int, space: Space, ways: Ints | None, legal: _Legal
) -> Iterator[_Mesh]:
    """Every mesh of at most so many tensor and context ranks whose data ranks have one micro-batch."""
    experts, ways = _expert_degrees(model, space), ways_of(space, workload.expert_load) if ways is None else ways
    degrees = np.arange(1, most + 1)
    for tp in _pinned(space, "tp", degrees[_alone_legal(legal.rules, degrees)].tolist()):
        for cp in _pinned(space, "cp", [cp for cp in divisors(workload.seq_len) if tp * cp <= most]):
            levels = context_levels(cp, space)
            for dp in divisors(workload.global_batch):
                mesh = _mesh((tp, cp, 1, dp), legal.overlaps, levels, experts, workload, space, ways)
                yield replace(mesh, batches=mesh.batches[mesh.batches == mesh.local_batch])


def _meshes_by_context(
    model: ModelSpec, workload: Workload, devices: int, space: Space, ways: Ints | None, legal: _Legal
) -> Iterator[tuple[int, _Mesh]]:
    """Every mesh whose rows may be legal with its number, in pieces, those of the least context degrees first."""
    # A search of another strategy is one of plans that have tensor groups.
    tps = [tp for tp in divisors(devices) if alone_legal(legal.rules, tp=tp) and (legal.tensor == "1d" or tp > 1)]
    experts = _expert_degrees(model, space)
    ways = ways_of(space, workload.expert_load) if ways is None else ways
    for number, mesh in sorted(enumerate(_meshes(_pinned(space, "tp", tps), model, workload, devices, space)), key=_cp):
        levels = context_levels(mesh[1], space)
        for piece in _mesh(mesh, legal.overlaps, levels, experts, workload, space, ways).pieces():
            yield number, piece


def _cp(numbered: tuple[int, tuple[int, int, int, int]]) -> int:
    return numbered[1][1]


def _meshes(
    tps: list[int], model: ModelSpec, workload: Workload, devices: int, space: Space
) -> Iterator[tuple[int, int, int, int]]:
    """Every (tp, cp, pp, dp) that uses all devices and divides sequences and batch."""
    fewest_workers = 2 if only_in_pipelines(space) else 1
    for tp in tps:
        for cp in _pinned(space, "cp", divisors(devices // tp)):
            if devices % (tp * cp) or workload.seq_len % cp:
                continue
            for pp in _pinned(space, "pp", divisors(devices // (tp * cp))):
                dp, rest = divmod(devices, tp * cp * pp)
                if rest or pp < fewest_workers or pp > model.most_stages or workload.global_batch % dp:
                    continue
                if _allowed(space, "dp", dp):
                    yield tp, cp, pp, dp


class _Legal:
    """Collects the legal rows of meshes, checked many meshes at a time, in parts that stay in the cache."""

    def __init__(self, model: ModelSpec, workload: Workload, space: Space) -> None:
        self.tensor = str((space.pinned("tensor") or ("1d",))[0])
        self.rules: tuple[DegreeRule, ...] = model_rules(model, workload.seq_len, self.tensor)
        self.offload = most_offload(space)
        overlaps = tensor_overlaps(space, self.tensor, experts=model.is_moe)
        self.overlaps = tuple(map(OVERLAPS.index, overlaps))
        self.waiting: list[tuple[int, _Mesh]] = []
        self.most_waiting = 0
        """Rows of the meshes that wait, if all were legal."""
        self.found: list[tuple[int, dict[str, np.ndarray]]] = []
        self.bytes = 0
        """Bytes of the columns of legal rows so far."""
        self.rows = 0
        """Legal rows so far."""
        self.stopped = ""
        """The limit for which no more rows are added."""

    def add(self, number: int, mesh: _Mesh) -> None:
        """Add the rows of a mesh, which go behind those of meshes with a lower number."""
        self.waiting.append((number, mesh))
        self.most_waiting += mesh.most_rows
        if self.most_waiting >= CHECKED_TOGETHER:
            self._check()

    def in_parts(self, meshes: Iterable[tuple[int, _Mesh]]) -> Iterator[Grid]:
        """Add these meshes; the legal rows part after part, each of so few that its bounds need little memory."""
        taken = 0
        for mesh in meshes:
            self.add(*mesh)
            if self.rows - taken >= BOUNDED_TOGETHER:
                taken = self.rows
                yield self.taken()
        if (last := self.grid()).rows:
            yield last

    def grid(self) -> Grid:
        """The legal ones of all rows added, in the order of their meshes."""
        if self.waiting:
            self._check()
        return self.taken()

    def taken(self) -> Grid:
        """Rows that are checked and not taken yet, in the order of their meshes."""
        empty = dict.fromkeys(COLUMNS, np.zeros(0, dtype=np.int64))
        pieces = [piece for _, piece in sorted(self.found, key=lambda found: found[0])]
        self.found = []
        pieces = pieces or [empty | {"context": np.zeros((0, len(CONTEXTS)), dtype=np.int64)}]
        # Column by column the parts give their memory back to the whole.
        columns = {name: np.concatenate([piece.pop(name) for piece in pieces]) for name in COLUMNS}
        return Grid(**columns, tensor=self.tensor, offload=self.offload, stopped=self.stopped)

    def _check(self) -> None:
        meshes = [mesh for _, mesh in self.waiting]
        degrees = _degrees(meshes)
        legal = np.ones(len(degrees["tp"]), dtype=bool)
        for rule in self.rules:
            legal &= rule.holds(degrees)
        end = 0
        for number, mesh in self.waiting:
            start, end = end, end + mesh.size
            if (own := legal[start:end]).any():
                rows = mesh.rows(own)
                self.bytes += sum(column.nbytes for column in rows.values())
                self.rows += len(rows["tp"])
                self.found.append((number, rows))
        self.waiting, self.most_waiting = [], 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    """The axes of the rows of one (tp, cp, pp, dp): context levels x micro-batches x overlaps x folds x ways."""

    tp: int
    pp: int
    dp: int
    levels: Int[np.ndarray, "levels kinds"]
    batches: Int[np.ndarray, "batches"]
    local_batch: int
    overlaps: Int[np.ndarray, "overlaps"]
    ep: Folds
    etp: Folds
    ways: Int[np.ndarray, "ways"]

    @property
    def size(self) -> int:
        """Rows whose degrees differ: no rule looks at overlaps or ways."""
        return len(self.levels) * len(self.batches) * len(self.ep)

    @property
    def most_rows(self) -> int:
        """Rows of the grid, if all were legal."""
        return self.size * len(self.overlaps) * max(len(self.ways), 1)

    def pieces(self) -> Iterator[_Mesh]:
        """The mesh in parts small enough to be checked together, in the order of its rows."""
        if self.most_rows <= CHECKED_TOGETHER:
            yield self
            return
        of_batch = self.most_rows // len(self.levels) // len(self.batches)
        together = max(1, CHECKED_TOGETHER // of_batch)
        for levels in np.split(self.levels, len(self.levels)):
            for start in range(0, len(self.batches), together):
                yield replace(self, levels=levels, batches=self.batches[start : start + together])

    def rows(self, legal: Bool[np.ndarray, "degrees"]) -> dict[str, Ints]:
        """The columns of a grid: legal degrees with every overlap and way."""
        # Experts on one rank are reached in one way; plain exchanges stand for it.
        spread = self.ep > 1
        several = np.where(spread, len(self.ways), min(len(self.ways), 1))
        fold = np.repeat(np.arange(len(self.ep)), several)
        ways = [self.ways if away else self.ways[:1] * 0 for away in spread.tolist()]
        way = np.concatenate(ways) if ways else self.ways[:0]
        of_degrees = legal.reshape(len(self.levels), len(self.batches), 1, len(self.ep))[..., fold]
        shape = len(self.levels), len(self.batches), len(self.overlaps), len(fold)
        if (halved := self.overlaps == HALVES).any():
            # Halves are of whole sequences.
            of_degrees = of_degrees & (~halved | (self.batches % 2 == 0)[:, None])[..., None]
        level, batch, overlap, place = np.nonzero(np.broadcast_to(of_degrees, shape))
        mbs, fold = self.batches[batch], fold[place]
        return {
            "tp": np.full(len(level), self.tp, dtype=np.int64),
            "overlap": self.overlaps.astype(NARROW["overlap"])[overlap],
            "context": self.levels.astype(NARROW["context"])[level],
            "ep": self.ep[fold],
            "etp": self.etp[fold],
            "pp": np.full(len(level), self.pp, dtype=np.int64),
            "dp": np.full(len(level), self.dp, dtype=np.int64),
            "mbs": mbs,
            "m": self.local_batch // mbs,
            "way": way.astype(NARROW["way"])[place],
        }


def _degrees(meshes: Sequence[_Mesh]) -> dict[str, Ints]:
    """The columns that legality rules read, of meshes one after the other; one chunk per worker, which every pipeline
    may have."""
    sizes = [mesh.size for mesh in meshes]
    same = np.ones(sum(sizes), dtype=np.int64)

    def of_levels(ranks: Callable[[Int[np.ndarray, "levels kinds"]], Ints]) -> Ints:
        return np.concatenate([ranks(mesh.levels).repeat(len(mesh.batches) * len(mesh.ep)) for mesh in meshes])

    def of_folds(folds: Callable[[_Mesh], Folds]) -> Ints:
        return np.concatenate([_tiled(folds(mesh), len(mesh.levels) * len(mesh.batches)) for mesh in meshes])

    batches = [_tiled(mesh.batches.repeat(len(mesh.ep)), len(mesh.levels)) for mesh in meshes]
    return {
        "tp": np.repeat([mesh.tp for mesh in meshes], sizes),
        "sp": same,
        "cp": of_levels(ranks_of),
        "cp_heads": of_levels(head_ranks),
        "cp_halves": of_levels(half_ranks),
        "pp": np.repeat([mesh.pp for mesh in meshes], sizes),
        "vpp": same,
        "ep": of_folds(lambda mesh: mesh.ep),
        "etp": of_folds(lambda mesh: mesh.etp),
        "dp": np.repeat([mesh.dp for mesh in meshes], sizes),
        "mbs": np.concatenate(batches),
    }


def _tiled(values: Int[np.ndarray, "values"], times: int) -> Int[np.ndarray, "rows"]:
    """`np.tile`, which takes several times as long for few values."""
    return values[None].repeat(times, axis=0).reshape(-1)


def _pinned(space: Space, axis: str, values: list[int]) -> list[int]:
    pinned = space.pinned(axis)
    return values if pinned is None else [value for value in values if value in pinned]


def _allowed(space: Space, axis: str, value: object) -> bool:
    pinned = space.pinned(axis)
    return pinned is None or value in pinned


def alone_legal(rules: tuple[DegreeRule, ...], *, tp: int) -> bool:
    """Whether a tensor degree can be legal with everything else at 1, and a micro-batch that it divides."""
    return bool(_alone_legal(rules, np.array([tp]))[0])


def _alone_legal(rules: tuple[DegreeRule, ...], tp: Ints) -> Bool[np.ndarray, "degrees"]:
    degrees = dict.fromkeys(("sp", "cp", "cp_heads", "cp_halves", "pp", "vpp", "ep", "etp", "dp"), np.ones_like(tp))
    return np.logical_and.reduce([rule.holds(degrees | {"tp": tp, "mbs": tp}) for rule in rules])


def context_levels(cp: int, space: Space, *, hierarchical: bool = True) -> list[tuple[int, ...]]:
    """Degrees by kind of `CONTEXTS` for every value of the axis cp_kind of a context degree, two levels if wanted."""
    if cp == 1:
        return [] if only_in_groups(space, "cp") else [(1,) * len(CONTEXTS)]
    found, pinned = [], space.pinned("cp_kind") is not None
    for kind in AXES["cp_kind"].values():
        if kind == AXES["cp_kind"].neutral:
            continue
        inner, _, outer = kind.partition("+")
        if not (_allowed(space, "cp_kind", kind) if pinned else CONTEXTS[inner].searched):
            continue
        if outer and not hierarchical:
            continue
        for degree in divisors(cp)[1:-1] if outer else [cp]:
            levels = {inner: degree, outer: cp // degree}
            found.append(tuple(levels.get(name, 1) for name in CONTEXTS))
    return found


def _expert_degrees(model: ModelSpec, space: Space) -> tuple[Folds, Folds]:
    """Pairs (ep, etp) that divide experts and expert widths of every layer kind."""
    moes = [layer.mlp for layer in model.kinds() if layer.mlp.routed_experts]
    if not moes:
        return np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    eps = [ep for ep in divisors(moes[0].routed_experts) if all(moe.routed_experts % ep == 0 for moe in moes)]
    etps = [etp for etp in divisors(moes[0].expert_width) if all(moe.expert_width % etp == 0 for moe in moes)]
    if only_in_groups(space, "ep"):
        eps = [ep for ep in eps if ep > 1]
    ep, etp = np.meshgrid(_pinned(space, "ep", eps), _pinned(space, "etp", etps), indexing="ij")
    return ep.ravel().astype(np.int64), etp.ravel().astype(np.int64)


def _mesh(
    mesh: tuple[int, int, int, int],
    overlaps: tuple[int, ...],
    levels: list[tuple[int, ...]],
    experts: tuple[Folds, Folds],
    workload: Workload,
    space: Space,
    ways: Ints,
) -> _Mesh:
    """All rows of one (tp, cp, pp, dp)."""
    tp, cp, pp, dp = mesh
    local_batch = workload.global_batch // dp
    if tp == 1:
        overlaps = (BULK,) if _allowed(space, "tp_overlap", OVERLAPS[BULK]) else ()
    fold = tp * cp * dp % (experts[0] * experts[1]) == 0
    return _Mesh(
        tp=tp,
        pp=pp,
        dp=dp,
        levels=np.array(levels, dtype=np.int64).reshape(-1, len(CONTEXTS)),
        batches=np.array(_pinned(space, "mbs", divisors(local_batch)), dtype=np.int64),
        local_batch=local_batch,
        overlaps=np.array(overlaps, dtype=np.int64),
        ep=experts[0][fold],
        etp=experts[1][fold],
        ways=ways,
    )
