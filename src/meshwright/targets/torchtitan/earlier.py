"""TOML of torchtitan before 0.2: its keys by today's names, and its text with single values changed.

Sources: torchtitan/config_manager.py of torchtitan 0.0.2 (2024-10) to 0.1 (2025-05), torchtitan/config/job_config.py up
to 0.2 (2025-10).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.formats.key_text import Entry, KeyText, leaves
from meshwright.targets import overrides
from meshwright.targets.contract import Files
from meshwright.targets.key_texts import Keys, nested_tables

RECOMPUTE = "activation_checkpoint"
EVERY = "every_layer"
"""Key that says of how many layers one is computed again, where selective recompute goes by layers."""
IN_2024 = "stages_of_2024"
"""Whether layers are dealt to stages as before embedding and head counted as some."""
_DEGREES = (
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "tensor_parallel_degree",
)
_OF_PIPELINES = (
    "pipeline_parallel_degree",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "pipeline_parallel_split_points",
    "context_parallel_degree",
    "context_parallel_rotate_method",
    "enable_compiled_autograd",
)
MOVED = {
    "training.batch_size": "training.local_batch_size",
    "training.data_parallel_degree": "parallelism.data_parallel_shard_degree",
    **{f"training.{name}": f"parallelism.{name}" for name in (*_DEGREES, "fsdp_reshard_after_forward")},
    **{f"{above}.disable_loss_parallel": "parallelism.disable_loss_parallel" for above in ("training", "experimental")},
    **{f"experimental.{name}": f"parallelism.{name}" for name in _OF_PIPELINES},
    "training.compile": "compile.enable",
    **{
        f"{above}.enable_async_tensor_parallel": "compile.enable_async_tensor_parallel"
        for above in ("experimental", "training", "parallelism")
    },
}
"""Keys of earlier versions by their path, with today's."""
WITHOUT_EFFECT = (
    "training.dataset",
    "training.dataset_path",
    "training.warmup_steps",
    "training.seed",
    "training.deterministic",
    "training.data_cache_path",
    "parallelism.enable_compiled_autograd",
)
"""Keys that name data, or change no plan."""
_STEPS = "pipeline_parallel_microbatches"
_EXPERT_TENSOR = "expert_tensor_parallel_degree"
_EXCHANGES = "expert_parallel_comm_backend"
_MODES = {"full": "FullAC", "none": "none", "selective": "SelectiveAC"}


NAMES = {
    RECOMPUTE: "mode",
    EVERY: "selective_ac_option",
    "training.local_batch_size": "batch_size",
    "compile.enable": "compile =",
}
"""What the text of TOML calls keys whose path ends in another name."""


def with_todays_names(files: Files) -> Files:
    """Files of a run whose words of the command have today's names of keys, where they have earlier ones."""
    text = files.get(overrides.FILE)
    if text is None:
        return files
    said = {MOVED.get(name, name): value for name, value in json.loads(text).items()}
    return {**files, overrides.FILE: json.dumps(said)}


def names_in(text: str) -> dict[str, str]:
    """Paths of these names that stand in a text, with the name."""
    return {path: name for path, name in NAMES.items() if re.search(rf"^\s*{name}", text, re.MULTILINE)}


def toml_keys(text: str) -> tuple[Keys | None, str]:
    """The configuration of versions before 0.2 by today's names, or why it is no TOML."""
    try:
        said: Keys = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    again = said.pop(RECOMPUTE, {})
    again = again if isinstance(again, dict) else {}
    flat = {MOVED.get(path, path): value for path, value in leaves(said)}
    in_2024 = any(path.startswith("experimental.pipeline_") for path, _ in leaves(said)) or any(
        path.endswith(f".{_STEPS}") for path in flat
    )
    _pipelines(flat, earlier="experimental" in said or "training.batch_size" in dict(leaves(said)))
    if 1 in (flat.get(f"parallelism.{_EXPERT_TENSOR}"), flat.get("parallelism.expert_parallel_degree", 1)):
        # Experts are whole on their ranks, as they always are now; without expert ranks it had no effect.
        flat.pop(f"parallelism.{_EXPERT_TENSOR}", None)
    if flat.get(f"parallelism.{_EXCHANGES}") == "standard":
        flat.pop(f"parallelism.{_EXCHANGES}")  # as experts exchange tokens where no key says it
    for above in ("training", "float8"):
        if flat.pop(f"{above}.enable_float8_linear", False):
            flat["model.converters"] = ["float8"]
    keys = nested_tables({path: value for path, value in flat.items() if path not in WITHOUT_EFFECT})
    if in_2024:
        keys[IN_2024] = True
    return keys | recomputed(again), ""


def recomputed(table: Mapping[str, Any]) -> Keys:
    """What a table or a call of `ActivationCheckpointConfig` says is computed again, by today's names.

    Args:
        table: its mode and its option.
    """
    mode, option = str(table.get("mode", "selective")).lower(), str(table.get("selective_ac_option", "2"))
    layers = mode == "selective" and option.isdecimal() and 0 < int(option) < 1000
    return ({EVERY: int(option)} if layers else {}) | {RECOMPUTE: _MODES.get(mode, mode)}


def _pipelines(flat: Keys, *, earlier: bool) -> None:
    """Sequences of a micro-batch, where a file counts micro-batches: those of a local batch, by default one a stage."""
    stages = flat.get("parallelism.pipeline_parallel_degree", 1)
    counted = [flat.pop(f"{above}.{_STEPS}", None) for above in ("experimental", "parallelism")]
    steps = next((count for count in counted if count), stages if earlier else None)
    local = flat.get("training.local_batch_size", 8)
    if not all(type(number) is int and number > 0 for number in (stages, steps, local)) or stages == 1:
        return
    if local % steps == 0:
        flat["parallelism.pipeline_parallel_microbatch_size"] = local // steps


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlText(KeyText):
    """TOML whose keys may have names of an earlier version."""

    def with_value(self, path: str, value: Any) -> str | None:
        """The text with one value changed, as for other texts; a new key stands behind the last one of its table."""
        entry = self.entries.get(tuple(path.split(".")))
        if entry is not None:
            return f"{self.text[: entry.value]}{self.said(value)}{self.text[entry.end :]}"
        place = f"{RECOMPUTE}.mode" if path == RECOMPUTE else self._place(path)
        if place is None:
            return None
        above, _, name = place.rpartition(".")
        own = [entry for entry in self.entries.values() if self._table(entry) == above]
        line = f"{name} = {self.said(value)}"
        head = re.search(rf"^\[{re.escape(above)}\]", self.text, re.MULTILINE)
        if head is None:
            return f"{self.text.rstrip()}\n\n[{above}]\n{line}\n"
        newline = self.text.find("\n", max((entry.end for entry in own), default=head.end()))
        at = len(self.text) if newline < 0 else newline
        return f"{self.text[:at]}\n{line}{self.text[at:]}"

    def without(self, path: str) -> str | None:
        """The text without the line of a key."""
        entry = self.entries.get(tuple(path.split(".")))
        if entry is None:
            return None
        first, last = self.text.rfind("\n", 0, entry.start) + 1, self.text.find("\n", entry.end)
        return self.text[:first] + ("" if last < 0 else self.text[last + 1 :])

    def _table(self, entry: Entry) -> str:
        """The table that a key stands in."""
        heads = re.findall(r"^\[([A-Za-z0-9_.]+)\]", self.text[: entry.start], re.MULTILINE)
        return heads[-1] if heads else ""

    def _place(self, path: str) -> str | None:
        """Where the version that the file is for has a key of today's name; None where it has no such key."""
        earliest = bool(re.search(r"^\[experimental\]|^batch_size\b", self.text, re.MULTILINE))
        names = [own for own, today in MOVED.items() if today == path]
        if earliest:
            own = [name for name in names if not name.startswith("parallelism.")]
            return own[0] if own else path if path in _ALWAYS else None
        if path.startswith("compile.") and not re.search(r"^\[compile\]", self.text, re.MULTILINE):
            return names[-1] if names else None
        return None if path in _LATER else path


_ALWAYS = ("training.enable_cpu_offload", "training.seq_len", "training.mixed_precision_param", "training.steps")
"""Keys that every version has."""
_LATER = (
    "parallelism.module_fqns_per_model_part",
    "parallelism.enable_sequence_parallel",
    "training.disable_cuda_graphs",
)
"""Keys of Python configurations alone."""


def toml_text(text: str, values: Mapping[str, Any]) -> TomlText:
    """TOML as a text that can be edited, its keys by today's paths.

    Args:
        text: the text that has been read without an error.
        values: what its keys hold, by today's paths.
    """
    entries: dict[tuple[str, ...], Entry] = {}
    section = ""
    for match in re.finditer(r"^[ \t]*(?:\[([A-Za-z0-9_.]+)\]|([A-Za-z0-9_]+)[ \t]*=[ \t]*)", text, re.MULTILINE):
        if match[1] is not None:
            section = match[1]
            continue
        path = f"{section}.{match[2]}"
        if path == f"{RECOMPUTE}.mode":
            path = RECOMPUTE
        end = match.end() + _length(text[match.end() :])
        parts = tuple(MOVED.get(path, path).split("."))
        entries[parts] = Entry(start=match.start(2), value=match.end(), end=end)
    return TomlText(text=text, entries=entries, said=_written, key=str, values=values, joint=" = ")


_STRING = re.compile(r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")


def _length(rest: str) -> int:
    """Characters of the value that a text begins with."""
    quoted = _STRING.match(rest)
    if quoted is not None:
        return quoted.end()
    if rest.startswith("["):
        return rest.find("]") + 1
    line = rest.partition("\n")[0].partition("#")[0]
    return len(line.rstrip())


def _written(value: Any) -> str:
    modes = {ours: theirs for theirs, ours in _MODES.items()} | {"SelectiveAC": "selective"}
    return json.dumps(modes.get(value, value) if isinstance(value, str) else value)
