"""Read the fields of one config.json, keep every problem, and raise them together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.specs.model import LayerRun, LayerSpec

MAX_WIDTH = 2**22
MAX_LAYERS = 10_000
MAX_VOCAB = 2**27
MAX_SEQ_LEN = 2**31
MAX_EXPERTS = 2**16
MAX_PERIOD = 32
"""Longest repeating pattern of layers that is looked for."""

SLIDING = frozenset({"sliding_attention", "chunked_attention"})
LAYER_TYPES = (*sorted(SLIDING), "full_attention")


def show(value: object) -> str:
    """`repr`, at most about 60 characters, safe for numbers of any length."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} keys"
    if isinstance(value, (list, tuple)) and len(value) > 8:
        return f"a list of {len(value)} values"
    text = repr(value[:64] if isinstance(value, str) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Fields:
    """The fields of one config, by name; a bad one is noted and stands in as 1 until `done` raises them all."""

    def __init__(
        self, config: Mapping[str, object], *, name: str, outer: Mapping[str, object] | None = None, path: str = ""
    ) -> None:
        """Wrap `config`; `outer` is the config it is nested in under `path`, asked for keys missing inside."""
        self.name = name
        self._config = config
        self._outer: Mapping[str, object] = outer or {}
        self._path = path
        self._problems: list[Problem] = []
        self._refusals: list[Problem] = []
        self._bad: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there, even as null."""
        return key in self._config or key in self._outer

    def _find(self, keys: tuple[str, ...]) -> tuple[str, object]:
        """The first of the synonyms with a value, and the value; the first synonym and None where none has one."""
        for config in (self._config, self._outer):
            for key in keys:
                if config.get(key) is not None:
                    return key, config[key]
        return keys[0], None

    def problem(self, key: str, value: object, why: str, fix: str = "") -> None:
        """Note that `key` is wrong."""
        self._bad.add(key)
        self._problems.append(
            Problem(what=f"model {self.name}: {key} is {show(value)}", why=why, fix=fix, field=self._path + key)
        )

    def refuse(self, key: str, value: object, why: str, fix: str = "") -> None:
        """Note that `key` asks for something that cannot be planned yet."""
        self._refusals.append(
            Problem(what=f"model {self.name}: {key} is {show(value)}", why=why, fix=fix, field=self._path + key)
        )

    def _missing(self, keys: tuple[str, ...]) -> None:
        self._bad.add(keys[0])
        present = [key for key in self._config if isinstance(key, str)]
        close = difflib.get_close_matches(keys[0], present, n=1, cutoff=0.84)
        close = [key for key in close if key not in keys]
        spelt = " or ".join(keys)
        self._problems.append(
            Problem(
                what=f"model {self.name}: {spelt} is {'null' if self.has(keys[0]) else 'missing'}",
                why="the shape of the model cannot be known without it",
                fix=f"rename {close[0]!r} to {keys[0]!r}" if close else f"add {keys[0]!r} to the config",
                field=self._path + keys[0],
            )
        )

    def whole(self, *keys: str, default: int | None = None, low: int = 1, high: int = MAX_WIDTH) -> int:
        """The whole number under the first of `keys` that has a value, else `default`; None means it must be there."""
        key, value = self._find(keys)
        if value is None:
            if default is None:
                self._missing(keys)
                return low
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            fix = ""
            if isinstance(value, str) and value.strip().isdecimal():
                fix = f"write it without quotes: {value.strip()[:20]}"
            elif isinstance(value, float) and math.isfinite(value) and value == int(value):
                fix = f"write {int(value)}"
            self.problem(key, value, f"must be a whole number from {low:,} to {high:,}", fix)
            self._bad.update(keys)
            return low
        return value

    def maybe(self, *keys: str, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """The whole number under the first of `keys` that has a value, or None where none has."""
        return None if self._find(keys)[1] is None else self.whole(*keys, low=low, high=high)

    def flag(self, *keys: str, default: bool) -> bool:
        """The truth value under the first of `keys` that has one, else `default`."""
        key, value = self._find(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.problem(key, value, "must be true or false", f"leave it out for {str(default).lower()}")
            return default
        return value

    def word(self, key: str, known: Sequence[str], default: str) -> str:
        """The word under `key`, one of `known`, else `default`."""
        value = self._find((key,))[1]
        if value is None:
            return default
        if not isinstance(value, str) or value not in known:
            self.problem(key, value, f"must be one of {', '.join(known)}")
            return default
        return value

    def dropout(self, *keys: str, default: float = 0.0) -> bool:
        """Whether any of the dropout probabilities is above zero; a missing one is `default`."""
        found = False
        for key in keys:
            value = self._find((key,))[1]
            if value is None:
                found = found or default > 0
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                self.problem(key, value, "must be a probability from 0 to 1")
            else:
                found = found or value > 0
        return found

    def positions(self, key: str, layers: int) -> frozenset[int] | None:
        """The set of layer numbers under `key`, or None."""
        value = self._find((key,))[1]
        if value is None:
            return None
        good = isinstance(value, (list, tuple)) and all(
            isinstance(item, int) and not isinstance(item, bool) and 0 <= item < layers for item in value
        )
        if not good:
            if not self.bad("num_hidden_layers"):
                self.problem(key, value, f"must be a list of layer numbers from 0 to {layers - 1}")
            return None
        assert isinstance(value, (list, tuple))
        return frozenset(value)

    def sliding(self, layers: int, usual: Callable[[int], bool]) -> list[bool]:
        """Whether each layer sees a window only: from `layer_types` where given, else `usual` of its number."""
        value = self._find(("layer_types",))[1]
        if value is None:
            return [usual(number) for number in range(layers)]
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            self.problem("layer_types", value, f"must be a list of words out of {', '.join(LAYER_TYPES)}")
        elif strange := sorted(set(value) - set(LAYER_TYPES)):
            self.refuse("layer_types", strange[0], f"only {', '.join(LAYER_TYPES)} can be planned")
        elif len(value) != layers:
            if not self.bad("num_hidden_layers"):
                self.problem("layer_types", value, f"must name as many layers as num_hidden_layers = {layers}")
        else:
            return [item in SLIDING for item in value]
        return [False] * layers

    def bad(self, *keys: str) -> bool:
        """Whether any of the keys had a problem, so that what follows from it need not be reported too."""
        return not self._bad.isdisjoint(keys)

    def layers(self, *synonyms: str) -> int:
        """The number of layers."""
        return self.whole("num_hidden_layers", *synonyms, high=MAX_LAYERS)

    def vocab(self, default: int | None = None) -> int:
        """Rows of the embedding."""
        return self.whole("vocab_size", default=default, high=MAX_VOCAB)

    def max_seq_len(self, *synonyms: str, default: int | None = None) -> int:
        """Longest sequence."""
        return self.whole("max_position_embeddings", *synonyms, default=default, high=MAX_SEQ_LEN)

    def head_dim(self, hidden: int, heads: int, *, default: int | None = None) -> int:
        """Explicit head size, or `default`, or hidden / heads, which must then be whole."""
        given = self.maybe("head_dim")
        if given is not None or default is not None:
            return given or default or 1
        if self.bad("hidden_size", "num_attention_heads"):
            return 1
        if hidden % heads:
            self.problem(
                "num_attention_heads",
                heads,
                f"must divide hidden_size = {hidden}",
                "use a divisor, or give head_dim",
            )
        return max(1, hidden // heads)

    def kv_heads(self, heads: int, *synonyms: str, required: bool = False, default: int | None = None) -> int:
        """Key and value heads: null means as many as heads, and so does a missing key unless it is required."""
        keys = ("num_key_value_heads", *synonyms)
        if default is None and not (required and not any(self.has(key) for key in keys)):
            default = heads
        kv_heads = self.whole(*keys, default=default)
        if not self.bad("num_attention_heads", *keys) and heads % kv_heads:
            self.problem(
                keys[0],
                kv_heads,
                f"must divide num_attention_heads = {heads}",
                "use a divisor of the number of heads",
            )
        return kv_heads

    def top_k(self, experts: int, *synonyms: str, default: int | None = None) -> int:
        """Experts a token visits; at most all."""
        top_k = self.whole("num_experts_per_tok", *synonyms, default=default, high=MAX_EXPERTS)
        if top_k > experts and not self.bad("num_experts_per_tok", "experts"):
            self.problem("num_experts_per_tok", top_k, f"must not exceed the number of experts = {experts}")
        return min(top_k, experts)

    def experts(self, *keys: str, low: int = 1, default: int | None = None) -> int:
        """Routed experts."""
        experts = self.whole(*keys, low=low, default=default, high=MAX_EXPERTS)
        if self.bad(*keys):
            self._bad.add("experts")
        return experts

    def done(self) -> None:
        """Raise all problems together.

        Raises:
            InputError: if a field is missing or wrong.
            UnsupportedError: if all are right but one asks for what cannot be planned.
        """
        if self._problems:
            raise InputError(list(dict.fromkeys(self._problems)), code="MW204")
        if self._refusals:
            raise UnsupportedError(list(dict.fromkeys(self._refusals)), code="MW402")


def fold(layers: Sequence[LayerSpec]) -> tuple[LayerRun, ...]:
    """Layers in order as runs of the shortest period that covers most: 5 sliding + 1 full, ten times, is one run.

    Args:
        layers: the layers from the first to the last.

    Returns:
        Runs whose layers, written out, are `layers`.
    """
    numbers: dict[LayerSpec, int] = {}
    kinds = [numbers.setdefault(layer, len(numbers)) for layer in layers]
    runs: list[LayerRun] = []
    start = 0
    while start < len(kinds):
        best_period, best_repeats = 1, 1
        for period in range(1, min(MAX_PERIOD, len(kinds) - start) + 1):
            end = start + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            repeats = (end - start) // period
            if (repeats > 1 or period == 1) and period * repeats > best_period * best_repeats:
                best_period, best_repeats = period, repeats
        runs.append(LayerRun(layers=tuple(layers[start : start + best_period]), repeats=best_repeats))
        start += best_period * best_repeats
    return tuple(runs)
