"""Checkpoints: a folder with one file per shard and a table of what they hold; restored onto any sharding."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from meshwright.compiler.tracing.weak_types import as_weak, is_weak
from meshwright.errors import InputError, Problem, nearest
from meshwright.runtime.host_arrays import HostForm, from_host, host_form, to_host
from meshwright.runtime.stacked import StackedArray
from meshwright.runtime.workers.remote_arrays import RemoteArray

TABLE = "checkpoint.json"
SCHEMA = "meshwright.checkpoint/1"
_SHARD = re.compile(r"[0-9]+\.[0-9]+\.npy")


def save_checkpoint(path: str | Path, tree: Any) -> None:
    """Write a state; what is at the path is replaced once all is written.

    Args:
        path: the path of the folder.
        tree: the tree of arrays, on any devices; every shard is written once, with its sharding.
    """
    folder = Path(path)
    begun = folder.with_name(folder.name + ".part")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    leaves = {}
    for number, (key, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(tree)):
        shards = []
        for part, (corner, value) in enumerate(_shards(leaf)):
            name = f"{number}.{part}.npy"
            # As bytes: numpy has no name for bfloat16 and its like.
            np.save(begun / name, np.ascontiguousarray(value).reshape(-1).view(np.uint8))
            shards.append({"file": name, "corner": corner, "shape": list(value.shape)})
        leaves[jax.tree_util.keystr(key)] = {"shape": list(np.shape(leaf)), "dtype": _dtype(leaf), "shards": shards}
    (begun / TABLE).write_text(json.dumps({"schema": SCHEMA, "leaves": leaves}, indent=1))
    replaced = _replaced(folder)
    # Where a kill left the last checkpoint under that name, it stays until the new one has its own.
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    begun.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)


def last_checkpoint(path: str | Path) -> Path | None:
    """The folder of the last whole checkpoint: the path, or beside it the one that a killed `save_checkpoint` replaced.

    Args:
        path: the path that `save_checkpoint` was given.
    """
    folder = Path(path)
    return next((one for one in (folder, _replaced(folder)) if (one / TABLE).is_file()), None)


def _replaced(folder: Path) -> Path:
    return folder.with_name(folder.name + ".old")


def restore_checkpoint(path: str | Path, like: Any) -> Any:
    """Read a state onto other devices or shardings than it was written from.

    Args:
        path: the path of the folder.
        like: tree of arrays or `jax.ShapeDtypeStruct`: each leaf is placed by its sharding, where it has one; a device
            reads only the files that its part of the leaf overlaps.

    Returns:
        A tree like it, of what was saved.

    Raises:
        InputError: there is no whole checkpoint, or it is of another tree; with every leaf that differs.
    """
    folder = last_checkpoint(path) or Path(path)
    table = _table(folder)
    wanted = jax.tree_util.tree_leaves_with_path(like)
    problems = list(_differences(folder, table, {jax.tree_util.keystr(key): leaf for key, leaf in wanted}))
    if problems:
        raise InputError(problems)

    def restored(key: Any, leaf: Any) -> Any:
        value = _restored(folder, table[jax.tree_util.keystr(key)], leaf)
        return as_weak(value) if is_weak(leaf) else value

    return jax.tree_util.tree_map_with_path(restored, like)


def _dtype(leaf: Any) -> str:
    return str(leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype)


def _shards(leaf: Any) -> Iterator[tuple[list[int], np.ndarray]]:
    """Every part of an array once, with the index of its first entry."""
    if isinstance(leaf, StackedArray):
        for first, rows in zip(leaf.bounds, leaf.parts, strict=False):
            for corner, value in _shards(rows):
                yield [first + corner[0], *corner[1:]], value
        return
    if not isinstance(leaf, jax.Array) or jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        whole = np.asarray(leaf) if isinstance(leaf, RemoteArray) else to_host(leaf)
        yield [0] * whole.ndim, whole
        return
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            yield [one.start or 0 for one in shard.index], np.asarray(shard.data)


def _restored(folder: Path, entry: dict[str, Any], like: Any) -> Any:
    form = host_form(tuple(entry["shape"]), entry["dtype"])
    if isinstance(like, StackedArray) and not form.keys:
        return StackedArray(
            [
                _restored_rows(folder, entry, form, first, rows)
                for first, rows in zip(like.bounds, like.parts, strict=False)
            ],
            like.bounds,
        )
    sharding = getattr(like, "sharding", None)
    if form.keys or sharding is None:
        value = from_host(_part(folder, entry, form, tuple(slice(0, size) for size in form.shape)), form.keys)
        return value if sharding is None else jax.device_put(value, sharding)
    return jax.make_array_from_callback(form.shape, sharding, lambda index: _part(folder, entry, form, index))


def _restored_rows(folder: Path, entry: dict[str, Any], form: HostForm, first: int, like: Any) -> Any:
    """Rows of an array from one on, placed like an array of as many."""

    def box(index: tuple[slice, ...]) -> np.ndarray:
        low, high, _ = index[0].indices(like.shape[0])
        return _part(folder, entry, form, (slice(first + low, first + high), *index[1:]))

    sharding = getattr(like, "sharding", None)
    if sharding is None:
        return box(tuple(slice(0, size) for size in like.shape))
    return jax.make_array_from_callback(like.shape, sharding, box)


def _part(folder: Path, entry: dict[str, Any], form: HostForm, index: tuple[slice, ...]) -> np.ndarray:
    """A box of an array, put together from the shards that overlap it."""
    bounds = [one.indices(size)[:2] for one, size in zip(index, form.shape, strict=True)]
    box = np.empty([stop - start for start, stop in bounds], form.dtype)
    for shard in entry["shards"]:
        edges = [(corner, corner + size) for corner, size in zip(shard["corner"], shard["shape"], strict=True)]
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, edges, strict=True)]
        if all(low < high for low, high in both) or not both:
            body = np.load(folder / shard["file"], mmap_mode="r").view(form.dtype).reshape(shard["shape"])
            there = tuple(slice(low - edge, high - edge) for (low, high), (edge, _) in zip(both, edges, strict=True))
            here = tuple(slice(low - start, high - start) for (low, high), (start, _) in zip(both, bounds, strict=True))
            box[here] = body[there]
    return box


def _table(folder: Path) -> dict[str, dict[str, Any]]:
    try:
        table = json.loads((folder / TABLE).read_text())
    except (OSError, ValueError) as error:
        why = f"its {TABLE} cannot be read: {error}"
        raise InputError(
            Problem(
                what=f"{folder} is no checkpoint",
                why=why,
                fix="give the folder that save_checkpoint was given",
                field="path",
            )
        ) from None
    if not isinstance(table, dict) or table.get("schema") != SCHEMA:
        raise InputError(
            Problem(
                what=f"{folder} is no checkpoint of this version",
                why=f"its schema is not {SCHEMA}",
                fix="restore it with the version that wrote it",
                field="path",
            )
        )
    return table["leaves"]


def _differences(folder: Path, table: dict[str, dict[str, Any]], wanted: dict[str, Any]) -> Iterator[Problem]:
    for key, leaf in wanted.items():
        if key not in table:
            close = nearest(key, table)
            yield Problem(
                what=f"the checkpoint has no leaf {key}",
                why=f"{folder} is of another tree",
                fix=f"did you mean {' or '.join(close)}?" if close else "restore the tree that was saved",
                field=key,
            )
            continue
        saved = tuple(table[key]["shape"]), table[key]["dtype"]
        asked = tuple(np.shape(leaf)), _dtype(leaf)
        if saved != asked:
            yield Problem(
                what=f"leaf {key} was saved as {saved[1]}{list(saved[0])}, not {asked[1]}{list(asked[0])}",
                why="shape and dtype are kept",
                fix="restore into the model that was saved",
                field=key,
            )
        files = [one["file"] for one in table[key]["shards"]]
        away = [name for name in files if not _SHARD.fullmatch(str(name))]
        if away:
            yield Problem(
                what=f"leaf {key} names {str(away[0])[:80]!r}",
                why="a shard is a file of the checkpoint",
                fix="restore what save_checkpoint wrote",
                field=key,
            )
            continue
        missing = [name for name in files if not (folder / name).is_file()]
        if missing:
            yield Problem(
                what=f"leaf {key} lacks {', '.join(missing[:3])}",
                why=f"{folder} is not whole",
                fix="go back to an older checkpoint",
                field=key,
            )
    for key in table.keys() - wanted.keys():
        yield Problem(
            what=f"nothing was asked for the leaf {key} of the checkpoint",
            why="trees are restored whole",
            fix="restore the tree that was saved",
            field=key,
        )
