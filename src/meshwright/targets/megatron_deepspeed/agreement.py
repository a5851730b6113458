"""What a script of Megatron-DeepSpeed and DeepSpeed's configuration beside it say differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.targets.keys import value_of

CONFIG = "ds_config.json"
"""DeepSpeed's configuration beside a script."""
_RATIO = "zero_optimization.offload_optimizer.ratio"
"""The part of the optimizer's states that is updated on the host."""


def disagreements(keys: Mapping[str, Any], launch: LaunchFile) -> Iterator[Problem]:
    """What it does not start with: a stage of ZeRO beside a pipeline, or what its two files say differently.

    Args:
        keys: DeepSpeed's configuration.
        launch: what the options of the script say.
    """
    row = launch.row
    if row is not None and row.pp > 1 and row.sharding not in ("z0", "z1"):
        what, why = (
            f"--zero-stage {row.sharding[-1]} with {row.pp} stages",
            "DeepSpeed's pipeline goes with ZeRO 0 and 1",
        )
        yield Problem(what=what, why=why, fix="use --zero-stage 1", field="--zero-stage")
    stated = {"train_batch_size": row.gbs, "train_micro_batch_size_per_gpu": row.mbs} if row else {}
    options = {said.option: said.value for said in launch.said}
    if options.get("--zero-stage", "").isdigit():
        stated["zero_optimization.stage"] = int(options["--zero-stage"])
    for path, value in stated.items():
        other = value_of(keys, path)
        if isinstance(other, int) and other != value:
            what, why = f"{CONFIG}: {path} is {other}", f"the options of the script say {value}"
            yield Problem(what=what, why=why, fix=f"write {value} there", field=path)
    for path, other in (("fp16.enabled", "--bf16"), ("bf16.enabled", "--fp16")):
        if value_of(keys, path) is True and other in options:
            what, why = f"{CONFIG}: {path} is True", f"the options of the script say {other}"
            yield Problem(what=what, why=why, fix=f"enable {other.removeprefix('--')} there", field=path)
    ratio = value_of(keys, _RATIO, 1)
    if isinstance(ratio, int | float) and ratio != 1:
        what, why = f"{CONFIG}: {_RATIO} is {ratio:g}", "all of the optimizer's states are taken as offloaded"
        yield Problem(what=what, why=why, fix="leave it out to check the rest", field=_RATIO)
