"""What becomes of every step of the corpus under every method: `python -m tests.corpus.table`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from tests.virtual_devices import eight_devices

eight_devices()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright.errors import MeshwrightError  # noqa: E402
from tests.corpus import (  # noqa: E402, F401
    agents,
    alignment,
    control,
    denoisers,
    equinox_steps,
    everyday,
    fields,
    fresh,
    gradients,
    haiku_steps,
    linen,
    models,
    newest,
    nnx_steps,
    optimizers,
    pairs,
    plain,
    posted,
    posted_decoders,
    posted_objectives,
    projects_pictures,
    projects_records,
    projects_words,
    recent,
    recipes,
    recipes_decoders,
    sequence_models,
    several,
    trainers,
    unusual,
    updates,
)
from tests.corpus.case import CASES, Case, in_place  # noqa: E402
from tests.corpus.page import UNDIVIDED, page  # noqa: E402

STEPS = 5
LEAST = 0.1
"""Entries below are compared as this: Adam divides the rounding of gradients that are zero by its own size."""
METHODS: dict[str, Any] = {
    "DataParallel": lambda: mw.DataParallel(num_micro_batches=2),
    "Zero2Parallel": lambda: mw.Zero2Parallel(num_micro_batches=2),
    "Zero3Parallel": lambda: mw.Zero3Parallel(),
    "ShardParallel": lambda: mw.ShardParallel(),
    "PipeshardParallel": lambda: mw.PipeshardParallel(num_stages=2, num_micro_batches=2),
    "Auto": lambda: mw.Auto(),
}


def arrays(tree: Any) -> list[Any]:
    """Leaves that are numbers."""
    found = []
    for leaf in jax.tree.leaves(tree):
        if hasattr(leaf, "dtype"):
            if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                leaf = jax.random.key_data(leaf)
            found.append(np.asarray(leaf))
    return found


def copied(tree: Any) -> Any:
    """Objects of their own, so that what is changed in place starts anew."""
    return jax.tree.map(lambda leaf: leaf + 0 if isinstance(leaf, float) else leaf, tree)


def run(case: Case, step: Any) -> list[Any]:
    """State and last results after some calls."""
    state, result = case.state, None
    for _ in range(STEPS):
        result = case.call(step, state, case.batch)
        state = case.after(state, result)
    return arrays((state, result))


def double(tree: Any) -> Any:
    """Numbers of 64 bits."""
    wide = {jnp.dtype("float32"): jnp.float64, jnp.dtype("complex64"): jnp.complex128}
    return jax.tree.map(
        lambda leaf: leaf.astype(wide[leaf.dtype]) if getattr(leaf, "dtype", None) in wide else leaf, tree
    )


def difference(found: list[Any], expected: list[Any]) -> float:
    """Largest, over the largest entry of the same array or `LEAST`."""
    if len(found) != len(expected):
        return float("inf")
    if any((a.shape, a.dtype) != (b.shape, b.dtype) for a, b in zip(found, expected, strict=True)):
        return float("inf")
    worst = 0.0
    for one, other in zip(found, expected, strict=True):
        if not other.size:
            continue
        if other.dtype.kind not in "fc" and other.dtype.name != "bfloat16":
            worst = max(worst, 0.0 if np.array_equal(one, other) else float("inf"))
            continue
        kind = np.complex128 if other.dtype.kind == "c" else np.float64
        one, other = np.asarray(one, kind), np.asarray(other, kind)
        if not np.array_equal(np.isnan(one), np.isnan(other)):
            return float("inf")
        worst = max(worst, float(np.nanmax(np.abs(one - other)) / max(LEAST, float(np.nanmax(np.abs(other))))))
    return worst


def measured(name: str, method: str, expected: list[Any], tolerance: float, wide: bool) -> dict[str, Any]:
    """One row of the table."""
    case = built(name, wide)
    begin = time.process_time()
    row: dict[str, Any] = {"case": name, "method": method}
    try:
        step = mw.parallelize(case.step, method=METHODS[method](), **case.options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worst = difference(run(case, step), expected)
        row |= {
            "outcome": "runs" if worst <= (case.digits or (1e-5 if case.narrow else tolerance)) else "differs",
            "difference": worst,
        }
        said = getattr(step.compiled(), "idle", ())
        undivided = (one for one in said if one.startswith(UNDIVIDED))
        row["note"] = next(undivided, getattr(step.compiled(), "reductions", ""))
    except MeshwrightError as error:
        row |= {"outcome": "refused", "note": error.problems[0].what + ": " + error.problems[0].why}
    except Exception as error:
        row |= {"outcome": "crashes", "note": f"{type(error).__name__}: {str(error)[:300]}"}
    return row | {"seconds": round(time.process_time() - begin, 2)}


def built(name: str, wide: bool) -> Case:
    """A case of 32 or 64 bits."""
    case = CASES[name]()
    if not wide or case.narrow:
        return case
    from dataclasses import replace

    if case.after is in_place:
        from flax import nnx

        graph, state = nnx.split(case.state)
        return replace(case, state=nnx.merge(graph, double(state)), batch=double(case.batch))
    return replace(case, state=double(case.state), batch=double(case.batch))


def main() -> None:
    """Run and print."""
    words = argparse.ArgumentParser()
    words.add_argument("--cases", default="")
    words.add_argument("--methods", default=",".join(METHODS))
    words.add_argument("--out", default="", help="rows as JSON; those it holds already are not run again")
    words.add_argument("--x64", action="store_true")
    words.add_argument("--page", default="", help="write the page of docs")
    given = words.parse_args()
    jax.config.update("jax_enable_x64", given.x64)
    tolerance = 1e-9 if given.x64 else 1e-5
    kept = Path(given.out) if given.out else None
    known = (
        {(row["case"], row["method"]): row for row in json.loads(kept.read_text())} if kept and kept.exists() else {}
    )
    for name in CASES:
        methods = [method for method in given.methods.split(",") if (name, method) not in known]
        if not methods or (given.cases and not any(word in name for word in given.cases.split(","))):
            continue
        try:
            case = built(name, given.x64)
            expected = run(case, case.jit(case.step))
        except Exception as error:
            print(f"{name:45} BASELINE {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        for method in methods:
            row = known[name, method] = measured(name, method, expected, tolerance, given.x64)
            print(
                f"{name:45} {method:18} {row['outcome']:8} {row.get('difference', 0):8.1e} {row['seconds']:6.2f}s "
                f"{row['note'][:170]}",
                flush=True,
            )
        jax.clear_caches()
        if kept:
            kept.write_text(json.dumps(list(known.values()), indent=1))
    rows = [known[name, method] for name in CASES for method in METHODS if (name, method) in known]
    if given.page:
        Path(given.page).write_text(page(rows))
    for outcome in ("runs", "refused", "differs", "crashes"):
        print(outcome, sum(row["outcome"] == outcome for row in rows), "of", len(rows))
    sys.exit(any(row["outcome"] in ("differs", "crashes") for row in rows))


if __name__ == "__main__":
    main()
