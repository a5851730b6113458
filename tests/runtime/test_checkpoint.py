"""A state written from one sharding is read onto another."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.errors import InputError
from meshwright.runtime.checkpoint import TABLE, restore_checkpoint, save_checkpoint

GRID = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("a", "b"))


def state_placement(value: Any, *spec: Any) -> jax.Array:
    return jax.device_put(value, NamedSharding(GRID, PartitionSpec(*spec)))


def state() -> Any:
    matrix = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    return {
        "rows": state_placement(matrix, "b"),
        "tiles": state_placement(jnp.asarray(matrix, jnp.bfloat16), "a", "b"),
        "whole": state_placement(matrix[:3]),
        "key": jax.random.key(7),
        "count": jnp.int32(5),
        "plain": 2.5,
    }


def test_what_is_read_is_what_was_written_on_any_sharding(tmp_path: Path) -> None:
    saved = state()
    save_checkpoint(tmp_path / "one", saved)
    save_checkpoint(tmp_path / "one", saved)
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
    assert len(list((tmp_path / "one").glob("0.*.npy"))) == 1
    like = {
        **saved,
        "rows": jax.ShapeDtypeStruct((8, 12), np.float32, sharding=NamedSharding(GRID, PartitionSpec("a", "b"))),
        "tiles": state_placement(jnp.zeros((8, 12), jnp.bfloat16), None, ("a", "b")[0]),
        "whole": state_placement(np.zeros((3, 12), np.float32), None, "b"),
    }
    read = restore_checkpoint(tmp_path / "one", like)
    for name in ("rows", "tiles", "whole"):
        np.testing.assert_array_equal(np.asarray(read[name]), np.asarray(saved[name]))
        assert read[name].dtype == saved[name].dtype
        assert read[name].sharding == like[name].sharding
    assert (jax.random.key_data(read["key"]) == jax.random.key_data(saved["key"])).all()
    assert (int(read["count"]), float(read["plain"])) == (5, 2.5)
    assert [read[name].weak_type for name in ("count", "plain")] == [False, True]


def test_replicated_values_are_written_once_and_split_ones_in_parts(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", {"split": state()["rows"], "whole": state()["whole"]})
    assert len(list((tmp_path / "one").glob("0.*.npy"))) == 4
    assert len(list((tmp_path / "one").glob("1.*.npy"))) == 1


def test_a_checkpoint_of_something_else_is_refused_with_every_reason(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", {"weight": jnp.ones(4), "bias": jnp.ones(2), "gone": jnp.ones(1)})
    (tmp_path / "one" / "2.0.npy").unlink()
    with pytest.raises(InputError) as caught:
        restore_checkpoint(tmp_path / "one", {"weigth": jnp.ones(4), "bias": jnp.ones(3), "weight": jnp.ones(4)})
    text = str(caught.value)
    for words in ("did you mean ['weight']", "float32[2], not float32[3]", "lacks 2.0.npy", "['gone']"):
        assert words in text
    (tmp_path / "one" / TABLE).unlink()
    with pytest.raises(InputError, match="is no checkpoint"):
        restore_checkpoint(tmp_path / "one", {})


class Killed(BaseException):
    """What ends a process at once."""


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_a_kill_while_a_checkpoint_is_replaced_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Between its two renames the last checkpoint has another name, where it is found and not removed."""
    folder, rename, left = tmp_path / "one", Path.rename, [renames]

    def killed(self: Path, target: Path) -> Path:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return rename(self, target)

    save_checkpoint(folder, {"step": np.int32(1)})
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(Path, "rename", killed)
        save_checkpoint(folder, {"step": np.int32(2)})
    assert int(restore_checkpoint(folder, {"step": np.int32(0)})["step"]) == (2 if renames == 2 else 1)
    save_checkpoint(folder, {"step": np.int32(3)})
    assert int(restore_checkpoint(folder, {"step": np.int32(0)})["step"]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_kill_before_a_new_checkpoint_is_whole_leaves_the_one_that_was_replaced(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "one", {"step": np.int32(1)})
    (tmp_path / "one").rename(tmp_path / "one.old")
    (tmp_path / "one.part").mkdir()
    save_checkpoint(tmp_path / "one", {"step": np.int32(2)})
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("name", ["../other/0.0.npy", "/tmp/0.0.npy", "0.0.npy/../../x.npy"])
def test_no_shard_lies_outside_its_folder(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path / "one", {"step": np.arange(4)})
    table = tmp_path / "one" / TABLE
    table.write_text(table.read_text().replace("0.0.npy", name))
    with pytest.raises(InputError, match="names"):
        restore_checkpoint(tmp_path / "one", {"step": np.arange(4)})
