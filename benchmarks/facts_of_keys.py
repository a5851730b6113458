"""What `KEY=VALUE` words of a command, or keywords of a Python module, say of a plan: small tables, for comparison."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

_MAXTEXT = re.compile(r"(?:ici|dcn)_\w+_parallelism|per_device_batch_size")
_BRIDGE = {
    "model.tensor_model_parallel_size": "tp",
    "model.pipeline_model_parallel_size": "pp",
    "model.context_parallel_size": "cp",
    "model.expert_model_parallel_size": "ep",
    "train.micro_batch_size": "mbs",
    "train.global_batch_size": "gbs",
}
_MODULES = {
    "torchtitan": {
        "tensor_parallel_degree": "tp",
        "pipeline_parallel_degree": "pp",
        "context_parallel_degree": "cp",
        "expert_parallel_degree": "ep",
        "seq_len": "seq",
    },
    "olmo_core": {"sequence_length": "seq", "max_sequence_length": "seq"},
}
"""Facts by the keyword that says them, of modules that state each once."""


def of_words(words: Sequence[str]) -> tuple[str, Facts]:
    """The kind of program whose keys a command states, and what they say; no kind where they are of none known here.

    Args:
        words: behind the program.
    """
    given = {}
    for one in words:
        name, equals, value = one.lstrip("+-").partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][\w.]*", name):
            given[name] = value
    if any(_MAXTEXT.fullmatch(name) for name in given):
        return "maxtext", _of_maxtext(given)
    if len(_BRIDGE.keys() & given.keys()) > 1:
        return "bridge", _whole({fact: given[key] for key, fact in _BRIDGE.items() if key in given})
    return "", {}


def _of_maxtext(given: Mapping[str, str]) -> Facts:
    """Degrees as products over ICI and DCN, each 1 unless it is stated."""

    def degree(*names: str) -> int | None:
        found = [given.get(f"{where}_{name}_parallelism", "1") for where in ("ici", "dcn") for name in names]
        return None if "-1" in found else prod(int(one) for one in found)

    facts = {
        "tp": degree("tensor", "tensor_transpose", "tensor_sequence"),
        "pp": degree("pipeline"),
        "cp": degree("context"),
        "ep": degree("expert"),
    }
    return {**facts, **_whole({"seq": given.get("max_target_length", "")})}


def _whole(given: Mapping[str, str]) -> Facts:
    return {name: int(value) for name, value in given.items() if value.isdigit()}


def of_module(path: Path) -> tuple[str, Facts]:
    """The framework of a Python module, and what its keywords say once.

    Args:
        path: of a module.
    """
    text = path.read_text(errors="replace")
    kind = "olmo_core" if "olmo_core" in text else "torchtitan" if "Trainer.Config(" in text else ""
    facts: Facts = {}
    for keyword, fact in _MODULES.get(kind, {}).items():
        values = set(re.findall(rf"\b{keyword}\s*=\s*([\w*. ]+?)\s*[,)\n]", text))
        if len(values) == 1 and (value := values.pop()).isdigit():
            facts[fact] = int(value)
    return kind, facts
