"""The compiler's intra-operator pass behind the seam: shardings of every operator of a layer, on logical meshes.

A slice is written in plain JAX, traced from shapes alone and read as the compiler reads any step: an embedding, equal
layers, a head. For every logical mesh of the devices, price of memory and choice of recomputation the best sharding of
each part is solved exactly, with the stream between layers sharded the same before and after each of them. What the
solution does to the stream and to the weights is read off as degrees:

    an axis that splits samples                  data parallel; ZeRO-3 where it splits the weights too
    an axis that splits the weights              tensor parallel; with sequence parallelism where it splits tokens
    an axis that splits tokens and no weights    context parallel

Solutions that are none of these are left out. Seconds and bytes are those of the compiler's own cost model, which
counts everything the traced program keeps, scores of the attention included.

Source: Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning", OSDI 2022,
section 4; `meshwright.compiler.sharding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.sharding.graph import DecisionGraph
from meshwright.compiler.sharding.problem import ChoiceProblem
from meshwright.compiler.sharding.solve import best_for_each, reduced, undominated_choices
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.search import Layers
from meshwright.compiler.stages.tables import PRICES, LayerProblem, Terms
from meshwright.compiler.tracing.trace import LossReader
from meshwright.errors import Problem, UnsupportedError
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import Island
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.training import Adam, train_step

TRACED = 4
"""Layers of the model that is traced: enough for a period to be seen, and equal layers cost the same anywhere."""
FORMATS = {"bf16": "bfloat16", "fp16": "float16", "fp32": None}
"""Compute formats, as JAX calls them."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TracedLayers:
    """The parts of a model of equal layers, on one micro-batch."""

    embedding: CutStage
    layer: CutStage
    head: CutStage
    parameter_copies: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """What one part takes on one of its devices, as the compiler prices it."""

    forward_s: float
    backward_s: float
    sync_s: float
    """Seconds of the gradient reduction, once a step."""
    state_bytes: float
    kept_bytes: float
    transient_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshPlan:
    """One way to shard a layer and what stands around it."""

    strategy: LayerStrategy
    layer: PartCost
    embedding: PartCost
    head: PartCost


@dataclass(slots=True, kw_only=True)
class IntraOperator:
    """The intra-operator pass as a parallelizer of equal devices."""

    name: str = "compiler"
    _known: dict[object, list[MeshPlan]] = field(default_factory=dict)

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """Solutions on every logical mesh of the devices; arguments as `Parallelizer.plan`.

        Raises:
            UnsupportedError: several kinds of layer, experts, or layers that cannot be written in plain JAX here.
        """
        _check(part, workload)
        (kind, layers), group = part.layers[0], island.group
        key = (
            part.model,
            kind,
            group.device,
            group.devices_per_node,
            group.domains,
            island.devices,
            workload,
            micro_batch,
        )
        if key not in self._known:
            self._known[key] = list(_mesh_plans(part.model, kind, island, workload, micro_batch))
        return [_partial(found, part, layers, island, micro_batch) for found in self._known[key]]


def _check(part: ModelSlice, workload: Workload) -> None:
    problems = []
    if len(part.layers) != 1 or not isinstance(part.layers[0][0].mlp, DenseMlp):
        problems.append(
            Problem(what="the compiler does not know this slice", why="it plans equal dense layers", field="layers")
        )
    if workload.precision.compute not in FORMATS:
        problems.append(
            Problem(
                what=f"the compiler does not trace {workload.precision.compute}",
                why=f"products are in {', '.join(FORMATS)}",
                field="dtype",
            )
        )
    if problems:
        raise UnsupportedError(problems, code="MW406")


@lru_cache(maxsize=64)
def traced_slice(model: ModelSpec, kind: LayerSpec, seq_len: int, compute: str, samples: int) -> TracedLayers:
    """A small model of one kind of layer, read from shapes: no weight is made.

    Args:
        model: the model whose embedding, head and widths it has.
        kind: the kind of its layers.
        seq_len: tokens of a sample.
        compute: format of products.
        samples: the number of samples of the micro-batch.

    Raises:
        UnsupportedError: the layers cannot be written in plain JAX here, with every reason.
    """
    spec = replace(model, runs=(LayerRun(layers=(kind,), repeats=TRACED),), mtp_layers=0)
    decoder, optimizer = Decoder(spec=spec, seq_len=seq_len, compute=FORMATS[compute]), Adam()
    weights = jax.eval_shape(decoder.init, jax.eval_shape(lambda: jax.random.key(0)))
    state = {
        "weights": weights,
        "moments": jax.eval_shape(optimizer.init, weights),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    batch = {
        "tokens": jax.ShapeDtypeStruct((samples, seq_len + 1), jnp.int32),
        "sample": jax.ShapeDtypeStruct((samples,), jnp.int32),
    }
    reader = LossReader(train_step(decoder, optimizer), (state, batch))
    layers = Layers.of(*reader.read(1))
    inner = [number for number in range(1, len(layers.parts) - 1) if layers.contents[number] == layers.contents[2]]
    if len(layers.parts) != TRACED + 2 or len(inner) != TRACED:
        what = f"the layers of {model.name} cannot be told apart in its program"
        raise UnsupportedError(what=what, why=f"{len(layers.parts)} parts were found", field="model", code="MW406")
    return TracedLayers(
        embedding=layers.parts[0],
        layer=layers.parts[2],
        head=layers.parts[-1],
        parameter_copies=reader.parameter_copies,
    )


def _mesh_plans(
    model: ModelSpec, kind: LayerSpec, island: Island, workload: Workload, samples: int
) -> Iterator[MeshPlan]:
    """The best sharding for each logical mesh, sharding the stream may have, price of memory and recomputation."""
    parts = traced_slice(model, kind, workload.seq_len, workload.precision.compute, samples)
    hosts = Hosts.of(island.group, workload)
    micro_batches = max(1, workload.global_batch // samples)
    seen: set[tuple[LayerStrategy, float]] = set()
    for view in hosts.views(island.devices):
        mesh = hosts.mesh(view)
        solvers = [
            _Solver.of(stage, mesh, parts.parameter_copies, micro_batches)
            for stage in (parts.embedding, parts.layer, parts.head)
        ]
        for recompute in (False, True):
            for price in PRICES if island.devices > 1 else PRICES[:1]:
                embedding, layer, head = (solver.solved(price, recompute) for solver in solvers)
                for way in range(len(layer.objective_s)):
                    row = solvers[1].row(layer.choice(way, way), view, samples, recompute)
                    cost = layer.cost(way, way)
                    if row is None or (row.strategy(), cost.forward_s + cost.backward_s) in seen:
                        continue
                    seen.add((row.strategy(), cost.forward_s + cost.backward_s))
                    yield MeshPlan(
                        strategy=row.strategy(),
                        layer=cost,
                        embedding=embedding.cost(0, way),
                        head=head.cost(way, 0),
                    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Solver:
    """One part on one logical mesh."""

    problem: LayerProblem
    free: DecisionGraph
    """The same decisions where gradients need not be reduced."""
    micro_batches: int

    @classmethod
    def of(cls, stage: CutStage, mesh: Any, parameter_copies: float, micro_batches: int) -> _Solver:
        once, never = (
            LayerProblem.of(stage, mesh, Terms(parameter_copies=parameter_copies, syncs=syncs))
            for syncs in (1.0 / micro_batches, 0.0)
        )
        return cls(problem=once, free=never.graph, micro_batches=micro_batches)

    def solved(self, price: float, recompute: bool) -> _Solved:
        """The best choice for each placement of what the part is handed and passes on."""
        problem = self.problem.graph.problem(recompute=recompute)
        borders = [*self.problem.handed_in, *self.problem.handed_on]
        scale = 0.0
        if price:
            free = self.solved(0.0, recompute)
            least = np.unravel_index(int(np.argmin(free.objective_s)), free.objective_s.shape)
            picked = free.choice(int(least[0]), int(least[1]))
            scale = price * problem.value(picked) / max(problem.memory_of(picked), 1.0)
        priced = ChoiceProblem(
            costs=tuple(cost + scale * memory for cost, memory in zip(problem.costs, problem.memory, strict=True)),
            memory=problem.memory,
            edges=problem.edges,
        )
        left = undominated_choices(priced, whole=borders)
        found = best_for_each(reduced(priced, left), borders)
        nodes = self.problem.graph.nodes
        shape = tuple(
            int(np.prod([len(nodes[node].placements) for node in side], dtype=int))
            for side in (self.problem.handed_in, self.problem.handed_on)
        )
        full = tuple(len(nodes[node].placements) for node in borders)
        chosen = [np.broadcast_to(own[pick], full).reshape(shape) for own, pick in zip(left, found, strict=True)]
        objective = sum((cost[own] for cost, own in zip(priced.costs, chosen, strict=True)), np.zeros(shape))
        objective = sum((table[chosen[u], chosen[v]] for (u, v), table in priced.edges.items()), objective)
        return _Solved(solver=self, recompute=recompute, chosen=chosen, objective_s=objective)

    def row(self, choice: Sequence[int], view: Sequence[int], samples: int, recompute: bool) -> PlanRow | None:
        """The choice as degrees; None where it is none of those that plans have."""
        graph = self.problem.graph
        stream = graph.nodes[self.problem.handed_in[0]].placements[choice[self.problem.handed_in[0]]].tolist()
        split = self._weights_split(choice)
        degrees = {"dp": 1, "tp": 1, "cp": 1}
        sequence, sharded = set[bool](), False
        for axis, size in enumerate(view):
            if stream[axis] == 0:
                degrees["dp"] *= size
                sharded |= bool(split[axis])
            elif split[axis] and stream[axis] != 2:
                degrees["tp"] *= size
                sequence.add(stream[axis] == 1)
            elif stream[axis] == 1 and not split[axis]:
                degrees["cp"] *= size
            else:
                return None
        if len(sequence) > 1 or samples % degrees["dp"]:
            return None
        shared = degrees["dp"] * degrees["cp"] > 1
        return PlanRow(
            tp=degrees["tp"],
            sp=next(iter(sequence), True),
            cp=(("ag", degrees["cp"]),) if degrees["cp"] > 1 else (),
            dp=degrees["dp"],
            sharding="z3" if sharded else "z1" if shared else "z0",
            mbs=samples // degrees["dp"],
            gbs=samples,
            recompute="full" if recompute else "none",
        )

    def _weights_split(self, choice: Sequence[int]) -> list[bool]:
        """Whether each axis splits most bytes of the weights."""
        graph = self.problem.graph
        held = [(value.node, value.size_bytes) for value in graph.values.values() if value and value.parameter]
        sizes = dict(held)
        placed = np.array([graph.nodes[node].placements[choice[node]] >= 0 for node in sizes])
        shares: Float[np.ndarray, " axes"] = np.array(list(sizes.values()), dtype=float) @ placed
        return (2.0 * shares > sum(sizes.values())).tolist()


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Solved:
    """A part solved for one price of memory."""

    solver: _Solver
    recompute: bool
    chosen: list[Int[np.ndarray, "handed_in handed_on"]]
    """Choice of each node."""
    objective_s: Float[np.ndarray, "handed_in handed_on"]

    def choice(self, handed_in: int, handed_on: int) -> list[int]:
        """Choice of every node for the placements of the borders."""
        return [int(own[handed_in, handed_on]) for own in self.chosen]

    def cost(self, handed_in: int, handed_on: int) -> PartCost:
        """What the choice takes, what happens once a step apart."""
        picked, solver = self.choice(handed_in, handed_on), self.solver
        graph = solver.problem.graph
        total_s = solver.free.problem(recompute=self.recompute).value(picked)
        sync_s = graph.problem(recompute=self.recompute).value(picked) - total_s
        nodes = list(zip(graph.nodes, picked, strict=True))
        forward_s = sum(float(node.forward_s[one]) for node, one in nodes)
        forward_s += sum(float(table[picked[u], picked[v]]) for (u, v), table in graph.forward_edges.items())
        state = sum(float(node.state_bytes[one]) for node, one in nodes)
        each = [float(node.memory_bytes[one] - node.state_bytes[one]) for node, one in nodes]
        handed = sum(size for size, is_input in zip(each, solver.problem.inputs.tolist(), strict=True) if is_input)
        return PartCost(
            forward_s=forward_s,
            backward_s=total_s - forward_s,
            sync_s=max(0.0, sync_s * solver.micro_batches),
            state_bytes=state,
            kept_bytes=handed if self.recompute else sum(each),
            transient_bytes=sum(each) - handed if self.recompute else 0.0,
        )


def _partial(found: MeshPlan, part: ModelSlice, layers: int, island: Island, micro_batch: int) -> PartialPlan:
    """The plan of so many layers one behind the other, and what stands at their ends."""
    counted = [(found.layer, float(layers))]
    counted += [(found.embedding, 1.0)] * part.embedding + [(found.head, 1.0)] * part.head
    return PartialPlan(
        devices=island.devices,
        micro_batch=micro_batch,
        forward_s=sum(count * cost.forward_s for cost, count in counted),
        backward_s=sum(count * cost.backward_s for cost, count in counted),
        sync_s=sum(count * cost.sync_s for cost, count in counted),
        state_bytes=sum(count * cost.state_bytes for cost, count in counted)
        + max(cost.transient_bytes for cost, _ in counted),
        activation_bytes=sum(count * cost.kept_bytes for cost, count in counted),
        strategies=(found.strategy,),
        runs=(StrategyRun(layers=layers, strategy=0),),
    )
