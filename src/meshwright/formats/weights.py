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
from typing import IO

__all__ = ["Counted", "count_beside", "count_gguf", "count_safetensors"]

MAX_HEADER = 64 * 2**20
INDEX = "model.safetensors.index.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}
PACKED = frozenset({"U8", "I8", "I32", "U32", "F4", "F8_E8M0"})
"""Formats of safetensors that hold several weights in an element, or scales."""
NOT_WEIGHTS = re.compile(r"rope_(freqs|factors_(long|short))\.weight|.*(_scale|_scale_inv|\.inv_freq|correction_bias)")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-\d{5}\.gguf")
_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of GGUF values by type; 8 is text, 9 a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Parameters found in weights."""

    parameters: int
    where: str
    """The file or files."""


def count_beside(folder: str | os.PathLike[str], config: Mapping[str, object]) -> Counted | None:
    """Parameters in the weights of a folder: shards of safetensors, their index, or GGUF; None where none tells.

    Args:
        folder: where a config.json lies.
        config: that config, for the number format of weights of which only the index is there.

    Returns:
        The count, or None: no weights, packed formats, or a file that does not read.
    """
    here = Path(folder)
    try:
        shards = sorted(here.glob("*.safetensors"))
        index = here / INDEX
        if shards and not (index.is_file() and len(shards) < _shards_of(index)):
            return count_safetensors(shards)
        if index.is_file():
            return _from_index(index, config)
        gguf = sorted(here.glob("*.gguf"))
        return count_gguf(_one_model(gguf)) if gguf else None
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError):
        return None


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
            magic, version, tensors, values = struct.unpack("<4sIQQ", file.read(24))
            if magic != b"GGUF" or version not in (2, 3):
                raise ValueError(f"{path} is not GGUF 2 or 3")
            for _ in range(values):
                _text(file)
                _skip(file, *struct.unpack("<I", file.read(4)))
            for _ in range(tensors):
                name = _text(file)
                (rank,) = struct.unpack("<I", file.read(4))
                shape = struct.unpack(f"<{rank}Q", file.read(8 * rank))
                file.read(12)  # its type and where it lies
                total += 0 if NOT_WEIGHTS.fullmatch(name) else _product(shape)
    return Counted(parameters=total, where=files[0].name)


def _product(shape: Iterable[int]) -> int:
    total = 1
    for size in shape:
        total *= int(size)
    return total


def _text(file: IO[bytes]) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > MAX_HEADER:
        raise ValueError("a text is too long")
    return file.read(length).decode("utf-8", "replace")


def _skip(file: IO[bytes], kind: int) -> None:
    """Pass over one value."""
    if kind == 8:
        _text(file)
    elif kind == 9:
        inner, length = struct.unpack("<IQ", file.read(12))
        if inner in _FIXED:
            file.seek(_FIXED[inner] * length, os.SEEK_CUR)
        else:
            for _ in range(length):
                _skip(file, inner)
    else:
        file.seek(_FIXED[kind], os.SEEK_CUR)


def _shards_of(index: Path) -> int:
    return len(set(json.loads(index.read_bytes())["weight_map"].values()))


def _from_index(index: Path, config: Mapping[str, object]) -> Counted | None:
    """What an index says: its number of parameters, or its bytes by the config's number format."""
    stated = json.loads(index.read_bytes()).get("metadata") or {}
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
