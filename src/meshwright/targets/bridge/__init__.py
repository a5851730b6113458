"""Megatron-Bridge: a recipe that takes the model from its Hugging Face config, and overrides of the form KEY=VALUE.

Keys are those of megatron-bridge 0.3.1 over megatron-core 0.16 (2026-11), https://github.com/NVIDIA-NeMo/Megatron-Bridge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.catalogue import later
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.formats import megatron
from meshwright.formats.processes import torchrun
from meshwright.specs.job import Job
from meshwright.targets.bridge.overrides import overrides, unsaid
from meshwright.targets.contract import Files, JobTarget, TargetFiles, file_of, marked, one_line, target_files
from meshwright.targets.megatron import as_run_by_megatron
from meshwright.targets.megatron.rules import rule_problems
from meshwright.targets.sayable import unequal_pipelines

if TYPE_CHECKING:
    from meshwright.formats.key_text import KeyText
    from meshwright.formats.launch_file import LaunchFile

TITLE = "Megatron-Bridge"
OVERRIDES = "overrides.txt"
FAMILIES = (
    *("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "deepseek_v2", "deepseek_v3"),
    *("gemma", "gemma2", "gemma3", "glm4_moe", "gpt_oss", "nemotron", "nemotron_h", "olmoe", "nemotron_nas"),
)
"""Families whose Hugging Face configs AutoBridge converts. Source: megatron/bridge/models of megatron-bridge 0.3.1."""
RECIPE = "pretrain.py"
_TEXT = '''\
"""{head}

Needs megatron-bridge 0.3.1. Set MODEL to the Hugging Face id or folder of the model: its own config says rope, norms
and router. The overrides beside this file are the plan.
"""

import os
import sys
from pathlib import Path

from megatron.bridge import AutoBridge
{imports}from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def plan():
    cfg = _pretrain_common()
    cfg.model = AutoBridge.from_hf_pretrained(os.environ["MODEL"]).to_megatron_provider(load_weights=False)
    cfg.tokenizer.tokenizer_type = "NullTokenizer"
    cfg.tokenizer.vocab_size = cfg.model.vocab_size
    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)
    cfg.checkpoint.save = None
{tuned}    lines = Path(__file__).with_name("{overrides}").read_text().splitlines()
    given = [line for line in lines if line and not line.startswith("#")]
    said = [*given, *sys.argv[1:]]
    formats = [line.partition("=")[2] for line in said if line.startswith("mixed_precision=")]
    cfg.mixed_precision = get_mixed_precision_config(formats[-1])
    left = [line for line in said if not line.startswith("mixed_precision=")]
    return process_config_with_overrides(cfg, cli_overrides=left)


if __name__ == "__main__":
    pretrain(plan(), forward_step)
'''


def _refused(job: Job) -> tuple[Problem, ...]:
    if len(job.plan.pipelines) > 1:
        return (unequal_pipelines(TITLE, job),)
    if job.model.settings.seen_by is not None:
        return tuple(_model_problems(job))
    whole, untrainable = job, tuple[Problem, ...]()
    if job.model.tuning is not None:
        from meshwright.targets.bridge import lora  # few questions are of adapters

        whole, untrainable = lora.wholly_trained(job), tuple(lora.untrainable_by_bridge(job))
    written = megatron.translate(whole, shape_said=True)
    return written.refused or rule_problems(whole) or (*_model_problems(job), *untrainable, *unsaid(written.arguments))


def _model_problems(job: Job) -> Iterator[Problem]:
    seen = job.model.settings.seen_by
    if seen is not None:
        why = "its converters make such a class with its tower, which recipes of its own train (vlm_step), not this one"
        fix = "use --to accelerate, or --to automodel"
        yield Problem(what=f"model: {job.model.name} is of class {seen}", why=why, fix=fix, field="model")
        return
    if job.model.family not in FAMILIES or job.model.beside_decoder:
        why = f"its converters take {', '.join(FAMILIES)}"
        fix = "use --to automodel, which loads the model's own config.json"
        yield Problem(what=f"model: {job.model.name} is a {job.model.family}", why=why, fix=fix, field="model")


def _files(job: Job, estimate: StepEstimate) -> TargetFiles:
    if problems := _refused(job):
        raise UnsupportedError(problems, code="MW420")
    from meshwright.targets.bridge import lora  # searches write no files

    written = megatron.translate(lora.wholly_trained(job), shape_said=True)
    adapted = lora.overrides_of(job)
    # Not every converter reads the modules that predict further tokens, which the layout holds.
    further = [("--mtp-num-layers", str(job.model.mtp_layers))] if job.model.mtp_layers else []
    keys = overrides([*written.arguments, *further]) | adapted
    head = f"{one_line(job.model.name)} on {job.plan.devices} devices: {job.name or 'a plan of uneven stages'}."
    lines = [f"# {head} Overrides of megatron-bridge 0.3.1.", f"# devices: {job.plan.devices}"]
    lines += [f"{name}={value}" for name, value in keys.items()]
    recipe = _TEXT.format(
        head=head,
        overrides=OVERRIDES,
        imports="from megatron.bridge.peft.lora import LoRA\n" if adapted else "",
        tuned="    cfg.peft = LoRA()\n" if adapted else "",
    )
    start = f"MODEL=id/or/folder {torchrun(job)} {RECIPE}"
    start += " checkpoint.pretrained_checkpoint=FOLDER" if adapted else ""
    notes = (*written.notes, _CONVERTED) if adapted else written.notes
    return target_files(job, ((OVERRIDES, "\n".join(lines) + "\n"), (RECIPE, recipe)), notes=notes, start=start)


_CONVERTED = "the frozen weights come from a checkpoint that AutoBridge.import_ckpt(MODEL, FOLDER) writes"


_by_overrides = marked((".txt", ".sh"), ("model.tensor_model_parallel_size=",))
_by_driver = marked((".py",), ("megatron.bridge",), (f'with_name("{OVERRIDES}")',))
_OPTIONS = ("--tensor_model_parallel_size", "--model_recipe_name", "-mr ", "-tp ", "--recipe ", "-ng ", "--num_gpus ")
_PARTS = re.compile(r"^(?:train|model|dataset|checkpoint|ddp|scheduler|logger|comm_overlap):", re.MULTILINE)
_SAID = re.compile(
    r"^[ \t]+(?:micro_batch_size|global_batch_size|tensor_model_parallel_size|train_iters):", re.MULTILINE
)


def _by_tables(name: str, text: str) -> bool:
    """A YAML file of a recipe's parts: NeMo's own has a trainer."""
    parts = {found[0] for found in _PARTS.finditer(text)}
    return name.endswith((".yaml", ".yml")) and "train:" in parts and len(parts) > 1 and bool(_SAID.search(text))


def _recognised(name: str, text: str) -> bool:
    from meshwright.formats.megatron.records import CONTAINER
    from meshwright.targets.bridge import recipe
    from meshwright.targets.bridge.options import PROGRAMS  # searches read no files

    if CONTAINER in text and name.endswith((".yaml", ".yml")):
        return False  # the whole configuration of a run is read as the options that it holds
    by_words = _by_overrides(name, text) or marked((".sh",), PROGRAMS, _OPTIONS)(name, text)
    return by_words or _by_driver(name, text) or _by_tables(name, text) or recipe.recognised(name, text)


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    from meshwright.targets.bridge.read import read_bridge_recipe, read_bridge_text, read_bridge_yaml
    from meshwright.targets.overrides import FILE

    name, text = file_of(files, OVERRIDES, _recognised)
    over = json.loads(files.get(FILE, "{}"))
    if name.endswith((".yaml", ".yml")):
        return read_bridge_yaml(name, text, over, devices)
    if _by_driver(name, text):
        why, fix = f"it takes the plan from {OVERRIDES}, which is not beside it", "check a folder that holds both"
        raise InputError(Problem(what=f"{name} states no plan", why=why, fix=fix, field="source"))
    if name.endswith(".py"):
        return read_bridge_recipe(name, text, over, devices)
    return read_bridge_text(name, "\n".join((text, *(f"{key}={value}" for key, value in over.items()))), devices)


def _edited(name: str, text: str) -> KeyText | None:
    """A recipe is not edited through a table of its parts: their keys and those that are exported differ."""
    from meshwright.targets.bridge.edit import overrides_text

    return None if name.endswith((".yaml", ".yml", ".py")) else overrides_text(name, text)


TARGET = JobTarget(
    name="bridge",
    title=TITLE,
    version="0.3.1 (2026-11)",
    unequal_nodes=True,
    translate=_files,
    refusals_of=_refused,
    read=_read,
    script=later("meshwright.targets.bridge.read:read_bridge_script"),
    edited=_edited,
    recognised=_recognised,
    beside=(OVERRIDES,),
    as_run=as_run_by_megatron,
    adapters=later("meshwright.targets.bridge.lora:usual_modules"),
    formats={dtype: {"weight_dtype": "fp8"} for dtype in ("fp8", "mxfp8")},
    option=lambda name, value: (f"{name}={value}",),
)
