"""Options that Megatron-LM does not have: slips, those of a fork that change no plan, and those of another program."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from meshwright.errors import Problem, nearest
from meshwright.formats.megatron.options import known_options

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Values

MEGATRON_PROGRAMS = (
    *("pretrain_gpt.py", "pretrain_mamba.py", "pretrain_bert.py", "pretrain_t5.py", "pretrain_vlm.py"),
    "posttrain_gpt.py",  # of MindSpeed-LLM
)
"""Entry points of Megatron-LM and its forks: they add no options that the parser does not have."""


def of_the_program(program: str, values: Values) -> tuple[list[Problem], list[str]]:
    """Options Megatron-LM does not have: wrong, or those of a program that adds its own.

    Args:
        program: the program that the script starts.
        values: options as they were read.

    Returns:
        What is wrong, and notes on the rest.
    """
    name = program.rpartition("/")[2]
    unknown = [problem for problem in values.unknown if problem.field not in values.asked]
    wrong = [problem for problem in unknown if not name or (problem.fix and _slip(problem))]
    started = [problem for problem in unknown if problem.field == "--world-size" and name]
    wrong = [problem for problem in wrong if problem not in started]
    own = [problem for problem in unknown if problem not in wrong]
    if name in MEGATRON_PROGRAMS and "--deepspeed" not in values.given:
        cut = (one for one in own if one not in started)
        wrong += [one for one in cut if _OF_A_PLAN.search(one.field) and not _OF_DATA.search(one.field)]
        notes = [problem.field for problem in own if problem not in wrong]
        return wrong, [f"not options of Megatron-LM, taken as a fork's that change no plan: {', '.join(notes)}"] * (
            len(notes) > 0
        )
    for problem in (one for one in own if _SPLITS.search(one.field)):
        why = "it may split the job, move memory or change what is trained in a way that is not read"
        what = f"{problem.field} is of {name} itself"
        wrong.append(Problem(what=what, why=why, fix="leave it out to check the rest", field=problem.field))
    notes = [problem.field for problem in own if problem.field not in {one.field for one in wrong}]
    return wrong, [f"options of {name} itself, not read: {', '.join(notes)}"] if notes else []


_SPLITS = re.compile(
    r"parallel|pipeline|partition|offload|in-cpu|fold|lora|adapter|freez|checkpointing|accumulation|^--(?:mm|vision)-"
)
"""Words in options that cut a job, move its memory, or change what is trained."""
_OF_A_PLAN = re.compile(
    rf"{_SPLITS.pattern}|schedul|recompute|activation|shard|zero|split|chunk|overlap|expert|moe|atten|attn|fp8|fp4|quant"
    "|precision|dtype|layer|hidden|head|batch|seq|length|pack|optim|fsdp|lora|adapter|freez|mask|norm|rope|rotary|embed"
    "|fus|kernel|stage|size|num|use|enable|model|swiglu|bias|vocab|dense|group|router|gating|1f1b|mtp|mla|topk|top-k"
    "|memory|swap|capacity|window|softcap|logit|indexer|compress|gelu|mamba"
)
"""Words in options that may be of a plan or of the model: what names files, logs and time limits has none of them."""
_OF_DATA = re.compile(
    r"-paths?$|^--(?:use-|enable-)?(?:wandb|swanlab|tensorboard|mlflow|comet)\b|-paths-path$|^--(?:train|valid|test|data)-(?!iters).*(?:workers|paths?|files?|weights?)$"
)
"""Options that say where samples are and who loads them."""


def _slip(problem: Problem) -> bool:
    close = nearest(problem.field, known_options(), count=1)
    # Who mistypes an option seldom does so in its first letter: --patch-size is no --batch-size.
    return (
        bool(close)
        and not re.fullmatch(rf"{re.escape(close[0])}\d+", problem.field)  # --data-path2 is a program's own
        and problem.field[:3] == close[0][:3]
        and SequenceMatcher(None, problem.field, close[0]).ratio() > 0.9
    )
