"""What is trained: layers as a run-length list of periods, so that 120 equal or alternating layers cost nothing.

Parameter counts here are closed forms; `ops` derives the same counts from the operators and a test holds them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Literal

from meshwright.specs.check import Check, HashedOnce, hashed_once
from meshwright.specs.layer_spec import LayerRun as LayerRun
from meshwright.specs.layer_spec import LayerSpec as LayerSpec
from meshwright.specs.layer_spec import TunedLayer as TunedLayer
from meshwright.specs.operators import StreamTokens
from meshwright.specs.settings import UNSTATED, ModelSettings
from meshwright.specs.streams import Stream
from meshwright.specs.tuning import PARTS, Lora, Tuning

MOST_LAYERS = 2048
"""Many times those of any model; what weighs every cut grows with their square, in bytes too."""


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(HashedOnce):
    """A transformer: layers of the text, and of the streams beside it."""

    name: str
    family: str
    hidden: int
    vocab: int
    max_seq_len: int
    runs: tuple[LayerRun, ...]
    tied_embeddings: bool
    """The head uses the embedding's weights."""
    learned_positions: int = 0
    """Rows of a learned position table; 0 for rotary or ALiBi."""
    embedding_norm: bool = False
    final_norm: Literal["rmsnorm", "layernorm"] | None = "rmsnorm"
    head_bias: bool = False
    mtp_layers: int = 0
    """Multi-token-prediction modules after the last layer (DeepSeek-V3, section 2.2)."""
    mtp_layer: LayerSpec | None = None
    """The layer of such a module; None where it is one like the last layer."""
    streams: tuple[Stream, ...] = ()
    """Tokens beside the text, such as images or the input of an encoder, with what stands around their layers. The
    layers themselves are in `runs`, before those that need them."""
    pooled: bool = False
    """One prediction per sample instead of one per token: `vocab` counts its classes, and there is no token table."""
    classes: int | None = None
    """What the head predicts of a token in place of words: scores or classes; 0 for no head, as of embedding models."""
    head_transform: bool = False
    """A square matrix with bias and a norm before the head's projection (Devlin et al. 2018)."""
    idle_parameters: int = 0
    """Parameters of the checkpoint that no token visits and nothing trains, held where the embedding is: those of a
    tower without images."""
    source: str = ""
    """Where the shape comes from."""
    notes: tuple[str, ...] = ()
    """What part of the model is left out or planned differently; printed with the answer."""
    settings: ModelSettings = UNSTATED
    """Constants that change neither sizes nor work, for the files of frameworks."""
    tuning: Tuning | None = None
    """What part of it is trained; None for everything. Its layers say so each."""

    def __post_init__(self) -> None:
        check = Check(f"model {self.name}")
        check.all_whole(self, "hidden", "vocab", "max_seq_len")
        check.all_whole(self, "learned_positions", "mtp_layers", "idle_parameters", low=0)
        check.that(len(self.runs) > 0, "runs", self.runs, "must hold at least one layer")
        deep = f"at most {MOST_LAYERS:,}: every cut between two of them is weighed when stages are balanced"
        check.that(self.num_layers <= MOST_LAYERS, "layers", self.num_layers, deep, "say how many it has")
        if self.classes is not None:
            check.all_whole(self, "classes", low=0)
            check.that(not self.tied_embeddings, "tied_embeddings", True, "classes are no rows of the table", "untie")
        if self.mtp_layer is not None:
            check.that(self.mtp_layers > 0, "mtp_layer", "given", "there are no modules for it", "give mtp_layers")
        if self.streams:
            known = {"", *(stream.name for stream in self.streams)}
            for layer in self.kinds():
                for name in (layer.stream, layer.memory):
                    check.that(name in known, "stream", name, f"must be one of {', '.join(sorted(known))}")
        check.done()

    @property
    def num_layers(self) -> int:
        """Transformer layers of all streams, multi-token-prediction modules not counted."""
        return sum(len(run.layers) * run.repeats for run in self.runs)

    @property
    def tower_layers(self) -> int:
        """Layers of towers, which stand on the first pipeline stage whatever its number of stages."""
        towers = {stream.name for stream in self.streams if stream.tower}
        return sum(count for layer, count in self.kind_counts().items() if layer.stream in towers) if towers else 0

    @property
    def most_stages(self) -> int:
        """Most parts into which a pipeline cuts the model: its layers, towers counted as part of the next one."""
        return self.num_layers - self.tower_layers

    @property
    def beside_decoder(self) -> tuple[str, ...]:
        """What it has that a stack of causal layers over text has not, for targets that cannot express it."""
        found = [f"a stream of {s.name}" for s in self.streams if not s.window_of]
        own = [layer for layer in self.kinds() if not layer.stream]
        if any(layer.memory for layer in own):
            found.append("cross attention")
        if any(not getattr(layer.attention, "causal", True) and not layer.memory for layer in own):
            found.append("attention to later tokens")
        if self.pooled:
            found.append("one prediction per sample")
        if self.classes is not None:
            found.append("a head that predicts no words")
        if self.head_transform:
            found.append("a matrix before the head's projection")
        return tuple(found)

    def stream(self, name: str) -> Stream | None:
        """The stream of a name; None for the text."""
        return next((stream for stream in self.streams if stream.name == name), None)

    def tokens_of(self, name: str) -> StreamTokens | None:
        """Tokens per sample of a stream; None for the text, whose are the workload's.

        Raises:
            InputError: the workload has not said how many there are.
        """
        stream = self.stream(name)
        return None if stream is None else stream.tokens

    def width(self, layer: LayerSpec) -> int:
        """Width of the residual stream of a layer."""
        stream = self.stream(layer.stream) if layer.stream else None
        return self.hidden if stream is None else stream.hidden

    def boundary_width(self, seq_len: int) -> float:
        """Elements per token of the text that one pipeline stage passes on: its own, and streams that layers read.

        The first stage looks up the text's tokens, too, so that an encoder's stages pass on as much as a decoder's.

        Args:
            seq_len: tokens of the text.
        """
        last = self.last_layer()
        own = self.hidden * (last.residuals + last.blocks_seen)
        if not self.streams:
            return own
        read = {layer.memory for layer in self.kinds() if layer.memory}
        within = {layer.stream for layer in self.kinds() if layer.stream}
        passed = [s for s in self.streams if s.name in read or (s.name in within and not s.tower and not s.window_of)]
        return own + sum(stream.tokens.count * stream.hidden for stream in passed) / seq_len

    def layers(self) -> Iterator[LayerSpec]:
        """The layers in order."""
        if self.tuning is not None:
            yield from _tuned_layers(self)
            return
        for run in self.runs:
            for _ in range(run.repeats):
                yield from run.layers

    def kinds(self) -> tuple[LayerSpec, ...]:
        """The distinct layers, in order of first appearance."""
        return _kinds(self)

    def kind_counts(self) -> Counter[LayerSpec]:
        """How often each distinct layer occurs."""
        if self.tuning is not None:
            return Counter(_tuned_counts(self))
        counts: Counter[LayerSpec] = Counter()
        for run in self.runs:
            for layer in run.layers:
                counts[layer] += run.repeats
        return counts

    @property
    def lora(self) -> Lora | None:
        """Adapters on its products; None where there are none."""
        return self.tuning.lora if self.tuning is not None else None

    @property
    def sums_tied_table(self) -> bool:
        """Whether both ends make gradients of one table, which are summed where they stand apart."""
        return self.tied_embeddings and not (self.tuning is not None and self.tuning.freezes("embedding"))

    def last_layer(self) -> LayerSpec:
        """The last of them."""
        return self.runs[-1].layers[-1] if self.tuning is None else _tuned_layers(self)[-1]

    def with_wide_ends(self, first: int, last: int) -> ModelSpec:
        """The same with its first and last layers of text computing in the format of activations, and no others.

        Args:
            first: layers at the start.
            last: layers at the end.

        Raises:
            InputError: there are not as many.
        """
        check = Check(f"model {self.name}")
        plain = [layer for run in self.runs for _ in range(run.repeats) for layer in run.layers]
        text = [place for place, layer in enumerate(plain) if not layer.stream]
        rule = f"must leave some of the {len(text)} layers"
        check.that(first + last < len(text), "bf16_first + bf16_last", first + last, rule, "state fewer")
        check.done()
        ends = {*text[:first], *text[len(text) - last :]}
        marked = [replace(one, wide=place in ends) for place, one in enumerate(plain)]
        runs = tuple(LayerRun(layers=(layer,), repeats=len([*equal])) for layer, equal in groupby(marked))
        return replace(self, runs=runs)

    @property
    def mtp_kind(self) -> LayerSpec:
        """The layer of a multi-token-prediction module, trained as the last of the others is."""
        last = self.last_layer()
        if self.mtp_layer is None or not isinstance(last, TunedLayer):
            return self.mtp_layer or last
        return TunedLayer.of(self.mtp_layer, last.tuning)

    @property
    def residuals(self) -> int:
        """Copies of the residual stream."""
        return self.last_layer().residuals

    @property
    def spread_parameters(self) -> int:
        """Parameters that make copies of the embeddings, and the norm of the inputs that layers have of their own.

        AltUp has a square matrix for each copy but the first; others repeat the embeddings.
        """
        last = self.last_layer()
        squares = (last.residuals - 1) * self.hidden**2 if last.altup else 0
        return squares + (last.mlp.input_width)

    @property
    def merge_parameters(self) -> int:
        """Parameters that merge copies of the residual stream, or outputs of blocks, before the head."""
        copies = self.residuals
        if self.last_layer().residual_blocks:
            return 2 * self.hidden
        if self.last_layer().altup:
            return (copies - 1) * self.hidden**2
        return copies * copies * self.hidden + copies + 1 if copies > 1 else 0

    def _norm(self, norm: str | None) -> int:
        return 0 if norm is None else self.hidden * (2 if norm == "layernorm" else 1)

    @property
    def embedding_parameters(self) -> int:
        """Token and position tables and the norm after them; what stands before and behind the layers of streams."""
        norm = 2 * self.hidden if self.embedding_norm else 0
        rows = (0 if self.pooled else self.vocab) + self.learned_positions
        return rows * self.hidden + norm + self.spread_parameters + sum(stream.parameters for stream in self.streams)

    @property
    def predicted(self) -> int:
        """Outputs of the head a token: words, or classes in their place."""
        return self.vocab if self.classes is None else self.classes

    @property
    def head_parameters(self) -> int:
        """Output projection (0 when tied), its bias and the final norm."""
        projection = 0 if self.tied_embeddings else self.predicted * self.hidden
        transform = self.hidden * self.hidden + self.hidden if self.head_transform else 0
        own = transform + self.merge_parameters + self._norm(self.final_norm)
        return projection + own + (self.predicted if self.head_bias else 0)

    @property
    def parameters(self) -> int:
        """All parameters; multi-token-prediction modules are not counted, as model cards do."""
        layers = sum(count * layer.parameters(self.width(layer)) for layer, count in self.kind_counts().items())
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters one token visits: top-k instead of all experts."""
        layers = sum(count * layer.active_parameters(self.width(layer)) for layer, count in self.kind_counts().items())
        return layers + self.embedding_parameters + self.head_parameters

    @property
    def mtp_parameters(self) -> int:
        """Multi-token-prediction modules: a layer, a 2h-by-h projection and three norms each; the tables are shared."""
        layer = self.mtp_kind.parameters(self.hidden)
        return self.mtp_layers * (layer + 2 * self.hidden * self.hidden + 3 * self._norm(self.final_norm or "rmsnorm"))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return any(layer.mlp.routed_experts for layer in self.kinds())

    def describe(self) -> dict[str, object]:
        """The `model` entry of a plan set."""
        return {
            "name": self.name,
            "family": self.family,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "layers": self.num_layers,
            "mtp_layers": self.mtp_layers,
            "hidden": self.hidden,
            "vocab": self.vocab,
            "max_seq_len": self.max_seq_len,
            **({"streams": [self._described(s) for s in self.streams if not s.window_of]} if self.streams else {}),
        }

    def _described(self, stream: Stream) -> dict[str, object]:
        own = {layer: count for layer, count in self.kind_counts().items() if layer.stream.startswith(stream.name)}
        parameters = sum(count * layer.parameters(stream.hidden) for layer, count in own.items())
        return {**stream.describe(), "layers": sum(own.values()), "parameters": parameters + stream.parameters}


@lru_cache(maxsize=64)
def _kinds(model: ModelSpec) -> tuple[LayerSpec, ...]:
    """The distinct layers of a model; cached, because they are asked for more often than anything else of it."""
    if model.tuning is not None:
        return tuple(_tuned_counts(model))
    return tuple(dict.fromkeys(layer for run in model.runs for layer in run.layers))


@lru_cache(maxsize=64)
def _tuned_counts(model: ModelSpec) -> dict[LayerSpec, int]:
    """How often each distinct layer occurs, in order of first appearance."""
    # Equal layers are mostly one object, and a hash of each takes its time.
    once: dict[int, LayerSpec] = {}
    layers = [once.setdefault(id(layer), layer) for layer in _tuned_layers(model)]
    places = Counter(map(id, layers))
    found: dict[LayerSpec, int] = {}
    for place, layer in once.items():
        found[layer] = found.get(layer, 0) + places[place]
    return found


@lru_cache(maxsize=64)
def _tuned_layers(model: ModelSpec) -> tuple[LayerSpec, ...]:
    """The layers in order, each with what of it is trained; those below everything trained have no backward pass."""
    tuning = model.tuning
    assert tuning is not None
    plain = [layer for run in model.runs for _ in range(run.repeats) for layer in run.layers]
    towers = {stream.name for stream in model.streams if stream.tower}
    reaches = {stream.name: not tuning.freezes_around(stream.name, "stem") for stream in model.streams}
    joined = any(stream.projector and not tuning.freezes_around(stream.name, "projector") for stream in model.streams)
    before, number, found = not tuning.freezes("embedding") or joined, -1, []
    inside = {*PARTS} - {"embedding", "head"}
    for layer in plain:
        number += not layer.stream
        # Gradients reach a stream from what is trained within it, the text from what is trained before it anywhere.
        name = layer.stream.partition(" ")[0]
        own = tuning.of_layer(-1 if name else number, name, tower=name in towers)
        below = reaches.get(name, before) if layer.stream else before or any(reaches.values())
        # A part that a layer lacks is frozen without being trained anywhere else.
        reached = (
            below
            or own is None
            or own.lora is not None
            or any(part not in own.frozen and layer.has(part) for part in inside)
        )
        if layer.stream:
            reaches[name] = reached
        else:
            before = reached
        if own is not None and not reached:
            own = replace(own, reached=False)
        found.append(TunedLayer.of(layer, own))
    return tuple(found)
