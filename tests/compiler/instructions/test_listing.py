"""Instruction lists as files: read back they print, pass the check and compare as the ones that were saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

import meshwright as mw
from meshwright.compiler.instructions.verify import verify_lists
from meshwright.errors import InputError
from tests.runtime.small import batch, initial, step

pytestmark = pytest.mark.filterwarnings("ignore::meshwright.compiler.idle_devices.IdleDevicesWarning")


def compiled(function: Any = step, **options: Any) -> Any:
    method = mw.PipeshardParallel(num_stages=2, **{"num_micro_batches": 4, "zero": 3, **options})
    return mw.parallelize(function, method=method).lower(jax.eval_shape(initial), jax.eval_shape(batch))


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    one = compiled()
    one.save(tmp_path / "lists.json")
    read = mw.Listing.load(tmp_path / "lists.json")
    assert str(read) == str(one.program)
    assert verify_lists(read.program) == one.verified
    assert mw.difference(read, one.program) == ""
    assert read.program.buffers == one.program.buffers
    assert set(read.executables) == set(one.program.executables)


def test_inexact_lists_stay_marked(tmp_path: Path) -> None:
    def untied(state: Any, batch: Any) -> Any:
        """The same, of a model without a shared matrix."""
        weights, momentum, count = state

        def loss(layers: Any, batch: Any) -> Any:
            return ((batch["x"] @ layers[0] @ layers[1] - batch["x"]) ** 2).mean()

        value, gradients = mw.value_and_grad(loss)(weights["layers"], batch)
        layers = jax.tree.map(lambda weight, change: weight - 0.1 * change, weights["layers"], gradients)
        return ({**weights, "layers": layers}, momentum, count + 1), value

    one = compiled(untied, schedule="pipedream", num_micro_batches=4)
    one.save(tmp_path / "lists.json")
    read = mw.Listing.load(tmp_path / "lists.json")
    assert "inexact: pipedream makes 4 updates" in str(read)
    assert "inexact: pipedream makes 4 updates" in one.explain()
    assert not verify_lists(read.program).exact


def test_plans_keep_their_lists(tmp_path: Path) -> None:
    run = mw.parallelize(step, method=mw.Auto(num_micro_batches=2))
    one = run.lower(jax.eval_shape(initial), jax.eval_shape(batch))
    one.save(tmp_path / "plan.json")
    assert mw.StagesPlan.load(tmp_path / "plan.json") == one.plan
    again = mw.parallelize(step, method=mw.FromPlan(plan=mw.StagesPlan.load(tmp_path / "plan.json")))
    lists = again.lower(jax.eval_shape(initial), jax.eval_shape(batch)).program
    assert mw.difference(mw.Listing.load(tmp_path / "plan.json"), lists) == ""


def test_the_page_shows_the_lists_of_this_step() -> None:
    method = mw.PipeshardParallel(num_stages=2, num_micro_batches=2, devices=jax.devices()[:2])
    run = mw.parallelize(step, method=method, donate=True)
    page = Path(__file__).parents[3] / "docs" / "train-steps.md"
    assert f"```text\n{run.lower(jax.eval_shape(initial), jax.eval_shape(batch)).program}\n```" in page.read_text()


def test_what_differs_is_told_by_mesh() -> None:
    one, same = compiled(), compiled()
    assert mw.difference(one.program, same.program) == ""
    order = mw.difference(one.program, compiled(schedule="gpipe").program)
    assert "--- mesh 0" in order
    assert "RUN F0.3" in order
    spread = mw.difference(one.program, compiled(zero=0).program)
    assert "-RUN F0.0: float32[4, 4] split ['data']" in spread
    assert "+RUN F0.0: float32[4, 4] float32[4, 4]" in spread

    def faster(state: Any, batch: Any) -> Any:
        (weights, momentum, count), value = step(state, batch)
        return (weights, jax.tree.map(lambda one: 2 * one, momentum), count), value

    changed = mw.difference(one.program, compiled(faster).program)
    assert "+++ executables" in changed
    assert "update0" in changed
    assert "F0 " not in changed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no file"),
        ("{", "is not JSON"),
        ("{}", "holds no lists"),
        ('{"program": {"schema": "other/1"}}', "lists of schema other/1"),
        ('{"program": {"schema": "meshwright.program/1"}}', "cannot be read: KeyError 'lists'"),
        ('{"program": {"schema": "meshwright.program/1", "lists": [[{"op": "JUMP"}]]}}', "cannot be read"),
    ],
)
def test_files_that_hold_no_lists_are_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "lists.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=words):
        mw.Listing.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be used"):
        mw.Listing.load(path)
