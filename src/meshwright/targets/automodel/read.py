"""A recipe's YAML as a plan. Defaults and what words mean: nemo-automodel 0.7.0 (2026-11)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from meshwright.formats.launch_file import Dealt, LaunchFile, even_stages
from meshwright.formats.torch_loader import COMPUTE_FILE
from meshwright.library import models
from meshwright.specs.precision import PRECISIONS, Precision, stated
from meshwright.specs.row import PlanRow, default_schedule
from meshwright.targets import fsdp, pytorch_pipeline
from meshwright.targets.automodel import peft
from meshwright.targets.contract import Files, text_beside
from meshwright.targets.keys import KeyFile, KeyReader, value_of

_D, _PIPE = "distributed.", "distributed.pipeline."
_RECIPES = ("TrainFinetuneRecipeForNextTokenPrediction", "BenchmarkingRecipeForNextTokenPrediction")
_SINGLE = ("1f1b", "gpipe")
"""Schedules with one stage on each rank; others have two unless the file says how long a stage is."""
_WORDS = {"none": None, "None": None, "true": True, "True": True, "false": False, "False": False}


def python_words(value: Any) -> Any:
    """A value as Automodel's loader takes it, which reads words of text as Python's."""
    if isinstance(value, Mapping):
        return {name: python_words(one) for name, one in value.items()}
    if isinstance(value, list):
        return [python_words(one) for one in value]
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value) else value


FILE = KeyFile(
    title="NeMo Automodel",
    name="automodel.yaml",
    package=__package__ or "",
    marks=(("nemo_automodel", "step_scheduler:", "recipe_args:"),),
    noun="Automodel configuration",
    sections=("distributed", "step_scheduler", "peft", "quantization"),
    aside=("ci",),
    plain=python_words,
)


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A recipe's YAML as a plan.

    Args:
        files: the YAML, and the schedule's file where there is one.
        devices: the devices of the job; by default what the degrees multiply to, where `dp_size` is said.

    Raises:
        InputError: the text is no YAML.
    """
    return read_recipe(FILE.read(files), files, devices)


def read_recipe(reader: KeyReader, files: Files, devices: int | None) -> LaunchFile:
    """What a recipe says.

    Args:
        reader: its keys.
        files: the files of the run, the schedule's file where there is one.
        devices: the number of devices of the job; by default what the degrees multiply to, where `dp_size` is said.
    """
    if not any(key in reader.keys for key in ("model", "step_scheduler", "recipe", "dataset")):
        why = "a launcher's file holds the recipe's keys in a table of its own, or in another file"
        reader.refuse("step_scheduler", None, why, "check the recipe itself")
    _recipe(reader)
    model = _model(reader)
    lora, notes = peft.read_peft(reader)
    row, layout, dealt = _row(reader, files, devices, model)
    workload = fsdp.workload(row, wide=_wide(reader), seq_len=_length(reader))
    narrow = reader.choice("model.torch_dtype", _WEIGHTS, "auto").removeprefix("torch.") not in ("float32", "fp32")
    if lora is not None:
        workload["lora"] = lora
    elif narrow and not _wide(reader):
        workload["precision"] = _states(reader, fsdp.IN_16_BITS)
    if (low := _products(reader)) is not None:
        workload["precision"] = _in_fewer_bits(workload["precision"], low)
    line = "pytorch-compiled" if reader.switch("compile.enabled") else "pytorch-eager"
    if row is not None and _defers(reader, row):
        line += "-no-sync"
    if line != "pytorch-eager":
        workload["software"] = line
    workload["optimizer"] = _optimizer(reader)
    if "eager" in [reader.get(path) for path in ("model.backend.attn", "model.attn_implementation")]:
        workload["attention_kernel"] = "materialised"
    named = {"name": model} if model else {}
    return reader.launch(row, layout, dealt=dealt, model=named, workload=workload, notes=notes)


_TE_RECIPES = {"current": "fp8", "delayed": "fp8", "block": "fp8-block", "mxfp8": "mxfp8"}
"""Recipes of Transformer Engine's layers by its backend's names for them."""


def _products(reader: KeyReader) -> str | None:
    """Format of the products where it is not that of activations: torchao's, or Transformer Engine's."""
    recipe = reader.word("model.backend.te_fp8.recipe")
    if recipe and recipe not in _TE_RECIPES:
        reader.refuse("model.backend.te_fp8.recipe", recipe, f"{', '.join(_TE_RECIPES)} are priced", "use current")
    if recipe:
        return _TE_RECIPES.get(recipe, "fp8")
    if not reader.switch("fp8.enabled"):
        return None
    if reader.switch("fp8.emulate"):
        reader.refuse("fp8.emulate", True, "products run in 16 bits, and are rounded beside them", "use false")
    # One scale per tensor or per row: both are priced as products in fp8.
    reader.get("fp8.recipe_name")
    return "fp8"


def _in_fewer_bits(precision: Precision, low: str) -> Precision:
    """A recipe whose products run in another format, with the copies of weights that these keep; ours if it is one."""
    recipe = PRECISIONS[low]
    made = replace(
        precision, name=f"{low} {precision.name}", compute=recipe.compute, weight_cache_bytes=recipe.weight_cache_bytes
    )
    return recipe if replace(made, name=recipe.name) == recipe else made


_NAMES = ("auto", "float32", "fp32", "bfloat16", "bf16", "float16", "fp16", "half", "float")
_WEIGHTS = (*_NAMES, *(f"torch.{name}" for name in _NAMES))
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _states(reader: KeyReader, precision: Precision) -> Precision:
    """Formats of the states that Transformer Engine's optimizer keeps, where the recipe says them."""
    if reader.switch("optimizer.store_param_remainders"):
        why = "main copies are kept as the 16 bits that weights lack, which no plan says"
        reader.refuse("optimizer.store_param_remainders", True, why, "use false")
    moments = [
        reader.word(f"optimizer.{name}").removeprefix("torch.") for name in ("exp_avg_dtype", "exp_avg_sq_dtype")
    ]
    given = {"main_copy": "fp32"} if reader.switch("optimizer.master_weights") else {}
    if moments[0] != moments[1]:
        reader.refuse("optimizer.exp_avg_sq_dtype", moments[1], "both moments have one format in plans", "use it twice")
    elif moments[0]:
        given["moment_dtype"] = _DTYPES.get(moments[0], moments[0])
    roles = {"grad_dtype": "bf16", "reduce_dtype": "fp32", "moment_dtype": "bf16", "main_copy": "none"}
    return stated(PRECISIONS["bf16"], {**roles, **given}) if given else precision


def _wide(reader: KeyReader) -> bool:
    """Whether it computes in fp32: FSDP2 by its policy; DDP where nothing casts weights that are in fp32."""
    if reader.word(f"{_D}strategy", "fsdp2") == "ddp":
        cast = reader.get(f"{_D}autocast_dtype")
        return cast is None and reader.word("model.torch_dtype", "auto").removeprefix("torch.") in ("float32", "fp32")
    return reader.choice(f"{_D}mp_policy.param_dtype", _WEIGHTS, "bfloat16").endswith("float32")


_OTHER_MODELS = ("flow_matching", "diffusion", "vision_model")
"""Tables of recipes for other models."""


_OF_DATA = ("dataset._target_", "dataloader.collate_fn._target_")


def _recipe(reader: KeyReader) -> None:
    other = next((name for name in _OTHER_MODELS if reader.get(name) is not None), None)
    if other is not None:
        why = "it trains a model of images or sound: decoders that predict the next token are read"
        reader.refuse(other, "given", why, "check a recipe of a language model")
    seen = next((path for path in _OF_DATA if ".vlm." in str(value_of(reader.keys, path, ""))), None)
    if seen is not None and other is None:
        why = "its samples hold images or sound, which go through a tower before the text"
        reader.refuse(seen, value_of(reader.keys, seen), why, "check a recipe of a language model")
    said = reader.get("recipe", _RECIPES[0])
    name = str(said.get("_target_", "") if isinstance(said, Mapping) else said)
    if not name.endswith(_RECIPES):
        why = "it trains another kind of model, or more than one: decoders that predict the next token are read"
        reader.refuse("recipe", name, why, f"check a file of {_RECIPES[0]}")


def _model(reader: KeyReader) -> str:
    """The model's id or folder; nothing where the environment alone says it."""
    said = reader.get("model.pretrained_model_name_or_path") or reader.get("model.config.pretrained_model_name_or_path")
    default = re.fullmatch(r"\$\{(?:oc\.env:)?\w+,\s*([^}]+)\}", str(said or ""))
    name = default[1].strip() if default else str(said or "")
    return "" if "$" in name else name


def _length(reader: KeyReader) -> int | None:
    """Tokens of a sequence: those of a packed one, else of one of the data set."""
    for path in ("packed_sequence.packed_sequence_size", "dataset.seq_len", "dataset.seq_length"):
        said = reader.get(path)
        if type(said) is int and said > 0:
            return said
        if said is not None and "$" not in str(said) and (said != 0 or path.startswith("dataset")):
            reader.refuse(path, said, "must be a whole number of at least 1")
    said = reader.get("benchmark.seq_len") or reader.get(f"{_PIPE}pp_seq_len")
    return said if isinstance(said, int) and not isinstance(said, bool) and said > 0 else None


def _optimizer(reader: KeyReader) -> str:
    """The optimizer by the last part of its class's name."""
    name = str(reader.get("optimizer._target_", "torch.optim.AdamW")).rpartition(".")[2].lower()
    known = {"adamw": "adamw", "adam": "adam", "fusedadam": "adamw", "adamw8bit": "adamw-8bit", "sgd": "sgd"}
    if name not in known:
        reader.refuse("optimizer._target_", reader.get("optimizer._target_"), f"{', '.join(known)} can be planned")
    return known.get(name, "adamw")


def _strategy(reader: KeyReader) -> str:
    """`fsdp2`, `ddp` or `megatron_fsdp`."""
    said = reader.word(f"{_D}strategy", "fsdp2").replace("-", "_")
    made = str(reader.get(f"{_D}_target_", "FSDP2Manager"))
    if "FSDP2" not in made and reader.get(f"{_D}strategy") is None:
        why = "which strategy runs depends on the release: since 0.4 the class is ignored, and fsdp2 is the default"
        reader.refuse(f"{_D}_target_", made, why, "say distributed.strategy: ddp, fsdp2 or megatron_fsdp")
    stage = reader.get(f"{_D}zero_dp_strategy", 3)
    if "megatron" in said or said == "mfsdp":
        if stage != 3:
            reader.refuse(f"{_D}zero_dp_strategy", stage, "a sharded plan shards everything", "use 3")
        return "megatron_fsdp"
    return said


_DISPATCHERS: dict[str, str] = {"deepep": "deduplicated", "hybridep": "deduplicated", "uccl_ep": "deduplicated"}
"""Backends that send a token once to each node."""


def _dispatcher(reader: KeyReader) -> str:
    said = reader.word("model.backend.dispatcher", "torch")
    if said not in ("torch", *_DISPATCHERS):
        reader.refuse("model.backend.dispatcher", said, f"torch, {', '.join(_DISPATCHERS)} are priced", "use torch")
    return _DISPATCHERS.get(said, "alltoall")


def _row(
    reader: KeyReader, files: Files, devices: int | None, model: str
) -> tuple[PlanRow | None, tuple[int, ...] | None, Dealt | None]:
    sizes = ("tp_size", "cp_size", "pp_size", "ep_size", "dp_replicate_size")
    tp, cp, pp, ep, replicate = (reader.degree(f"{_D}{name}") for name in sizes)
    reader.multiple = tp * pp * math.lcm(cp * replicate, ep)  # experts are dealt to ranks of data and context
    strategy = _strategy(reader)
    local, gbs = reader.degree("step_scheduler.local_batch_size"), reader.degree("step_scheduler.global_batch_size", 32)
    said = reader.get(f"{_D}dp_size")
    if isinstance(said, int) and said <= 0:
        said = None  # what is left, as where nothing is said
    dp = said or (devices // (tp * cp * pp) if devices else None)
    if not isinstance(dp, int) or dp < 1:
        reader.refuse(f"{_D}dp_size", dp, "it is what is left of the devices", "say --gpus")
        return None, None, None
    mbs = reader.degree(f"{_PIPE}pp_microbatch_size") if pp > 1 else local
    if gbs % (local * dp) or local % mbs:
        why = f"must be a multiple of local_batch_size {local} x data ranks {dp}"
        reader.refuse("step_scheduler.global_batch_size", gbs, why, "use --gpus with the devices of the job")
        return None, None, None
    if pp > 1 and gbs != local * dp:
        why = f"a pipeline runs one local batch at a time, and drains between the {gbs // (local * dp)} of a step"
        reader.refuse(
            "step_scheduler.local_batch_size", local, why, f"use {gbs // dp}, which a plan runs in one pipeline"
        )
    schedule, vpp, layout, dealt = None, 1, None, None
    if pp > 1:
        schedule, vpp, layout, dealt = _pipeline(reader, files, pp, gbs // (mbs * dp), model)
    reshard = reader.switch(f"{_D}reshard_after_forward", default=pp == 1 if ep == 1 else _experts_reshard(reader))
    row = PlanRow(
        tp=tp,
        sp=tp == 1 or reader.switch(f"{_D}sequence_parallel"),
        tp_overlap="ring" if tp > 1 and reader.switch(f"{_D}enable_async_tensor_parallel") else "bulk",
        cp=(("ag", cp),) if cp > 1 else (),
        pp=pp,
        vpp=vpp,
        ep=ep,
        dispatcher=_dispatcher(reader) if ep > 1 else "alltoall",
        dp=dp,
        **fsdp.sharding(strategy != "ddp", dp=dp, replicate=replicate, cp=cp, reshard=reshard),
        mbs=mbs,
        gbs=gbs,
        schedule=schedule or default_schedule(vpp),
        recompute=_recompute(reader),
        offload="wog" if _offloads(reader) else "",
        data_words=_prefetch(reader) if strategy != "ddp" and reshard and pp == 1 else (),
    )
    return row, layout, dealt


def _prefetch(reader: KeyReader) -> tuple[str, ...]:
    """The word for layers that are gathered ahead of the one at work; of two depths the larger, which memory holds."""
    if not reader.switch(f"{_D}enable_fsdp2_prefetch"):
        return ()
    ahead = reader.degree(f"{_D}fsdp2_forward_prefetch_depth"), reader.degree(f"{_D}fsdp2_backward_prefetch_depth", 2)
    return (f"prefetch{max(ahead)}",) if max(ahead) > 1 else ()


def _experts_reshard(reader: KeyReader) -> bool:
    """Whether layers' experts are gathered anew in backward, where experts are split and nothing else says it."""
    return reader.switch(f"{_D}moe.reshard_after_forward")


def _pipeline(
    reader: KeyReader, files: Files, pp: int, micro_batches: int, model: str
) -> tuple[str | None, int, tuple[int, ...] | None, Dealt | None]:
    """Schedule, stages of a rank, and the layers of each stage, or their rule where the model is not known."""
    said = reader.word(f"{_PIPE}pp_schedule", "1f1b").replace("_", "")
    named = reader.get(f"{_PIPE}module_fqns_per_model_part")
    listed = isinstance(named, list) and bool(named)
    layout = pytorch_pipeline.layers_of_modules(named, "model.layers") if listed else None
    layers = _layers(model)
    stages = len(layout) if layout else _stages(reader, pp, said, layers)
    dealt = partial(even_stages, stages=stages)
    layout = dealt(layers) if layout is None and layers is not None and stages <= layers else layout
    vpp = max(1, stages // pp)
    schedule = pytorch_pipeline.schedule_name(said)
    if reader.get(f"{_PIPE}pp_schedule_csv"):
        csv = text_beside(files, COMPUTE_FILE)
        schedule = pytorch_pipeline.schedule_of_file(csv or "", pp, vpp, micro_batches)
    elif schedule is not None:
        schedule = pytorch_pipeline.in_pytorch_rounds(schedule, pp, micro_batches)
    if schedule is None:
        reader.refuse(f"{_PIPE}pp_schedule", said, "plans do not have it, or its schedule file is missing")
    return schedule, vpp, layout, dealt


def _layers(model: str) -> int | None:
    """Layers of a model of the library, by its name or its folder."""
    known = models.find_name(model) or models.find_name(model.rstrip("/").rpartition("/")[2]) if model else None
    return None if known is None else models.spec(known).num_layers


def _stages(reader: KeyReader, pp: int, schedule: str, layers: int | None) -> int:
    """Virtual stages where their modules are not named: one or two a rank, or as many as layers of one make."""
    wanted = reader.get(f"{_PIPE}layers_per_stage")
    rounded = reader.word(f"{_PIPE}round_virtual_stages_to_pp_multiple")
    usual = pp * (1 if schedule in _SINGLE else 2)
    if wanted is None:
        return usual
    if layers is None or reader.degree(f"{_PIPE}layers_per_stage") != wanted:
        why = "how many stages that makes depends on the layers of a model that is not in the library"
        reader.refuse(f"{_PIPE}layers_per_stage", wanted, why, "say the stages in module_fqns_per_model_part")
        return usual
    stages = math.ceil(layers / wanted)
    if rounded in ("up", "down"):
        stages += (pp - stages % pp if rounded == "up" else -(stages % pp)) if stages % pp else 0
    if stages % pp or stages < pp or (schedule in _SINGLE) != (stages == pp):
        why = f"it makes {stages} stages of {layers} layers, and {schedule} on {pp} ranks needs "
        why += f"{pp}" if schedule in _SINGLE else f"a multiple of {pp}, at least {2 * pp}"
        reader.refuse(f"{_PIPE}layers_per_stage", wanted, why, "use another number, or round_virtual_stages_to_...")
        return usual
    return stages


def _offloads(reader: KeyReader) -> bool:
    """Whether shards are on the host: a policy by its class, or given another way."""
    return reader.get(f"{_D}offload_policy._target_") is not None or reader.get(f"{_D}offload_policy") is not None


def _defers(reader: KeyReader, row: PlanRow) -> bool:
    """Whether gradients stay whole on every rank until the last micro-batch, where several are added up."""
    whole = reader.switch(f"{_D}defer_fsdp_grad_sync", default=True)
    return whole and row.gbs // (row.mbs * row.dp) > 1 and row.sharding != "z0"


_AGAIN = ("true", "full", "on", "yes", "enabled", "false", "off", "no", "none", "disabled", "selective")


def _recompute(reader: KeyReader) -> str:
    said = reader.choice(f"{_D}activation_checkpointing", _AGAIN, "false").replace("-", "_")
    if said == "selective":
        reader.refuse(
            f"{_D}activation_checkpointing", said, "it keeps products, which a plan cannot express", "use full"
        )
    again = said in _AGAIN[:5] or reader.switch("parallelizer.activation_checkpointing")
    return "full" if again else "none"
