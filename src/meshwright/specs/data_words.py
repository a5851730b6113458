"""Words of a plan's one-line form about what data ranks send each other: one line each.

qw-int8        weights cross the network in int8 (ZeRO++ qwZ)
qg-int4        gradients cross in int4 (ZeRO++ qgZ)
hpz8           a second copy of the weights, over 8 ranks, for backward (ZeRO++ hpZ)
prefetch2      weights of 2 layers are gathered ahead of the one at work (FSDP)
gc-powersgd4   gradients are made small by a compression of the catalogue, with its setting
local16        replicas are averaged every 16 steps (local SGD)
diloco64       replicas take an outer step with momentum every 64 steps (DiLoCo)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.strategy import DataParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWord:
    """One kind of word."""

    pattern: str
    """What the word looks like; its last group holds what it says."""
    fields: Callable[[str], dict[str, Any]]
    """Fields of `DataParallel` that it states."""
    said: Callable[[DataParallel], str]
    """The word of a record; empty where there is nothing to say."""


_FORMATS = "|".join(sorted(DTYPE_BYTES, key=len, reverse=True))
DATA_WORDS: dict[str, DataWord] = {
    "qw-int8": DataWord(
        pattern=rf"qw-({_FORMATS})",
        fields=lambda said: {"gather_dtype": said},
        said=lambda data: f"qw-{data.gather_dtype}" if data.gather_dtype else "",
    ),
    "qg-int4": DataWord(
        pattern=rf"qg-({_FORMATS})",
        fields=lambda said: {"reduce_dtype": said},
        said=lambda data: f"qg-{data.reduce_dtype}" if data.reduce_dtype else "",
    ),
    "hpz8": DataWord(
        pattern=r"hpz([1-9][0-9]{0,8})",
        fields=lambda said: {"secondary_shard": int(said)},
        said=lambda data: f"hpz{data.secondary_shard}" if data.secondary_shard else "",
    ),
    "prefetch2": DataWord(
        pattern=r"prefetch([0-9]{1,4})",
        fields=lambda said: {"prefetch": int(said)},
        said=lambda data: f"prefetch{data.prefetch}" if data.prefetch != 1 else "",
    ),
    "gc-powersgd4": DataWord(
        pattern=r"gc-([a-z]{1,20}[0-9]{0,9})",
        fields=lambda said: {"compression": said},
        said=lambda data: f"gc-{data.compression}" if data.compression else "",
    ),
    "local16": DataWord(
        pattern=r"local([1-9][0-9]{0,8})",
        fields=lambda said: {"averaging": "local", "averaging_steps": int(said)},
        said=lambda data: f"local{data.averaging_steps}" if data.averaging == "local" else "",
    ),
    "diloco64": DataWord(
        pattern=r"diloco([1-9][0-9]{0,8})",
        fields=lambda said: {"averaging": "diloco", "averaging_steps": int(said)},
        said=lambda data: f"diloco{data.averaging_steps}" if data.averaging == "diloco" else "",
    ),
}
"""Kinds of words, by an example of each, in the order in which a plan says them."""


def word_fields(word: str) -> dict[str, Any] | None:
    """Fields of `DataParallel` that a word states; None for what is no such word.

    Args:
        word: a token of the one-line form.
    """
    for kind in DATA_WORDS.values():
        if match := re.fullmatch(kind.pattern, word):
            return kind.fields(match[1])
    return None


def shared_fields(words: tuple[str, ...]) -> dict[str, Any]:
    """Fields that all words state together.

    Args:
        words: each of another kind.
    """
    return {name: value for word in words for name, value in (word_fields(word) or {}).items()}


def data_words_of(data: DataParallel) -> tuple[str, ...]:
    """The words of a record, in their order; without those of what no word says.

    Args:
        data: the record.
    """
    return tuple(filter(None, _said(data)))


def _said(data: DataParallel) -> Iterator[str]:
    for kind in DATA_WORDS.values():
        yield kind.said(data)


def in_order(words: tuple[str, ...]) -> tuple[str, ...]:
    """Words in the order in which a plan says them.

    Args:
        words: the words in any.
    """
    return data_words_of(DataParallel(**shared_fields(words)))
