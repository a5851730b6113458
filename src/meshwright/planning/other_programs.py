"""Configurations of programs that are known and not read: why each is none that a plan is read of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshwright.errors import Problem

_ROLLOUTS = "it trains a policy with rollouts: no plan here prices the models that generate and judge them"
_OWN_KEYS = "its trainer has keys of its own, which are not read"
_PRICED = "price its plan: check MODEL --plan PLAN"
_SFT = "check a script or configuration of SFT or pretraining"


@dataclass(frozen=True, slots=True)
class _Other:
    """A program by keys that stand at the left of its files, all of them."""

    program: str
    keys: tuple[str, ...]
    why: str
    fix: str


_OTHERS = (
    _Other(
        "a manifest of Kubernetes",
        (r"apiVersion", r"kind"),
        "it starts a container, and the plan is in the command that the container runs",
        "save that command as a script, and check it",
    ),
    _Other("verl's", (r"actor_rollout_ref",), _ROLLOUTS, _SFT),
    _Other("NeMo-RL's", (r"policy", r"(?:grpo|ppo|distillation|loss_fn)"), _ROLLOUTS, _SFT),
    _Other("NeMo-RL's", (r"grpo|distillation", r"defaults"), _ROLLOUTS, _SFT),
    _Other("NeMo-RL's", (r"policy", r"(?:sft|dpo|rm|cluster)"), _OWN_KEYS, _PRICED),
    _Other(
        "Primus'",
        (r"work_group", r"modules"),
        "its modules lie over files of Primus, which are not read",
        "check the arguments that the run prints when it starts: --from args",
    ),
    _Other(
        "OLMo's",
        (r"run_name", r"model", r"data", r"(?:device_train_microbatch_size|global_train_batch_size|fsdp)"),
        _OWN_KEYS,
        _PRICED,
    ),
    _Other(
        "Lingua's",
        (r"dump_dir", r"distributed"),
        _OWN_KEYS,
        _PRICED,
    ),
)


def of_another(name: str, text: str) -> Problem | None:
    """Why a YAML file is none that a plan is read of, by the program whose it is; None of unknown ones.

    Args:
        name: of the file.
        text: of the file.
    """
    keys = frozenset(re.findall(r"^([A-Za-z_]\w*)[ \t]*:", text, re.MULTILINE))
    for other in _OTHERS:
        if name.endswith((".yaml", ".yml")) and all(
            any(re.fullmatch(mark, key) is not None for key in keys) for mark in other.keys
        ):
            what = f"{name!r} is {other.program}"
            what += " configuration" if other.program.endswith(("'s", "'")) else ""
            return Problem(what=what, why=other.why, fix=other.fix, field="source")
    return None
