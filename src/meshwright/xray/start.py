"""Starts one rank in a process of its own: the framework is imported there, never here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.xray.traced import Traced

LIMIT_S = 1800.0
PACKAGES = {"megatron": "megatron-core", "torchtitan": "torchtitan", "module": "transformers"}
"""What pip calls each framework."""


def traced(question: dict[str, Any], python: str | None = None, limit_s: float = LIMIT_S) -> Traced:
    """What one rank of a framework does.

    Args:
        question: `framework`, `rank`, `world` and what the framework takes besides.
        python: an interpreter that has the framework; this one by default.
        limit_s: the longest that it may take.

    Raises:
        UnsupportedError: the framework is not installed there, or refuses the job.
        MeshwrightError: it takes too long, or ends without an answer.
    """
    framework = question["framework"]
    program = python or sys.executable
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        ended = subprocess.run(
            [program, "-P", "-m", "meshwright.xray"],  # -P: nothing of the working folder is imported
            input=json.dumps(question),
            capture_output=True,
            text=True,
            timeout=limit_s,
            env={**os.environ, "PYTHONPATH": path, "TORCHDYNAMO_DISABLE": "1"},
            check=False,
        )
    except OSError as error:
        why = f"{error.strerror or error}"
        raise InputError(
            what=f"{program!r} does not start", why=why, fix="name a Python interpreter", field="python"
        ) from None
    except subprocess.TimeoutExpired:
        what, fix = f"the rank was not done after {limit_s:,.0f} s", "name fewer micro-batches with --micro-batches"
        raise MeshwrightError(what=what, why="it runs on one core", fix=fix) from None
    try:
        found = json.loads(ended.stdout)
    except json.JSONDecodeError:
        last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        what = f"the process that ran {PACKAGES[framework]} ended with {ended.returncode}"
        raise MeshwrightError(what=what, why=last[:300]) from None
    if found.get("missing"):
        raise _not_installed(framework, str(found["missing"]), program)
    if "error" in found:
        what = f"{PACKAGES[framework]} does not run this job here"
        raise UnsupportedError(what=what, why=found["error"], field="framework", code="MW423")
    return Traced.of(found)


def _not_installed(framework: str, module: str, program: str) -> UnsupportedError:
    package = PACKAGES[framework]
    own = program == sys.executable
    fix = "pip install 'meshwright[xray]'" if framework != "torchtitan" else "pip install torchtitan"
    why = f"the module {module!r} is missing" + ("" if own else f" where {program} looks")
    fix = f"{fix}, or name an interpreter that has it with --python"
    return UnsupportedError(what=f"{package} cannot be imported", why=why, fix=fix, field="python", code="MW409")
