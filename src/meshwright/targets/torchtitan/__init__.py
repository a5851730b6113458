"""torchtitan: a Python module with a function that returns a `Trainer.Config`, and the schedule as CSV beside it.

Keys are those of torchtitan 0.3.0 (2026-11), https://github.com/pytorch/torchtitan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from meshwright.catalogue import later
from meshwright.errors import Problem
from meshwright.formats.processes import torchrun
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.specs.strategy import HALF_PRODUCTS
from meshwright.targets import fsdp, pytorch_pipeline
from meshwright.targets.contract import (
    ADAM_IS_ADAMW,
    Files,
    Note,
    OneStrategyTarget,
    file_of,
    marked,
    overlaps,
    text_beside,
)
from meshwright.targets.sayable import ANY, Plan, Rule, only, whole_key_value_heads
from meshwright.targets.torchtitan.flavors import flavor_names, flavor_of, rope_changes, shipped

if TYPE_CHECKING:
    from meshwright.formats.launch_file import LaunchFile
    from meshwright.formats.shell import Launch, Word

TITLE = "torchtitan"
MODULE = "meshwright_plan"
"""The module that is written, in the folder where the command is started."""
FORMATS = ("fp8", "mxfp8")
"""Products in 8 bits that it has."""


def _pieces(plan: Plan) -> int:
    """What the length of a sequence is a multiple of."""
    strategy = plan.strategy
    tensor = strategy.tp if plan.settings["tensor.sequence_parallel"] else 1
    return tensor * (2 * strategy.cp if strategy.cp > 1 else 1)


SAYS = pytorch_pipeline.SAYS | {
    "data.zero": only(0, 3, why="data ranks hold whole copies, or shards of everything", fix="use fsdp"),
    "tuning": ANY,
    "precision": only("bf16", "fp32", *FORMATS),
    "recompute.kind": only("none", "selective", "full", why="blocks are repeated whole, or all but what is kept"),
    "recompute.modules": only(
        (),
        (HALF_PRODUCTS,),
        why="its selective kind repeats every second product, not modules",
        fix=f"use rc-sel-{HALF_PRODUCTS} or rc-full",
    ),
}
_CONFIGS = "torchtitan/config/configs.py and trainer.py of torchtitan 0.3.0"
RULES = (
    *pytorch_pipeline.RULES,
    fsdp.main_copy(_CONFIGS),
    Rule(
        field="expert.ep",
        holds=lambda plan: (
            (plan.strategy.data.shard * plan.strategy.cp * plan.strategy.tp) % plan.strategy.expert.ep == 0
        ),
        why="expert ranks are taken from those that shard weights, context and tensors of one copy",
        fix="use an ep that divides shard x cp x tp",
        source=_CONFIGS,
    ),
    fsdp.context_shards(_CONFIGS, why="context ranks shard the weights as data ranks do"),
    fsdp.offloads_together(_CONFIGS, why="enable_cpu_offload moves weights, gradients and optimizer states together"),
    fsdp.offloads_shards(_CONFIGS),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or not plan.model.mtp_layers,
        why="multi-token-prediction modules are not cut into pipeline stages",
        fix="use pp1, or a config without num_nextn_predict_layers",
        source="torchtitan/models/deepseek_v3/mtp.py of torchtitan 0.3.0",
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or not plan.model.mtp_layers,
        why="multi-token-prediction modules take whole sequences",
        fix="use cp1, or a config without num_nextn_predict_layers",
        source="torchtitan/models/deepseek_v3/mtp.py of torchtitan 0.3.0",
    ),
    whole_key_value_heads("torchtitan/models/common/decoder.py of torchtitan 0.3.0"),
    Rule(
        field="seq_len",
        holds=lambda plan: plan.workload.seq_len % _pieces(plan) == 0,
        why="a sequence is cut into tp pieces, and into two of every context rank",
        fix="use --seq with a multiple of tp x 2 cp",
        source="torchtitan/trainer.py of torchtitan 0.3.0",
    ),
    Rule(
        field="pp",
        holds=lambda plan: plan.found.pp == 1 or not plan.model.tied_embeddings,
        why="a head that is the embedding's table is not cut into pipeline stages",
        fix="use pp1",
        source="torchtitan/models/common/decoder.py of torchtitan 0.3.0",
    ),
)


def _model_problems(plan: Plan) -> Iterator[Problem]:
    flavor = flavor_of(plan.model)
    if flavor is not None:
        for unlike in rope_changes(plan.model, flavor)[1]:
            why, fix = f"its {flavor.name} has {unlike}", "use --target accelerate, which takes the model's own config"
            yield Problem(what=f"model: {plan.model.name}", why=why, fix=fix, field="model.settings.rope_kind")
    else:
        why = f"a config names one of its own models: {flavor_names()}"
        fix = "plan one of these, or use --target accelerate, which takes any model of the transformers library"
        yield Problem(what=f"torchtitan 0.3.0 has no {plan.model.name}", why=why, fix=fix, field="model")
    if plan.model.tuning is not None:
        from meshwright.targets.torchtitan.lora import untrainable_by_torchtitan  # few questions are of adapters

        yield from untrainable_by_torchtitan(plan)


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    from meshwright.targets.torchtitan.module import module_text

    module = module_text(plan, shipped(plan.model))
    return (f"{MODULE}.py", module), *pytorch_pipeline.schedule_files(plan)


def _start(plan: Plan) -> str:
    words = f"--module {MODULE} --config plan --hf_assets_path FOLDER_OF_TOKENIZER"
    return f"PYTHONPATH=. {torchrun(plan.job)} -m torchtitan.train {words}"


def _read(files: Files, devices: int | None = None) -> LaunchFile:
    file = file_of(files, f"{MODULE}.py", _recognised)
    from meshwright.targets.torchtitan.read import read_configuration

    return read_configuration(file, devices, text_beside(files, COMPUTE_FILE), files)


_PROGRAM = re.compile(r"(?:^|/)torchtitan[./]train(?:\.py)?$")
_CONFIG_FILE = "--job.config_file"
"""The option of earlier versions, by which copies of its program are known under other names."""
_REGISTRIES = ("torchtitan/models/{}/config_registry.py", "torchtitan/experiments/{}/config_registry.py")


def _said(launch: Launch) -> dict[str, Word]:
    """Options of sections, and which configuration is meant."""
    from meshwright.targets.overrides import by_names, by_options  # searches read no commands

    return {**by_options(launch.words), **by_names(launch.words, ("module", "config"))}


def _configs(launch: Launch) -> tuple[str, ...] | None:
    """Where the module lies that a command names."""
    named = any(word.text.startswith(_CONFIG_FILE) for word in launch.words)
    module = _said(launch).get("module")
    if not named and (module is None or not _PROGRAM.search(launch.program)):
        return None
    if module is None or module.unknown is not None:
        return ()
    inside = module.text.replace(".", "/")
    return (*(path.format(inside) for path in _REGISTRIES), f"{inside}/config_registry.py", f"{inside}.py")


_module = marked((".py",), ("torchtitan",), ("ParallelismConfig(", "Trainer.Config:"))
_SIZES = ("seq_len", "batch_size", "local_batch_size", "global_batch_size")
_toml = marked((".toml",), ("[training]",), ("[parallelism]", "[experimental]", "flavor"), _SIZES)


def _recognised(name: str, text: str) -> bool:
    return _module(name, text) or _toml(name, text)


TARGET = OneStrategyTarget(
    name="torchtitan",
    title=TITLE,
    version="0.3.0 (2026-11)",
    unequal_nodes=True,
    says=SAYS,
    rules=RULES,
    beyond=_model_problems,
    write=_files,
    start=_start,
    notes=(
        Note(
            text="adapters start beside random weights until checkpoint.initial_load_path names those of the model",
            when=lambda plan: plan.model.tuning is not None,
        ),
        Note(text="--comm.mode fake_backend starts it on one process without the other devices"),
        Note(
            text="torchtitan 0.3.0 shards weights with PyTorch 2.15; an earlier one needs "
            "--parallelism.spmd_backend partial_dtensor"
        ),
        overlaps("FSDP2 overlaps its collectives"),
        ADAM_IS_ADAMW,
    ),
    read=_read,
    overrides=_said,
    configs=_configs,
    programs=r"(?:^|[/.])train(?:\.py)?$",
    recognised=_recognised,
    edited=later("meshwright.targets.torchtitan.edit:edited_module"),
    beside=(COMPUTE_FILE,),
    software="torchtitan",
    adapters=later("meshwright.targets.torchtitan.lora:usual_modules"),
)
