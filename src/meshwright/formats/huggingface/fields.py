"""Read the fields of one config.json, keep every problem, and raise them together."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from copy import copy

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.huggingface.family import Family
from meshwright.formats.huggingface.settings import class_sizes
from meshwright.formats.huggingface.spellings import SAME, SPELLINGS

MAX_WIDTH = 2**22
MAX_LAYERS = 10_000
MAX_VOCAB = 2**27
MAX_SEQ_LEN = 2**31
MAX_EXPERTS = 2**16
INNER = ("head_dim",)
"""Sizes that are another part's in a config around the text model that states no width beside them."""
LISTS = ("layers_block_type", "hybrid_override_pattern")
"""Keys of patterns that may stand in for the number of layers."""


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
        self,
        config: Mapping[str, object],
        *,
        name: str,
        family: Family,
        outer: Mapping[str, object] | None = None,
        path: str = "",
        said: str = "",
        known: bool = True,
    ) -> None:
        """Wrap `config`, or one nested under `path` in `outer`, asked for what it lacks, as is the class of `said`."""
        self.name = name
        self.known = known
        """Whether its family is; of an unknown one nothing may be guessed."""
        self._config = config
        self._outer: Mapping[str, object] = outer or {}
        self._path = path
        self._said = said
        self._family = family
        self._fixed: dict[str, object] = dict(family.fixed)
        self._problems: list[Problem] = []
        self._refusals: list[Problem] = []
        self._bad: set[str] = set()
        self._read: set[str] = {"model_type"}
        self._notes: dict[str, None] = {}
        self._taken: dict[str, int] = {}

    def fix(self, parts: Mapping[str, object]) -> None:
        """Take parts that follow from other keys, whatever the config says under their own."""
        self._fixed.update(parts)

    def _names(self, key: str) -> tuple[str, ...]:
        return (*self._family.spells.get(key, ()), key, *SPELLINGS.get(key, ()))

    def has(self, *keys: str) -> bool:
        """Whether one of the keys is there in any spelling, even as null."""
        names = {name for key in keys for name in self._names(key)}
        self._read |= names
        return any(name in self._config or name in self._outer for name in names)

    def given(self, *keys: str) -> bool:
        """Whether one of the keys has a value, stated or by the family."""
        return self._find(keys)[1] is not None

    def fixed(self, key: str) -> bool:
        """Whether the family has it whatever the config says."""
        return key in self._fixed

    def require(self, key: str) -> None:
        """Note that `key` is missing, unless it is there, even as null, or the family says what a missing one means."""
        if not self.has(key) and not self.given(key) and not class_sizes(self._said):
            self._missing((key,))

    def inside(self, key: str) -> Fields:
        """The fields of the object under `key`, whose problems are noted here."""
        value = self._find((key,))[1]
        if value is None:
            self._missing((key,))
        elif not isinstance(value, Mapping):
            self.problem(key, value, "must be an object")
        inner = Fields(
            value if isinstance(value, Mapping) else {},
            name=self.name,
            family=Family(title=self._family.title, required=()),
            path=f"{self._path}{key}.",
        )
        inner._problems, inner._refusals = self._problems, self._refusals
        return inner

    def changed(self, change: Mapping[str, object]) -> Fields:
        """The same fields with other values of some keys, whose problems are noted here and whose family rules apply.

        Args:
            change: keys as the config spells them, and their values.
        """
        other = copy(self)
        other._config = {**self._config, **change}
        other._fixed = dict(self._family.fixed)
        if self._family.rule is not None:
            other.fix(self._family.rule(other))
        return other

    def asked(self, key: str) -> bool:
        """Whether a reader looked for a key."""
        return key in self._read

    def said(self) -> tuple[str, ...]:
        """What was assumed or left out, to be said with the answer."""
        taken = ", ".join(f"{key} = {value}" for key, value in self._taken.items())
        return (*([f"left out, taken from the family's class: {taken}"] if taken else []), *self._notes)

    def remark(self, note: str) -> None:
        """Keep what was assumed or left out, to be said with the answer."""
        self._notes[note] = None

    def raw(self, key: str) -> object:
        """The value under `key` as it stands, None where it is missing."""
        return self._find((key,))[1]

    def own(self, key: str) -> object:
        """The value under `key` of a config that is not nested in another, whose class is the whole model's."""
        return None if self._path else self._config.get(key)

    def around(self, key: str) -> object:
        """The value under `key` of the config that this one is nested in, None where there is none."""
        return self._outer.get(key)

    def unread(self) -> dict[str, object]:
        """Keys that nobody asked for, and their values; null says nothing."""
        return {
            key: value
            for key, value in self._config.items()
            if isinstance(key, str) and key not in self._read and value is not None
        }

    def _find(self, keys: tuple[str, ...]) -> tuple[str, object]:
        """The first of the keys with a value, and the value; the first key and None where none has one."""
        spelt = [name for key in keys for name in self._names(key)]
        self._read.update(spelt)
        for key in keys:
            if key in self._fixed:
                return key, self._fixed[key]
        around = {} if self._outer.get("hidden_size") is None and keys[0] in INNER else self._outer
        for config in (self._config, around):
            for name in spelt:
                if config.get(name) is not None:
                    return name, config[name]
        for key in keys:
            if self._family.defaults.get(key) is not None:
                return key, self._family.defaults[key]
        sizes = {} if any(name in self._config for name in spelt) else class_sizes(self._said)
        for name in filter(sizes.__contains__, spelt):
            self._taken[name] = sizes[name]
            return name, sizes[name]
        return keys[0], None

    def agree(self) -> None:
        """Note spellings of one key that say different numbers."""
        for key in SAME:
            said = {name: self._config[name] for name in self._names(key) if isinstance(self._config.get(name), int)}
            if len(set(said.values())) > 1:
                (first, one), (second, other) = list(said.items())[:2]
                self.problem(second, other, f"{first} is {one}, and both name the same size", "keep one of them")

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
        own = class_sizes(str(self._config.get("model_type")))  # keys of the class are no other key misspelt
        present = [key for key in self._config if isinstance(key, str) and key not in own]
        close = difflib.get_close_matches(keys[0], present, n=1, cutoff=0.84)
        close = [key for key in close if key not in keys]
        spelt = " or ".join((keys[0], *self._family.spells.get(keys[0], ())))
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
            fix = "write that of the published config" + (
                "" if default is None else f", or leave it out for {default:,}"
            )
            if isinstance(value, str) and value.strip().isdecimal():
                fix = f"write it without quotes: {value.strip()[:20]}"
            elif isinstance(value, float) and math.isfinite(value) and value == int(value) >= low:
                fix = f"write {int(value)}"
            self.problem(key, value, f"must be a whole number from {low:,} to {high:,}", fix)
            self._bad.update(keys)
            return low
        return value

    def maybe(self, *keys: str, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """The whole number under the first of `keys` that has a value, or None where none has."""
        return None if self._find(keys)[1] is None else self.whole(*keys, low=low, high=high)

    def nullable(self, key: str, *, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """A whole number, as `maybe`, whose null switches off what a missing key has by the family's default."""
        stated = [self._config[name] for name in self._names(key) if name in self._config]
        return None if stated and all(value is None for value in stated) else self.maybe(key, low=low, high=high)

    def wholes(self, key: str, layers: int, *, low: int = 1) -> list[int] | None:
        """A whole number for each layer where `key` holds a list, else None."""
        name, value = self._find((key,))
        if not isinstance(value, (list, tuple)):
            return None
        good = all(isinstance(item, int) and not isinstance(item, bool) and low <= item <= MAX_WIDTH for item in value)
        if not good:
            self.problem(name, value, f"must be a whole number from {low} to {MAX_WIDTH:,}, or a list of them")
        elif len(value) != layers:
            if not self.bad("num_hidden_layers"):
                self.problem(name, value, f"must name as many layers as num_hidden_layers = {layers}")
        else:
            return list(value)
        self._bad.add(key)
        return [1] * layers

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

    def pattern(self, key: str, layers: int, known: Sequence[str], *, value: object | None = None) -> list[str] | None:
        """A word for each layer under `key`, or None where there is none; `value` in place of what is there."""
        value = self._find((key,))[1] if value is None else value
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
            self.problem(key, value, f"must be a list of words out of {', '.join(known)}")
        elif strange := sorted(set(value) - set(known)):
            close = nearest(strange[0], known)
            fix = f"did you mean {' or '.join(close)}?" if close else "name such layers by the nearest of these words"
            self.refuse(key, strange[0], f"only {', '.join(known)} can be planned", fix)
        elif len(value) != layers:
            if not self.bad("num_hidden_layers"):
                fix = f"give one word a layer, or set num_hidden_layers to {len(value)}"
                self.problem(key, value, f"must name as many layers as num_hidden_layers = {layers}", fix)
        else:
            return list(value[:layers])
        return None

    def switches(self, key: str, layers: int) -> list[bool] | None:
        """Whether each layer has it, from a list of 0 and 1 under `key`, or None where there is no list."""
        value = self._find((key,))[1]
        if not isinstance(value, (list, tuple)):
            return None
        if not all(item in (0, 1) for item in value):
            self.problem(key, value, "must be a list of 0 and 1, one a layer")
        elif len(value) < layers:
            if not self.bad("num_hidden_layers"):
                self.problem(key, value, f"must name as many layers as num_hidden_layers = {layers}")
        else:
            return [bool(item) for item in value[:layers]]
        return [False] * layers

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

    def bad(self, *keys: str) -> bool:
        """Whether any of the keys had a problem, so that what follows from it need not be reported too."""
        return not self._bad.isdisjoint(keys)

    def layers(self) -> int:
        """The number of layers: stated, or as many as a list of them names."""
        listed = next((said for key in LISTS if isinstance(said := self.raw(key), (str, list)) and said), None)
        return self.whole("num_hidden_layers", default=len(listed) if listed else None, high=MAX_LAYERS)

    def head_dim(self, hidden: int, heads: int) -> int:
        """Explicit head size, or hidden / heads, which must then be whole."""
        given = self.maybe("head_dim")
        if given is not None:
            return given
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

    def kv_heads(self, heads: int) -> int:
        """Key and value heads; without the key, as many as heads."""
        kv_heads = self.whole("num_key_value_heads", default=heads)
        if not self.bad("num_attention_heads", "num_key_value_heads") and heads % kv_heads:
            self.problem(
                "num_key_value_heads",
                kv_heads,
                f"must divide num_attention_heads = {heads}",
                "use a divisor of the number of heads",
            )
        return kv_heads

    def experts(self, *, required: bool) -> int:
        """Routed experts, 0 for none."""
        return self.whole("num_experts", low=0, default=None if required else 0, high=MAX_EXPERTS)

    def top_k(self, experts: int) -> int:
        """Experts a token visits; at most all."""
        top_k = self.whole("num_experts_per_tok", high=MAX_EXPERTS)
        if top_k > experts and not self.bad("num_experts_per_tok", "num_experts"):
            self.problem("num_experts_per_tok", top_k, f"must not exceed the number of experts = {experts}")
        return min(top_k, experts)

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
