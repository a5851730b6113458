"""Decoder-only language models from a `ModelSpec`: GPT, Llama, Mixtral and all between are choices of its fields."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from operator import itemgetter
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.compiler.marking import layer_boundary
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.strategy import ExpertParallel
from meshwright.zoo.attention import attention, attention_weights
from meshwright.zoo.blocks import WHOLE, Blocked, WholeTensors
from meshwright.zoo.expert_exchange import PLAIN, all_but_activations, kept_exchanges
from meshwright.zoo.experts import CAPACITY_FACTOR, expert_weights, experts, over_data, routed
from meshwright.zoo.feed_forward import mlp, mlp_weights
from meshwright.zoo.gates import Gate
from meshwright.zoo.on_blocks import OnBlocks
from meshwright.zoo.parts import cast, drawn, dropout, made_again, norm, norm_weights, sample_keys
from meshwright.zoo.supported import check_supported
from meshwright.zoo.swapped import swapped
from meshwright.zoo.token_groups import GroupOfRank, GroupsOfRanks, WholeSamples
from meshwright.zoo.token_order import in_rank_order, in_sample_order, order_on

DROPOUT = 0.1
BALANCE_WEIGHT = 0.01
"""Weight of the routers' imbalance beside the cross entropy."""

FIRST_GATE = 1 << 20
"""Number of the first layer's random gate; smaller ones are those of dropout."""

Recompute = Literal["none", "full"] | tuple[str, ...]
"""Nothing, all but what enters a run of layers, or the parts of each layer that these modules of plans are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A language model that can be trained."""

    spec: ModelSpec
    seq_len: int
    compute: str | None = None
    """Format of products and activations; None keeps the weights'."""
    dropout: float = DROPOUT
    """Dropout rate of the layers that have dropout."""
    capacity_factor: float | None = CAPACITY_FACTOR
    recompute: tuple[tuple[int, Recompute], ...] = ()
    """Runs of layers, from the first, and what backward computes again; layers behind the runs keep everything."""
    grid: DeviceGrid | None = None
    """Grid of the devices that share its work; None: one device."""
    experts: ExpertParallel = PLAIN
    """How tokens and experts meet on them."""
    gate: Gate = "top-k"
    """Which experts take which tokens."""
    grids: tuple[DeviceGrid | None, ...] = ()
    """Grid of each layer, where those of stages differ; empty where all have `grid`."""
    routed_on: DeviceGrid | None = None
    """Grid whose ranks route each its own tokens, as this one device then does; None: experts have places for samples.
    """
    swapped: bool = False
    """Whether what layers keep for their backward waits in the host's memory."""
    ends: frozenset[int] = frozenset()
    """Layers before each place where a stage has to end; without it the compiler finds where."""
    held: WholeTensors = WHOLE
    """How a layer makes its products, where a device has whole tensors."""

    def __post_init__(self) -> None:
        check_supported(self.spec, self.seq_len)

    @property
    def name(self) -> str:
        """Name of the model's spec."""
        return self.spec.name

    @property
    def num_layers(self) -> int:
        """Transformer layers."""
        return self.spec.num_layers

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Weights; outputs of layers are scaled by 1 / sqrt(2 layers), as GPT-2's are.

        Args:
            key: the key of the random numbers.
        """
        spec = self.spec
        tokens, positions, projection, *layers = jax.random.split(key, 3 + spec.num_layers)
        embedding: dict[str, Any] = {"tokens": drawn(tokens, (spec.vocab, spec.hidden), spec.hidden)}
        if spec.learned_positions:
            embedding["positions"] = drawn(positions, (spec.learned_positions, spec.hidden), spec.hidden)
        if spec.embedding_norm:
            embedding["norm"] = norm_weights("layernorm", spec.hidden)
        head: dict[str, Any] = {}
        if spec.final_norm is not None:
            head["norm"] = norm_weights(spec.final_norm, spec.hidden)
        if not spec.tied_embeddings:
            head["projection"] = drawn(projection, (spec.hidden, spec.vocab), spec.hidden)
        if spec.head_bias:
            head["bias"] = jnp.zeros(spec.vocab)
        return {"embedding": embedding, "layers": self._layers_weights(layers), "head": head}

    def loss(self, weights: dict[str, Any], batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        """Cross entropy of the next token, and a little of the routers' imbalance.

        Args:
            weights: the weights of `init`.
            batch: tokens [samples, length + 1] and the samples' numbers.
            key: the key of the step's dropout.
        """
        keys, tokens = sample_keys(key, batch["sample"]), batch["tokens"]
        if on_blocks := OnBlocks.of(self.grid):
            weights = cast(weights, self.compute)
            x, balance = self._stream(weights, tokens[:, :-1], keys)
            ends = {name: weights[name] for name in ("embedding", "head")}
            loss = on_blocks.losses(self._losses, ends, x, in_rank_order(self.grid, tokens[:, 1:])).mean()
            return loss + BALANCE_WEIGHT * balance if self.spec.is_moe else loss
        logits, balance = self.logits(weights, tokens[:, :-1], keys)
        following = in_rank_order(self._grid(self.num_layers - 1), tokens[:, 1:])
        wanted = jnp.take_along_axis(jax.nn.log_softmax(logits), following[..., None], axis=-1)
        loss = -wanted.mean()
        return loss + BALANCE_WEIGHT * balance if self.spec.is_moe else loss

    def logits(self, weights: dict[str, Any], tokens: jax.Array, keys: jax.Array) -> tuple[jax.Array, Any]:
        """What may follow every token, in the order of the last layer's ranks, and the imbalance of the routers.

        Args:
            weights: the weights of `init`.
            tokens: [samples, length].
            keys: the keys of dropout, one per sample.
        """
        weights = cast(weights, self.compute)
        x, balance = self._stream(weights, tokens, keys)
        return self._logits(weights, x), balance

    def _stream(self, weights: dict[str, Any], tokens: jax.Array, keys: jax.Array) -> tuple[jax.Array, Any]:
        """What the layers make of tokens."""
        grid, embedding = self._grid(0), weights["embedding"]
        on_blocks = OnBlocks.of(grid)
        tokens = in_rank_order(grid, tokens)
        x = on_blocks.embedded(self._embedded, embedding, tokens) if on_blocks else self._embedded(embedding, tokens)
        if grid is not None and grid.tokens and not on_blocks:
            x = grid.held(x, grid.data, grid.tokens)
        x = self._ended(0, x)
        balance: Any = 0.0
        numbered = list(enumerate(zip(self.spec.layers(), weights["layers"], strict=True)))
        for first, end, kind in self._runs():
            run = self._run([(number, layer) for number, (layer, _) in numbered[first:end]], kind)
            whole = jax.checkpoint(run, policy=kept_exchanges(self.experts)) if kind == "full" else run
            x, added = (swapped(whole) if self.swapped else whole)(
                [one for _, (_, one) in numbered[first:end]], x, keys
            )
            balance = balance + added
            x = self._passed_on(end, x)
        return x, balance

    def entered(self, ends: dict[str, Any], tokens: jax.Array) -> jax.Array:
        """What enters the first layer.

        Args:
            ends: the weights besides those of layers.
            tokens: [samples, length].
        """
        return self._embedded(ends["embedding"], tokens)

    def passed(self, number: jax.Array, weights: dict[str, Any], x: jax.Array, keys: jax.Array) -> jax.Array:
        """What a layer makes of the stream, in a model whose layers are alike and dense.

        Args:
            number: the number of the layer, from 0.
            weights: its own.
            x: the stream.
            keys: the keys of dropout, one per sample.
        """
        return self._layer(number, next(iter(self.spec.layers())), weights, x, keys, again=())[0]

    def ended(self, ends: dict[str, Any], x: jax.Array, wanted: jax.Array) -> jax.Array:
        """Cross entropy of the next token behind the last layer, a mean.

        Args:
            ends: the weights besides those of layers.
            x: the stream.
            wanted: the next tokens.
        """
        logits = self._logits(ends, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[..., None], axis=-1).mean()

    def routes(self, weights: dict[str, Any], tokens: jax.Array, keys: jax.Array) -> jax.Array:
        """Experts of every token on every layer that has some: [layers, samples, length, top-k].

        Args:
            weights: the weights of `init`.
            tokens: [samples, length].
            keys: the keys of dropout, one per sample.
        """
        weights = cast(weights, self.compute)
        x = self._embedded(weights["embedding"], tokens)
        found: list[jax.Array] = []
        for number, (layer, own) in enumerate(zip(self.spec.layers(), weights["layers"], strict=True)):
            x, _ = self._layer(number, layer, own, x, keys, again=(), routes=found)
        return jnp.stack(found)

    def batch(self, step: int, samples: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Sequences in which every token but the first follows from the one before it, but for one in eight.

        Args:
            step: counted from 0.
            samples: the number of samples in the batch.
            seed: the seed of the data.
        """
        rng = np.random.default_rng((seed, step))
        vocab = self.spec.vocab
        tokens = rng.integers(0, vocab, (samples, self.seq_len + 1), dtype=np.int32)
        follows = rng.random(tokens.shape) < 7 / 8
        for at in range(1, self.seq_len + 1):
            after = (3 * tokens[:, at - 1] + 7) % vocab
            tokens[:, at] = np.where(follows[:, at], after, tokens[:, at])
        return {"tokens": tokens, "sample": np.arange(step * samples, (step + 1) * samples, dtype=np.int32)}

    def _layers_weights(self, keys: list[jax.Array]) -> list[dict[str, Any]]:
        """Weights of every layer; equal layers are drawn in a loop, as its body is compiled once for all of them."""
        own = list(self.spec.layers())
        made: dict[int, dict[str, Any]] = {}
        for kind in dict.fromkeys(own):
            places = [place for place, layer in enumerate(own) if layer == kind]
            stacked = jax.lax.map(partial(self._layer_weights, kind), jnp.stack([keys[place] for place in places]))
            made |= {place: jax.tree.map(itemgetter(row), stacked) for row, place in enumerate(places)}
        return [made[place] for place in range(len(own))]

    def _layer_weights(self, layer: LayerSpec, key: jax.Array) -> dict[str, Any]:
        hidden, scale = self.spec.hidden, (2 * self.spec.num_layers) ** -0.5
        seeing, thinking = jax.random.split(key)
        assert isinstance(layer.attention, Attention)
        made: dict[str, Any] = {"attention": attention_weights(layer.attention, hidden, seeing, scale)}
        if isinstance(layer.mlp, DenseMlp):
            made["mlp"] = mlp_weights(layer.mlp, hidden, thinking, scale)
        else:
            assert isinstance(layer.mlp, MoeMlp)
            made["experts"] = expert_weights(layer.mlp, hidden, thinking, scale)
        return made | {name: norm_weights(layer.norm, hidden) for name in ("attention_norm", "mlp_norm")[: layer.norms]}

    def _embedded(self, weights: dict[str, Any], tokens: jax.Array, held: WholeTensors = WHOLE) -> jax.Array:
        x = held.looked_up(weights["tokens"], tokens)
        if "positions" in weights:
            positions = in_rank_order(self._grid(0), weights["positions"][None, : held.tokens(tokens.shape[1])])
            x = x + held.part(positions, width=False)[0]
        return norm(weights["norm"], x, held) if "norm" in weights else x

    def _grid(self, layer: int | jax.Array) -> DeviceGrid | None:
        return self.grids[int(layer)] if self.grids else self.grid

    def _passed_on(self, layers: int, x: jax.Array) -> jax.Array:
        """What passes on behind so many layers, in the order of the next one's ranks."""
        here, there = (self._grid(min(at, self.num_layers - 1)) for at in (layers - 1, layers))
        if (order_on(here, x.shape[1]) == order_on(there, x.shape[1])).all():
            return self._ended(layers, x)
        # A stage whose ranks hold whole samples changes the order without sending anything.
        if there is None or not there.tokens:
            return in_sample_order(here, self._ended(layers, x))
        return self._ended(layers, in_rank_order(there, in_sample_order(here, x)))

    def _ended(self, layers: int, x: jax.Array) -> jax.Array:
        """What passes on behind so many layers, marked where a stage ends there."""
        return layer_boundary(x) if layers in self.ends else x

    def _runs(self) -> Iterator[tuple[int, int, Recompute]]:
        """First layer, the one behind the last, and what is computed again; a run of its own for each layer kept."""
        ends = list(accumulate(count for count, _ in self.recompute))
        for end, (count, kind) in zip(ends, self.recompute, strict=True):
            yield end - count, end, kind
        yield from ((number, number + 1, "none") for number in range(ends[-1] if ends else 0, self.num_layers))

    def _run(self, layers: list[tuple[int, LayerSpec]], kind: Recompute) -> Callable[..., tuple[jax.Array, Any]]:
        def run(weights: list[dict[str, Any]], x: jax.Array, keys: jax.Array) -> tuple[jax.Array, Any]:
            balance: Any = 0.0
            for (number, layer), own in zip(layers, weights, strict=True):
                x, added = self._placed_layer(
                    number, layer, own, x, keys, again=kind if isinstance(kind, tuple) else ()
                )
                balance = balance + added
            return x, balance

        return run

    def _placed_layer(
        self,
        number: int,
        layer: LayerSpec,
        weights: dict[str, Any],
        x: jax.Array,
        keys: jax.Array,
        *,
        again: tuple[str, ...],
    ) -> tuple[jax.Array, Any]:
        """A layer on the blocks of a tensor grid, or as the partitioner splits it."""
        if not (on_blocks := OnBlocks.of(self.grid)):
            return self._layer(number, layer, weights, x, keys, again=again, held=self.held)
        if isinstance(layer.mlp, MoeMlp):
            own = {name: part for name, part in weights.items() if name != "experts"}
            attended = partial(self._attended, number, layer, again=again)
            seen = on_blocks.layer(attended, own, x, keys)
            if GroupOfRank.of(self.grid) is None:
                return self._thought(number, layer, weights, seen, keys, again=again)

            def thought(weights: Any, seen: Any, keys: jax.Array, held: WholeTensors) -> tuple[jax.Array, jax.Array]:
                return self._thought(number, layer, weights, seen, keys, again=again, held=held)

            of_experts, together = {"experts": weights["experts"]}, over_data(on_blocks.grid, self.experts)
            stream, balances = on_blocks.experts(thought, of_experts, seen, keys, together=together)
            return stream, balances.mean()

        def part(weights: Any, x: jax.Array, keys: jax.Array, held: WholeTensors) -> jax.Array:
            return self._layer(number, layer, weights, x, keys, again=again, held=held)[0]

        return on_blocks.layer(part, weights, x, keys), 0.0

    def _layer(
        self,
        number: int | jax.Array,
        layer: LayerSpec,
        weights: dict[str, Any],
        x: jax.Array,
        keys: jax.Array,
        *,
        again: tuple[str, ...],
        routes: list[jax.Array] | None = None,
        held: WholeTensors = WHOLE,
    ) -> tuple[jax.Array, Any]:
        attended = self._attended(number, layer, weights, x, keys, held, again=again)
        return self._thought(number, layer, weights, attended, keys, again=again, routes=routes, held=held)

    def _attended(
        self,
        number: int | jax.Array,
        layer: LayerSpec,
        weights: dict[str, Any],
        x: jax.Array,
        keys: jax.Array,
        held: WholeTensors,
        *,
        again: tuple[str, ...],
    ) -> tuple[jax.Array, jax.Array]:
        """What the second half of a layer is given, and the stream behind the first."""
        assert isinstance(layer.attention, Attention)
        grid = self._grid(number)
        normed = made_again(again, "layernorm", partial(norm, held=held))
        entering = normed(weights["attention_norm"], x)
        seen = attention(
            layer.attention,
            weights["attention"],
            entering,
            rotary=not self.spec.learned_positions,
            core_again="core_attn" in again,
            grid=grid,
            held=held,
        )
        after = x + dropout(keys, 2 * number, self.dropout * layer.dropout, seen, held, grid)
        given = x if layer.parallel_block else after
        return entering if layer.norms == 1 else normed(weights["mlp_norm"], given), after

    def _thought(
        self,
        number: int | jax.Array,
        layer: LayerSpec,
        weights: dict[str, Any],
        attended: tuple[jax.Array, jax.Array],
        keys: jax.Array,
        *,
        again: tuple[str, ...],
        routes: list[jax.Array] | None = None,
        held: WholeTensors = WHOLE,
    ) -> tuple[jax.Array, Any]:
        """The stream behind a layer, and the imbalance of its router: of each sample on a rank, else their mean."""
        (shared, after), grid = attended, self._grid(number)
        balance: Any = 0.0
        if isinstance(layer.mlp, MoeMlp):
            if routes is not None:
                routes.append(routed(layer.mlp, weights["experts"], shared))
            through = partial(
                experts,
                layer.mlp,
                capacity_factor=self.capacity_factor,
                grid=grid,
                how=self.experts,
                gate=self.gate,
                keys=jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, FIRST_GATE + number),
                groups=self._groups(grid, held),
                held=held,
            )
            of_products = made_again(again, "moe_act", through, policy=all_but_activations)
            whole = made_again(again, "moe", of_products, policy=kept_exchanges(self.experts))
            made, balances = whole(weights["experts"], shared)
            balance = balances.mean() if held is WHOLE else balances
        else:
            made = made_again(again, "mlp", partial(mlp, held=held))(weights["mlp"], shared)
        return after + dropout(keys, 2 * number + 1, self.dropout * layer.dropout, made, held, grid), balance

    def _groups(self, grid: DeviceGrid | None, held: WholeTensors) -> WholeSamples | None:
        """Tokens that share the places of experts; None for those of a sample."""
        if held is not WHOLE:
            return GroupOfRank.of(grid)
        return None if self.routed_on is None else GroupsOfRanks(ranks=self.routed_on)

    def _losses(self, weights: dict[str, Any], x: jax.Array, wanted: jax.Array, held: Blocked) -> jax.Array:
        """Loss of every token, on one rank of a tensor grid."""
        return held.loss(self._logits(weights, x, held), wanted)

    def _logits(self, weights: dict[str, Any], x: jax.Array, held: WholeTensors = WHOLE) -> jax.Array:
        head = weights["head"]
        x = norm(head["norm"], x, held) if "norm" in head else x
        matrix = held.tied(weights["embedding"]["tokens"]) if self.spec.tied_embeddings else head["projection"]
        (logits,) = held.into(x, matrix)
        logits = logits + head["bias"] if "bias" in head else logits
        return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
