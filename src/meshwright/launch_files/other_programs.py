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


_COMMANDS = "its steps run commands, and the plan is in what these start"
_WORKFLOWS = (
    _Other("a workflow of GitHub", (r"on", r"jobs"), _COMMANDS, "check the script or configuration that a step starts"),
    _Other(
        "a manifest of Kubernetes",
        (r"apiVersion", r"kind"),
        "it starts a container, and the plan is in the command that the container runs",
        "save that command as a script, or the configuration in it as a file, and check it",
    ),
    _Other("an action of GitHub", (r"runs", r"(?:inputs|description)"), _COMMANDS, "check the script that it starts"),
)
"""Files whose text may name programs and their options, as that of the programs' own files does."""
_OTHERS = (
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
        "FlagScale's",
        (r"defaults", r"experiment", r"action"),
        "its runner takes the plan from another file, in the folder and by the name behind `train:`",
        "check that file",
    ),
    _Other("NeuronX Distributed Training's", (r"distributed_strategy", r"trainer", r"data"), _OWN_KEYS, _PRICED),
    _Other("NeMo-Aligner's", (r"remote_\w+", r"trainer", r"model"), _ROLLOUTS, _SFT),
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


@dataclass(frozen=True, slots=True)
class _Module:
    """A module of Python by what it imports."""

    mark: str
    what: str
    why: str
    fix: str


_OF_PYTHON = (
    _Module("torchtitan.experiments.rl", "a configuration of torchtitan's policies", _ROLLOUTS, _SFT),
    _Module(
        "from nemo.collections import llm",
        "a script of NeMo 2",
        "its recipe is a function of NeMo, which is not run: what it sets is not known",
        "check what the run writes: --from hydra, or price its plan: check MODEL --plan PLAN",
    ),
    *(
        _Module(
            mark,
            "a module of Alpa",
            "no ManualStageOption in it lists the stages of a PipeshardParallel: its search or a caller says them",
            "check the module that makes the method, or price its plan: check MODEL --plan PLAN",
        )
        for mark in ("import alpa", "from alpa import")
    ),
    _Module(
        "from megatron.bridge",
        "a module of Megatron-Bridge",
        "no function in it makes a whole recipe by itself: its degrees are a caller's, or those of a recipe it changes",
        "check the run_config.yaml that the run writes: --from hydra, or a command with its overrides",
    ),
)


def of_a_workflow(name: str, text: str) -> Problem | None:
    """Why a workflow or manifest is none that a plan is read of, whatever it names; None of other files.

    Args:
        name: the name of the file.
        text: the text of the file.
    """
    return _among(_WORKFLOWS, name, text)


def of_another(name: str, text: str) -> Problem | None:
    """Why a file is none that a plan is read of, by the program whose it is; None of unknown ones.

    Args:
        name: the name of the file.
        text: the text of the file.
    """
    if name.endswith(".py") and (named := next((one for one in _OF_PYTHON if one.mark in text), None)) is not None:
        return Problem(what=f"{name!r} is {named.what}", why=named.why, fix=named.fix, field="source")
    if name.endswith(".py") and "olmo_core" in text:
        why = "it makes several trainings, or none: one TransformerConfig and one TrainModuleConfig are read"
        return Problem(what=f"{name!r} is OLMo-core's", why=why, fix=_PRICED, field="source")
    return _among(_OTHERS, name, text)


def _among(others: tuple[_Other, ...], name: str, text: str) -> Problem | None:
    keys = frozenset(re.findall(r"""^["']?([A-Za-z_]\w*)["']?[ \t]*:""", text, re.MULTILINE))
    for other in others:
        if name.endswith((".yaml", ".yml")) and all(
            any(re.fullmatch(mark, key) is not None for key in keys) for mark in other.keys
        ):
            what = f"{name!r} is {other.program}"
            what += " configuration" if other.program.endswith(("'s", "'")) else ""
            return Problem(what=what, why=other.why, fix=other.fix, field="source")
    return None
