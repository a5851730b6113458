"""`python -m meshwright.xray`: one rank in a process of its own; the question on stdin, the answer on stdout."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from importlib import metadata
from typing import Any


def main() -> None:
    """Read a question, run the rank, write what was seen."""
    warnings.simplefilter("ignore")
    question = json.loads(sys.stdin.read())
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        found = run(question)
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        name = "" if type(error).__name__ == "Missing" else f"{type(error).__name__}: "
        found = {"error": f"{name}{error}"[:2000], "missing": missing}
        if os.environ.get("MESHWRIGHT_DEBUG"):
            traceback.print_exc()
    json.dump(found, answer)


def run(question: dict[str, Any]) -> dict[str, Any]:
    """What one rank did, as the data of `Traced`."""
    started = time.perf_counter()
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from meshwright.xray.fake_rank import fake_rank
    from meshwright.xray.tape import Tape

    torch.set_num_threads(1)
    framework = question.pop("framework")
    rank, world = question.pop("rank"), question.pop("world")
    tape = Tape()
    with fake_rank(rank, world), FakeTensorMode(allow_non_fake_inputs=True), tape.watching_checkpoints(), tape:
        if framework == "megatron":
            from meshwright.xray.megatron import trace_megatron

            package, made = "megatron-core", trace_megatron(tape, **question)
        elif framework == "torchtitan":
            from meshwright.xray.torchtitan import trace_torchtitan

            package, made = "torchtitan", trace_torchtitan(tape, **question)
        else:
            from meshwright.xray.module import trace_module

            package, made = "transformers", trace_module(tape, **question)
        found = {
            "framework": package,
            "version": metadata.version(package),
            "rank": rank,
            "world": world,
            **made,
            "operators": [one.to_dict() for one in tape.traced_operators()],
            "collectives": [one.to_dict() for one in tape.traced_collectives()],
            "moments": [one.to_dict() for one in tape.moments()],
            "seconds": time.perf_counter() - started,
        }
    return found


if __name__ == "__main__":
    main()
