"""Weights in parts that are gathered layer by layer, some layers ahead of the one at work (FSDP with a prefetch depth).

Depth k: while layer i computes, the weights of layers i + 1 to i + k are on their way; those of layer i + k + 1 wait
for what layer i makes, so that no more than 1 + k layers are whole at once. Backward gathers them again, from the last
layer on, computes each layer's forward again from its input, and scatters a layer's gradients as it ends. Embedding
and head are gathered where they are read.

Source: Zhao et al. 2023, PyTorch FSDP (arXiv 2304.11277), section 3.3.2; `set_modules_to_forward_prefetch` of FSDP2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.errors import Problem
from meshwright.runtime.rank_steps.rank_steps import ROUNDED_AS_WRITTEN, RankStep, State
from meshwright.runtime.rank_steps.shard_steps import EVERY, ShardedStep, shaped
from meshwright.specs.model import ModelSpec
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.parts import cast, sample_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchedStep(ShardedStep):
    """One optimizer step of a rank with its parts of every layer."""

    @property
    def decoder(self) -> Decoder:
        """The model; others are refused before."""
        assert isinstance(self.model, Decoder)
        return self.model

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step with whole weights: all samples on one device."""

        def step(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
            shapes = jax.eval_shape(self.model.init, jax.random.key(0))

            def whole(parts: Any) -> Any:
                return jax.tree.map(lambda leaf, like: shaped(leaf.ravel(), like), parts, shapes)

            weights = whole(state["weights"])
            loss, gradients = jax.value_and_grad(self.model.loss)(weights, batch, key)
            moments = {name: whole(part) for name, part in state["moments"].items()}
            moved, after = self.optimizer.update(weights, moments, gradients, state["step"])
            kept: State = {
                "weights": jax.tree.map(self._parts, moved),
                "moments": {name: jax.tree.map(self._parts, part) for name, part in after.items()},
                "step": state["step"] + 1,
            }
            return kept, loss, jax.tree.map(self._parts, gradients)

        return jax.jit(step, compiler_options=ROUNDED_AS_WRITTEN)

    def _both(self, parts: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Loss of a micro-batch, and the mean gradient of this rank's parts."""
        decoder, tokens, keys = self.decoder, batch["tokens"], sample_keys(key, batch["sample"])
        layers, last = parts["layers"], decoder.num_layers - 1
        of_ends = {name: part for name, part in parts.items() if name != "layers"}
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        like_ends = {name: shapes[name] for name in of_ends}
        x = decoder.entered(self._whole(of_ends, like_ends), tokens[:, :-1])
        entered, ahead = [], self._ahead(layers, shapes["layers"], begun=False)
        for number in range(last + 1):
            own, x = ahead(number, x)
            entered.append(x)
            x = decoder.passed(number, own, x, keys)
        waiting, x = _behind(of_ends, x)
        again = self._whole(waiting, like_ends, again=True)
        loss, pull = jax.vjp(lambda ends, x: decoder.ended(ends, x, tokens[:, 1:]), again, x)
        to_ends, slope = pull(jnp.ones_like(loss))
        gradients: list[Any] = []
        ahead = self._ahead(layers[::-1], shapes["layers"][::-1], begun=True)
        for number in range(last, -1, -1):
            own, slope = ahead(last - number, slope)
            # Called before the loop goes on, so that the number is still this layer's.
            _, pull = jax.vjp(lambda own, x: decoder.passed(number, own, x, keys), own, entered[number])  # noqa: B023
            to_own, slope = pull(slope)
            gradients.insert(0, self._spread(to_own, layers[number]))
        (to_table,) = jax.vjp(lambda ends: decoder.entered(ends, tokens[:, :-1]), again)[1](slope)
        both = jax.tree.map(jnp.add, to_ends, to_table)
        return loss, {**self._spread(both, of_ends), "layers": gradients}

    def _ahead(
        self, layers: Sequence[Any], shapes: Sequence[Any], *, begun: bool
    ) -> Callable[[int, jax.Array], tuple[Any, jax.Array]]:
        """Whole weights of one layer after the other, with what enters it; each call sends for those of the layer
        `prefetch` further on, behind what enters. Where nothing has begun, the first do not wait."""
        depth, whole = self.data.prefetch, dict[int, Any]()

        def of(number: int, entering: jax.Array) -> tuple[Any, jax.Array]:
            for coming in range(len(whole), min(number + depth + 1, len(layers))):
                parts = layers[coming]
                if begun or number:
                    parts, entering = _behind(parts, entering)
                whole[coming] = self._whole(parts, shapes[coming], again=begun)
            return whole[number], entering

        return of

    def _whole(self, parts: Any, like: Any, *, again: bool = False) -> Any:
        """Weights of all ranks, in the format of the products."""
        sent, gathered = cast(parts, self.decoder.compute), self._gathered_again if again else self._gathered
        return jax.tree.map(lambda part, one: shaped(gathered(part), one), sent, like)

    def _gathered_again(self, part: jax.Array) -> jax.Array:
        """A weight of all parts, in another form: compilers take two equal gathers for one, and keep what it made."""
        return self._gathered(part) if self.data.gather_dtype else jax.lax.all_gather(part, EVERY, tiled=True)

    def _spread(self, gradients: Any, parts: Any) -> Any:
        """The mean over ranks of the parts of gradients that belong to this rank, in the format of the weights."""
        return jax.tree.map(lambda one, part: self._scattered(one.astype(part.dtype)), gradients, parts)


def _behind(parts: Any, value: jax.Array) -> tuple[Any, jax.Array]:
    """Parts that are not sent before a value is there, and the value; who reads it waits for no sending."""
    held: tuple[Any, jax.Array] = jax.lax.optimization_barrier((parts, value))
    return held


def prefetch_refusals(word: str, spec: ModelSpec | None) -> Iterator[Problem]:
    """Models whose layers are not gathered one by one here.

    Args:
        word: the word of the plan.
        spec: the spec of the model; None for the perceptron.
    """
    if spec is None or len(spec.kinds()) > 1:
        name = "the perceptron" if spec is None else spec.name
        why = "layers are gathered one by one of decoders whose layers are of one kind"
        yield Problem(what=f"{word} does not run with {name}", why=why, fix="use llama-tiny, or fsdp", field="model")


def rank_step_kind(prefetch: int, *, otherwise: bool) -> type[RankStep]:
    """The step of ranks that hold parts of weights, or whole ones.

    Args:
        prefetch: layers that are gathered ahead.
        otherwise: whether weights or gradients are sent in other formats, or to fewer ranks.
    """
    return PrefetchedStep if prefetch != 1 else ShardedStep if otherwise else RankStep
