"""Weights that travel round the ranks while each runs its own micro-batches, a group of layers a turn (WeiPipe).

Rank r is r turns behind rank 0: in turn t it runs the forward of group (t - r) mod P on one micro-batch and the
backward of group (r - t - 1) mod P on the one before, and passes both groups of weights, and the gradients that have
gathered so far, to rank r + 1. Every rank keeps and updates one group. Embedding and head are kept in equal parts and
gathered once a step, as every group of layers has the same shape.

Source: Lin et al., "WeiPipe: Weight Pipeline Parallelism for Communication-Effective Long-Context Large Model
Training", PPoPP 2025 (WeiPipe-Interleave).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.errors import Problem
from meshwright.runtime.rank_steps.passing_steps import PassingStep
from meshwright.runtime.rank_steps.rank_steps import INNER, ROUNDED_AS_WRITTEN, State
from meshwright.runtime.rank_steps.shard_steps import ShardedStep, shaped
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.parts import cast, sample_keys

SLOTS = 2
"""Micro-batches of a rank whose inputs of groups are kept: the one in the forward and the one in the backward."""


class Hops(NamedTuple):
    """Groups of layers that each rank sends in a step."""

    weights: int
    gradients: int


def hops(ranks: int, micro_batches: int) -> Hops:
    """What a step of P ranks with m micro-batches each sends: a group of each kind behind every turn of its pass.

    Forwards take the first (m + 1) P - 1 turns, backwards the last as many. The backward's groups start from other
    ranks than the forward's, and gradients end on other ranks than those that keep them: one group more of each.

    Args:
        ranks: P.
        micro_batches: m.
    """
    taken = (micro_batches + 1) * ranks - 1
    return Hops(weights=2 * taken + 1, gradients=taken + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStep(ShardedStep):
    """One optimizer step of a rank of the ring."""

    @property
    def decoder(self) -> Decoder:
        """The model; others are refused before."""
        assert isinstance(self.model, Decoder)
        return self.model

    @property
    def ranks(self) -> int:
        """P."""
        return self.data.shard

    @property
    def each(self) -> int:
        """Layers of a group."""
        return self.decoder.num_layers // self.ranks

    def initial(self, weights: Any) -> State:
        """Groups of layers by the rank that keeps them, and parts of the ends, an axis for ranks in front.

        Args:
            weights: the weights of the model.
        """
        held = self.held(weights)
        return {"weights": held, "moments": self.optimizer.init(held), "step": jnp.zeros((), jnp.int32)}

    def held(self, weights: Any) -> Any:
        """Weights, or gradients, as ranks keep them.

        Args:
            weights: the weights of the model.
        """
        home = np.array([self._home(rank) for rank in range(self.ranks)])
        stacked = jax.tree.map(lambda *own: jnp.stack(own), *weights["layers"])
        groups = jax.tree.map(lambda leaf: leaf.reshape(self.ranks, self.each, *leaf.shape[1:])[home], stacked)
        ends = {name: part for name, part in weights.items() if name != "layers"}
        return {"layers": groups, "ends": jax.tree.map(self._parts, ends)}

    def whole(self, held: Any) -> Any:
        """Weights of the model from what all ranks keep.

        Args:
            held: the state as `held` makes it.
        """
        place = np.argsort([self._home(rank) for rank in range(self.ranks)])
        stacked = jax.tree.map(lambda leaf: leaf[place].reshape(-1, *leaf.shape[2:]), held["layers"])
        layers = [jax.tree.map(lambda leaf: leaf[number], stacked) for number in range(self.decoder.num_layers)]  # noqa: B023
        return self._ends_of(jax.tree.map(jnp.ravel, held["ends"])) | {"layers": layers}

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step without a ring: all samples and layers on one device."""

        def step(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
            weights = self.whole(state["weights"])
            loss, gradients = jax.value_and_grad(self.model.loss)(weights, batch, key)
            moments = {name: self.whole(part) for name, part in state["moments"].items()}
            moved, after = self.optimizer.update(weights, moments, gradients, state["step"])
            kept = {
                "weights": self.held(moved),
                "moments": {name: self.held(part) for name, part in after.items()},
                "step": state["step"] + 1,
            }
            return kept, loss, self.held(gradients)

        return jax.jit(step, compiler_options=ROUNDED_AS_WRITTEN)

    def _gradients(self, weights: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Mean loss of a rank's micro-batches, and the mean gradients of what it keeps."""
        ranks, mine, compute = self.ranks, jax.lax.axis_index(INNER), self.decoder.compute
        ends = cast(self._ends_of(jax.tree.map(self._gathered, weights["ends"])), compute)
        ahead = cast(weights["layers"], compute)
        back = self._moved(ahead, lambda rank: 1 - rank)
        given = {"tokens": batch["tokens"], "keys": sample_keys(key, batch["sample"])}
        split = jax.tree.map(lambda leaf: leaf.reshape(self.micro_batches, -1, *leaf.shape[1:]), given)
        of_all = ranks * self.micro_batches

        def place(turn: jax.Array, late: int) -> tuple[jax.Array, jax.Array, jax.Array, Any]:
            """Whether this rank works in a turn, its micro-batch's slot, how many groups in it is, and its samples."""
            at = turn - mine - late
            number = at // ranks
            samples = jax.tree.map(lambda leaf: leaf[jnp.clip(number, 0, self.micro_batches - 1)], split)
            return (at >= 0) & (at < of_all), number % SLOTS, at % ranks, samples

        def forward(turn: jax.Array, group: Any, x: jax.Array, kept: jax.Array) -> tuple[jax.Array, jax.Array]:
            works, slot, number, samples = place(turn, 0)

            def run() -> tuple[jax.Array, jax.Array]:
                return self._group(group, ends, x, number, samples)[0], kept.at[slot, number].set(x)

            return jax.lax.cond(works, run, lambda: (x, kept))

        def backward(turn: jax.Array, group: Any, dx: jax.Array, kept: jax.Array, sums: Any) -> tuple[jax.Array, Any]:
            works, slot, behind, samples = place(turn, ranks)
            number = ranks - 1 - behind

            def run() -> tuple[jax.Array, Any]:
                def again(group: Any, ends: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
                    return self._group(group, ends, x, number, samples)

                (_, loss), pull = jax.vjp(again, group, ends, kept[slot, number])
                # The stream behind the last group goes nowhere; its loss has begun the backward.
                *found, to_x = pull((jnp.where(behind == 0, 0, dx).astype(dx.dtype), jnp.ones_like(loss)))
                added = jax.tree.map(lambda total, one: total + one.astype(total.dtype), sums, (*found, loss))
                return to_x, added

            return jax.lax.cond(works, run, lambda: (dx, sums))

        def fill(state: Any, turn: jax.Array) -> tuple[Any, None]:
            ahead, x, kept = state
            x, kept = forward(turn, ahead, x, kept)
            return (self._on(ahead), x, kept), None

        def both(state: Any, turn: jax.Array) -> tuple[Any, None]:
            ahead, back, x, dx, kept, sums = state
            dx, sums = backward(turn, back, dx, kept, sums)
            x, kept = forward(turn, ahead, x, kept)
            ahead, back, groups = self._on((ahead, back, sums[0]))
            return (ahead, back, x, dx, kept, (groups, *sums[1:])), None

        def drain(state: Any, turn: jax.Array) -> tuple[Any, None]:
            back, dx, kept, sums = state
            dx, sums = backward(turn, back, dx, kept, sums)
            back, groups = self._on((back, sums[0]))
            return (back, dx, kept, (groups, *sums[1:])), None

        like = jax.eval_shape(self.decoder.entered, ends, jax.tree.map(lambda leaf: leaf[0], split)["tokens"][:, :-1])
        x = jnp.zeros(like.shape, like.dtype)
        kept = jnp.zeros((SLOTS, ranks, *like.shape), like.dtype)
        zero = jax.tree.map(jnp.zeros_like, (weights["layers"], self._ends_of(self._of_ends(weights["ends"]))))
        sums = (*zero, jnp.zeros((), jnp.promote_types(like.dtype, jnp.float32)))
        full, end = of_all + ranks - 1, of_all + 2 * ranks - 1
        (ahead, x, kept), _ = jax.lax.scan(fill, (ahead, x, kept), jnp.arange(ranks))
        state = (ahead, back, x, jnp.zeros_like(x), kept, sums)
        (_, back, _, dx, kept, sums), _ = jax.lax.scan(both, state, jnp.arange(ranks, full))
        (_, _, _, (groups, of_ends, loss)), _ = jax.lax.scan(drain, (back, dx, kept, sums), jnp.arange(full, end))
        home = self._moved(groups, lambda rank: -rank)
        parts = jax.tree.map(self._scattered, of_ends)
        return loss / self.micro_batches, {
            "layers": jax.tree.map(lambda leaf: leaf / of_all, home),
            "ends": jax.tree.map(lambda leaf: leaf / self.micro_batches, parts),
        }

    def _group(self, group: Any, ends: Any, x: jax.Array, number: jax.Array, samples: Any) -> tuple[jax.Array, Any]:
        """The stream behind a group of layers, and the loss behind the last one."""
        decoder, tokens = self.decoder, samples["tokens"]
        x = jax.lax.cond(number == 0, lambda: decoder.entered(ends, tokens[:, :-1]), lambda: x)
        for place in range(self.each):
            own = jax.tree.map(lambda leaf: leaf[place], group)  # noqa: B023
            x = decoder.passed(number * self.each + place, own, x, samples["keys"])
        wide = jnp.promote_types(x.dtype, jnp.float32)
        last = number == self.ranks - 1
        loss = jax.lax.cond(
            last, lambda: decoder.ended(ends, x, tokens[:, 1:]).astype(wide), lambda: jnp.zeros((), wide)
        )
        return x, loss

    def _on(self, values: Any) -> Any:
        """What the rank before had; a rank passes on its own."""
        return self._moved(values, lambda rank: rank + 1)

    def _moved(self, values: Any, to: Callable[[int], int]) -> Any:
        """Values of the rank that sends them here, in one message: CPU ranks of XLA mix up several at once."""
        pairs = [(rank, to(rank) % self.ranks) for rank in range(self.ranks)]
        leaves, structure = jax.tree.flatten(values)
        dtypes = [leaf.dtype for leaf in leaves]
        alike = len(set(dtypes)) == 1
        flat = [(leaf if alike else jax.lax.bitcast_convert_type(leaf, jnp.uint8)) for leaf in leaves]
        sent = jax.lax.ppermute(jnp.concatenate([part.ravel() for part in flat]), INNER, pairs)
        parts = jnp.split(sent, np.cumsum([part.size for part in flat])[:-1])
        moved = [part.reshape(one.shape) for part, one in zip(parts, flat, strict=True)]
        if not alike:
            moved = [jax.lax.bitcast_convert_type(part, dtype) for part, dtype in zip(moved, dtypes, strict=True)]
        return jax.tree.unflatten(structure, moved)

    def _home(self, rank: int) -> int:
        """The group that a rank keeps: the one whose forward it runs in turn 0, were it not behind."""
        return -rank % self.ranks

    def _ends_of(self, flat: Any) -> Any:
        """Embedding and head from all their parts."""
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        return jax.tree.map(shaped, flat, {name: part for name, part in shapes.items() if name != "layers"})

    def _of_ends(self, parts: Any) -> Any:
        """All parts of the ends, as many numbers as `_gathered` gives, without what they say."""
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.size * self.ranks, leaf.dtype), parts)


def ring_refusals(row: PlanRow, spec: ModelSpec | None, layers: int) -> Iterator[Problem]:
    """What part of a ring of weights does not run here, besides `rank_refusals`.

    Args:
        row: the plan.
        spec: the spec of the model; None for the perceptron.
        layers: the number of layers of the model as it runs.
    """
    word, alike = row.sharding_word, None if spec is None else len(spec.kinds())
    if alike is None or alike > 1:
        name = "the perceptron" if spec is None else spec.name
        why = "groups of layers take each other's places, so that all layers are decoder layers of one kind"
        yield Problem(what=f"{word} does not run with {name}", why=why, fix="use llama-tiny, or z3", field="model")
    elif layers % row.dp:
        near = -(-layers // row.dp) * row.dp
        what, why = (
            f"{word} of {row.dp} ranks with {layers} layers",
            "every rank keeps as many layers as the others",
        )
        yield Problem(what=what, why=why, fix=f"--layers {near}, or a dp that divides {layers}", field="layers")


RING = PassingStep(step=RingStep, refusals=ring_refusals)
