"""How many parameters lie in files of weights: their headers are read, never the weights.

Sources: safetensors format, github.com/huggingface/safetensors, README; GGUF, github.com/ggml-org/ggml, docs/gguf.md,
versions 2 and 3; both as of 2026-11.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.formats.gguf import gguf_header

__all__ = ["Counted", "count_beside", "count_gguf", "count_safetensors"]

MAX_HEADER = 64 * 2**20
INDEX = "model.safetensors.index.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
PACKED = frozenset({"U8", "I8", "I32", "U32", "F4", "F8_E8M0"})
"""Formats of safetensors that hold several weights in an element, or scales."""
NOT_WEIGHTS = re.compile(r"rope_(freqs|factors_(long|short))\.weight|.*(_scale|_scale_inv|\.inv_freq|correction_bias)")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameters found in weights."""

    parameters: int
    where: str
    """The file or files."""


def count_beside(folder: str | os.PathLike[str], config: Mapping[str, object]) -> Counted | None:
    """Parameters in the weights of a folder: shards of safetensors, their index, or GGUF; None where none tells.

    Args:
        folder: the folder where a config.json lies.
        config: the configuration that config, for the number format of weights of which only the index is there.

    Returns:
        The count, or None: no weights, packed formats, or a file that does not read.
    """
    here = Path(folder)
    try:
        shards = _files(here, "*.safetensors")
        index = here / INDEX
        if shards and not (index.is_file() and len(shards) < _shards_of(index)):
            return count_safetensors(shards)
        if index.is_file():
            return _from_index(index, config)
        gguf = _files(here, "*.gguf")
        return count_gguf(_one_model(gguf)) if gguf else None
    except (OSError, ValueError, RecursionError, struct.error, KeyError, TypeError, AttributeError):
        return None


def _files(folder: Path, pattern: str) -> list[Path]:
    """Files of a folder that a pattern names, in order; pipes of such a name hold no weights."""
    return sorted(path for path in folder.glob(pattern) if path.is_file())


def count_safetensors(paths: Iterable[Path]) -> Counted | None:
    """Elements of all tensors in safetensors files, scales not counted; None where weights are packed.

    Args:
        paths: the files.

    Raises:
        OSError, ValueError: if a file does not read.
    """
    total, files = 0, list(paths)
    for path in files:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > MAX_HEADER:
                raise ValueError(f"{path} has a header of {length} bytes")
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            if name == "__metadata__" or NOT_WEIGHTS.fullmatch(name):
                continue
            if tensor["dtype"] in PACKED:
                return None
            total += _product(tensor["shape"])
    return Counted(parameters=total, where=files[0].name if len(files) == 1 else f"{len(files)} safetensors files")


def count_gguf(paths: Iterable[Path]) -> Counted:
    """Elements of all tensors that GGUF files name.

    Args:
        paths: the file, or the parts of one model.

    Raises:
        OSError, ValueError: if a file does not read.
    """
    total, files = 0, list(paths)
    for path in files:
        with path.open("rb") as file:
            _, tensors = gguf_header(file)
        total += sum(_product(shape) for name, shape in tensors.items() if not NOT_WEIGHTS.fullmatch(name))
    return Counted(parameters=total, where=files[0].name)


def _product(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def _index(path: Path) -> dict[str, Any]:
    """What an index of shards says."""
    with path.open("rb") as file:
        content = file.read(MAX_HEADER + 1)
    if len(content) > MAX_HEADER:
        raise ValueError(f"{path} has more than {MAX_HEADER} bytes")
    found: dict[str, Any] = json.loads(content)
    return found


def _shards_of(index: Path) -> int:
    return len(set(_index(index)["weight_map"].values()))


def _from_index(index: Path, config: Mapping[str, object]) -> Counted | None:
    """What an index says: its number of parameters, or its bytes by the config's number format."""
    stated = _index(index).get("metadata") or {}
    if isinstance(stated.get("total_parameters"), int):
        return Counted(parameters=stated["total_parameters"], where=index.name)
    text = config.get("text_config")
    formats = [
        part.get(key) for part in (config, text) if isinstance(part, Mapping) for key in ("dtype", "torch_dtype")
    ]
    width = next((DTYPE_BYTES[said] for said in formats if isinstance(said, str) and said in DTYPE_BYTES), None)
    size = stated.get("total_size")
    if width is None or not isinstance(size, (int, float)) or config.get("quantization_config"):
        return None
    return Counted(parameters=int(size) // width, where=index.name)


def _one_model(paths: list[Path]) -> list[Path]:
    """The parts of the first model among GGUF files."""
    first = _SHARD.fullmatch(paths[0].name)
    if first is None:
        return paths[:1]
    return [path for path in paths if (part := _SHARD.fullmatch(path.name)) and part["stem"] == first["stem"]]
