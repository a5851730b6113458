"""The Python API: names, laziness, and the two lines everybody types first."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import meshwright as mw
from meshwright.errors import InputError

NAMES = {
    *("plan", "estimate", "check", "explain", "compare", "size", "trace", "PlanSet"),
    *("report", "sweep", "tune", "export", "schedule", "validate", "calibrate", "profile", "run", "verify", "xray"),
    *("Parallelizer", "Island", "ModelSlice", "PartialPlan", "__version__"),
    *("parallelize", "timeline", "grad", "value_and_grad", "LocalPipeline", "PipeshardParallel"),
    *("save_checkpoint", "restore_checkpoint", "Checkpoints", "CountedBatches"),
    *("Auto", "FromPlan", "Hosts", "StagesPlan", "plan_step", "stages_svg"),
    *("FollowParallel", "Islands", "Listing", "difference", "layer_boundary"),
    *("DataParallel", "ShardParallel", "Zero2Parallel", "Zero3Parallel"),
    *("MeshwrightError", "InputError", "UnsupportedError", "InfeasibleError"),
}


def fresh(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_names_are_there() -> None:
    assert set(mw.__all__) == NAMES
    assert set(dir(mw)) >= NAMES
    for name in NAMES:
        assert getattr(mw, name) is not None
    assert mw.__version__ == version("meshwright")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="plann"):
        mw.plann  # noqa: B018


def test_without_jax_reading_help_does_not_fail_and_says_which_names_need_it() -> None:
    code = (
        "import sys, inspect, pydoc\n"
        "class NoJax:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'jax':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoJax())\n"
        "import meshwright as mw\n"
        "inspect.getmembers(mw)\n"
        "text = pydoc.plain(pydoc.render_doc(mw))\n"
        "print('meshwright[jax]' in text and 'PipeshardParallel' in text, 'grad' in dir(mw), 'plan(' in text)\n"
        "try:\n    mw.grad\nexcept ImportError as error:\n    print(error)"
    )
    first, second = fresh(code).splitlines()
    assert first == "True False True"
    assert second == "meshwright.grad needs JAX: pip install 'meshwright[jax]'"


def test_importing_costs_nothing() -> None:
    loaded = fresh("import meshwright, sys; print(sorted({m.split('.')[0] for m in sys.modules}))")
    for heavy in ("numpy", "rich", "pydantic", "typer"):
        assert f"'{heavy}'" not in loaded


def test_planning_does_not_load_what_only_printing_needs() -> None:
    code = "import meshwright, sys; meshwright.estimate('llama-3-8b', 'z1', '8xH100'); print('rich' in sys.modules)"
    assert fresh(code) == "False"


@pytest.mark.parametrize(
    "before",
    ["", "import meshwright.estimate.price", "mw.plan", "from meshwright.search.search import search", "mw.estimate"],
)
def test_estimate_is_a_verb_whatever_was_loaded_before(before: str) -> None:
    code = (
        f"import meshwright as mw\n{before}\nfound = mw.estimate('llama-3-8b', 'z1', '8xH100')\n"
        "import meshwright.estimate.price as price\nprint(len(found), price.__name__)"
    )
    assert fresh(code) == "1 meshwright.estimate.price"


def test_the_first_lines() -> None:
    plans = mw.plan("llama-3-8b", cluster="8xH100", seq_len=8192, global_batch=16)
    best = plans[0]
    assert isinstance(plans, mw.PlanSet)
    assert best.explain().ladder
    assert best.export("megatron").files
    assert mw.compare(best, plans[1]).text
    assert mw.check(None, best).ok
    assert mw.estimate("llama-3-8b", best.plan, "8xH100", plans.workload)[0].estimate == best.estimate


def test_devices_without_a_name_are_the_only_thing_wrong() -> None:
    with pytest.raises(InputError) as error:
        mw.plan("llama-3-8b", gpus=8)
    assert [(one.field, one.fix) for one in error.value.problems] == [("gpus", "for example gpus='8xH100'")]
