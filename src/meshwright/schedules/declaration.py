"""What a pipeline schedule declares: name, source, properties, settings, and which sizes it allows."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

from meshwright.errors import Problem
from meshwright.schedules.parameters import ScheduleParameter, parameters_of, token_of
from meshwright.schedules.table import Kind

MOST_CHUNKS = 64
"""Chunks per worker up to which the fewest legal number is looked for."""

CHUNKS_WHY = {1: "gives every worker one chunk", 2: "places two chunks per worker in a V, one down and one back"}
"""Why a schedule allows one number of chunks only."""


class SharedKeys(NamedTuple):
    """What the fullest worker sends for a slice of a sequence, so that all do as much attention; a mean over slices."""

    queries: float
    """Times its queries, one for each worker that helps it."""
    keys: float
    """Slices of keys and values."""


@dataclass(frozen=True, kw_only=True)
class Declaration(ABC):
    """A schedule's name, source and properties, its settings, and what it allows."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    title: ClassVar[str]
    source: ClassVar[str]
    """Paper, page or repository the order comes from."""
    exact_semantics: ClassVar[bool] = True
    """Whether one step computes exactly the gradient of its global batch with one version of the weights."""
    kinds: ClassVar[frozenset[Kind]] = frozenset({Kind.F, Kind.B})
    """Kinds of tasks that its tables may hold."""
    flushes: ClassVar[bool] = True
    """Whether a step drains the pipeline; without a flush, steps follow each other and share fill and drain."""
    updates_each: ClassVar[bool] = False
    """Whether the weights are updated behind every micro-batch instead of once per step."""
    averages: ClassVar[bool] = False
    """Whether replicas of the model are trained apart and pulled together behind each step."""
    pairs_passes: ClassVar[bool] = False
    """Whether forwards run together with backwards of other micro-batches, so that each hides what the other sends."""
    shadows: ClassVar[bool] = False
    """Whether each worker holds the next one's stage too and runs its forward as task X."""
    weight_passes: ClassVar[int] = 0
    """Times that a step reads or writes all weights of a worker besides running and updating them."""
    pages: ClassVar[bool] = False
    """Whether stages wait in the host's memory, where they are updated, and take turns on the device."""
    searched_by_default: ClassVar[bool] = False
    """Whether a search tries it unless schedules are named: exact, and in every framework with pipelines."""
    steady_alive: ClassVar[bool] = False
    """Whether a longer step is known to keep no more activations alive."""
    only_chunks: ClassVar[int] = 0
    """The only number of chunks per worker that it allows; 0 for any."""
    repeats: ClassVar[bool] = False
    """Whether in the steady state each micro-batch repeats the one before."""
    unequal: ClassVar[Literal["", "alternating", "passes"]] = ""
    """What is known of unequal micro-batches: workers that alternate directions wait for the longest of those at work,
    and of two passes for the longest of all. Empty: simulations tell."""
    ramps: ClassVar[int] = 1
    """Times p micro-batches that fill and drain the pipeline between them, at most."""
    orders_tried: ClassVar[int] = 1
    """Orders that are made for one table, of which the fastest is kept."""
    weight_copies: ClassVar[int] = 1
    """Copies (or versions) of the weights that a worker holds, at most."""
    traffic: ClassVar[str] = ""
    """What it sends besides one activation and one gradient per micro-batch across each boundary of its chain."""
    not_run: ClassVar[str] = ""
    """What is priced of it and left out where this package trains with it, and why; empty if nothing is."""

    @property
    def not_searched(self) -> str:
        """Why searches do not try it; empty if they do."""
        return ""

    @classmethod
    def parameters(cls) -> tuple[ScheduleParameter, ...]:
        """The settings that it declares; plan names, search and command line take them."""
        return parameters_of(cls)

    @property
    def token(self) -> str:
        """One-line name: `hanayo`, or `hanayo-waves2` with a setting that is not the default."""
        return token_of(self)

    def problems(self, p: int, m: int, v: int = 1) -> tuple[Problem, ...]:
        """What forbids p workers, m micro-batches and v chunks per worker, with the nearest legal values."""
        return _problems_of(self, p, m, v)

    def _found(self, p: int, m: int, v: int) -> tuple[Problem, ...]:
        """`problems`, looked for anew."""
        counts = (("p", p, "workers"), ("m", m, "micro-batches"), ("v", v, "chunks per worker"))
        found = [
            Problem(
                what=f"{self.name}: {field} = {n}", why=f"{noun} count from 1", fix=f"{field} = 1 or more", field=field
            )
            for field, n, noun in counts
            if n < 1
        ]
        found += self.contradictions()
        declared = (one.problem(self.name, getattr(self, one.name)) for one in self.parameters())
        found += [problem for problem in declared if problem is not None]
        if found:
            return (*found, *(self._value_problems(p) if p > 0 else ()))
        only = self.only_chunks
        if only and v != only:
            what = f"{self.name}: v = {v} chunks per worker"
            # Interleaving is no substitute for two directions, replicas or stale weights.
            fix = f"v = {only}" + (", or schedule interleaved" if only == self.weight_copies == 1 else "")
            found.append(Problem(what=what, why=f"{self.name} {CHUNKS_WHY[only]}", fix=fix, field="v"))
        return (*found, *self._value_problems(p), *self._problems(p, m, v))

    def shared_keys(self, p: int) -> SharedKeys | None:
        """What workers send each other of attention; None where each does its own.

        Args:
            p: workers.
        """
        return None

    def contradictions(self) -> list[Problem]:
        """Settings that do not go together, whatever the size."""
        return []

    def _value_problems(self, p: int) -> list[Problem]:
        """What is wrong with fields that are no settings, such as times given for each of p workers."""
        return []

    def fewest_chunks(self, p: int, m: int) -> int:
        """Fewest chunks per worker that it allows; 1 if it refuses p and m whatever the chunks.

        Args:
            p: workers.
            m: micro-batches per step.
        """
        wrong = (any(problem.field == "v" for problem in self.problems(p, m, v)) for v in range(1, MOST_CHUNKS + 1))
        return next((v for v, is_wrong in enumerate(wrong, 1) if not is_wrong), 1)

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        """The schedule's own constraints besides `only_chunks` and the ranges of its settings, for positive p, m, v."""
        return []


@lru_cache(maxsize=4096)
def _problems_of(declared: Declaration, p: int, m: int, v: int) -> tuple[Problem, ...]:
    """Kept, as whoever asks for bounds, orders or activations of a size asks for its problems first."""
    return declared._found(p, m, v)
