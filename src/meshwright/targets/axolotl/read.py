"""Axolotl's YAML as a plan: FSDP2, DeepSpeed in a file beside it, or whole copies."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import adapters, fine_tuning, fsdp, hugging_face
from meshwright.targets.axolotl import CONFIG, TITLE, recognised
from meshwright.targets.contract import Files, file_of
from meshwright.targets.keys import KeyReader
from meshwright.targets.peft_experts import parameters_of

LENGTH = 512
"""Default of sequence_len."""
_ATTENTION = (
    *("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention", "xformers"),
    *("sage", "s2", "fp8", "paged|eager"),
)
"""Words of attn_implementation, of axolotl and of the transformers library."""


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML file as a plan, with the JSON of DeepSpeed that it names.

    Args:
        files: the YAML, and the JSON where it is there.
        devices: the number of devices of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML.
    """
    reader = fine_tuning.reader_of(files, file_of(files, CONFIG, recognised), TITLE)
    rl = reader.word("rl")
    if rl:
        reader.refuse("rl", rl, "more than one model runs, or a sequence runs twice", "check a file without it")
    if reader.get("qat") is not None:
        why = "weights and inputs are rounded in every product, which is not priced"
        reader.refuse("qat", "given", why, "check a file without it")
    _refuse(reader)
    trainer = _trainer(reader)
    said: dict[str, Any] = {"seq_len": reader.degree("sequence_len", LENGTH), "lora": _lora(reader)}
    if reader.switch("tiled_mlp"):
        said["mlp_tiles"] = _tiles(reader)
    attention = reader.word("attn_implementation")
    if "/" not in attention:  # a kernel of a hub has its path
        attention = reader.choice("attn_implementation", _ATTENTION)
    if attention == "eager" or reader.switch("eager_attention"):
        said["attention_kernel"] = "materialised"
    model = reader.get("base_model")
    if reader.get("deepspeed") is not None:
        said |= trainer.software
        if reader.get("fsdp") or reader.get("fsdp_config"):
            reader.refuse(
                "fsdp_config", "given", "one engine runs, and deepspeed is named too", "leave one of them out"
            )
        engine = fine_tuning.of_deepspeed(reader, files, trainer, devices)
        if engine is None:
            return reader.launch(
                None, model={"name": str(model)} if model else {}, questions=(fine_tuning.engine_missing(reader),)
            )
        return reader.launch(_away(engine.row, reader), **fine_tuning.with_fields(engine, reader, model, files, **said))
    row = _away(_row(reader, trainer, devices), reader)
    plain = (
        trainer.dtype == "bf16"
        and said["lora"] is None
        and ((row is not None and row.sharding == "z0") or _second(reader))
    )
    low = "fp8" if reader.switch("fp8") else trainer.dtype or "fp32"
    workload = {
        "precision": fsdp.ALL_IN_16_BITS if plain and low != "fp8" else PRECISIONS[low],
        "optimizer": trainer.optimizer,
        **({"global_batch": row.gbs} if row else {}),
        **{name: value for name, value in said.items() if value is not None},
        **hugging_face.software_of(
            reader, trainer, deferrable=row is not None and row.sharding != "z0" and trainer.steps > 1
        ),
    }
    return reader.launch(row, model={"name": str(model)} if model else {}, workload=workload)


def _tiles(reader: KeyReader) -> int | None:
    """Pieces of the tokens that feed-forward parts are computed in, which Axolotl may choose itself."""
    if reader.get("tiled_mlp_num_shards") is None:
        why = "Axolotl chooses the pieces by the length of each batch"
        reader.refuse("tiled_mlp", "true", why, "give tiled_mlp_num_shards")
        return None
    return reader.degree("tiled_mlp_num_shards")


def _second(reader: KeyReader) -> bool:
    """Whether FSDP2 shards, which trains weights as they are loaded; FSDP1 makes its shards fp32."""
    nested = reader.get("fsdp_config.fsdp_version", 1)
    return str(reader.get("fsdp_version", nested)) == "2"


_UNREAD = (
    *("unfrozen_parameters", "gptq", "llmcompressor", "diffusion"),
    *("model_quantization_config", "lisa_n_layers", "lisa_step_interval", "use_onebitllms", "rl_beta"),
)
"""What changes memory or time, and is in no plan."""
_OTHER_MODELS = ("num_labels", "reward_model", "process_reward_model", "cls_model_config", "processor_type")
"""Keys of models without a head of the vocabulary, or with a tower before the text."""


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do."""
    fine_tuning.refuse_on(reader, _UNREAD, "what it changes of memory and time is in no plan")
    why = "it is no plain decoder: images go through a tower, or it ends in a head of other outputs"
    fine_tuning.refuse_on(reader, _OTHER_MODELS, why, "check a file of a text model")
    if not any(one.field == "processor_type" for one in reader.problems):
        fine_tuning.refuse_seeing(reader, "base_model")
    if reader.degree("expert_parallel_size") > 1:
        why = "its ranks are among those that share a batch, which is not read"
        reader.refuse("expert_parallel_size", reader.get("expert_parallel_size"), why, "use 1")


def _host(reader: KeyReader) -> str:
    """What part of the activations goes to the host: the inputs of layers, where these are recomputed."""
    checkpointing, said = reader.word("gradient_checkpointing", "false"), reader.word("activation_offloading", "false")
    for name, value in (("gradient_checkpointing", checkpointing), ("activation_offloading", said)):
        if value in ("offload_disk", "disk"):
            reader.refuse(name, value, "activations on a disk are in no plan", "use true")
    return "a" if checkpointing == "offload" or said not in ("false", "disk") else ""


_CHECKPOINTING = ("true", "false", "offload", "offload_disk", "unsloth")


def _trainer(reader: KeyReader) -> hugging_face.Arguments:
    bf16 = reader.choice("bf16", ("true", "false", "auto", "full"), "false")
    checkpointing = reader.choice("gradient_checkpointing", _CHECKPOINTING, "false")
    return hugging_face.Arguments(
        given=True,
        recompute="none" if checkpointing == "false" else "full",
        optimizer=hugging_face.optimizer_of(reader, "optimizer"),
        dtype="bf16"
        if bf16 in ("true", "auto", "full") or reader.switch("bfloat16")
        else "fp16"
        if reader.switch("fp16") or reader.switch("float16")
        else "",
        mbs=reader.degree("micro_batch_size"),
        steps=reader.degree("gradient_accumulation_steps", _steps_of_batch(reader)),
        compiled=reader.switch("torch_compile"),
        synced=hugging_face.synced(reader),
    )


def _steps_of_batch(reader: KeyReader) -> int:
    """Micro-batches of a step where the older `batch_size` says what a device trains in one.

    Source: normalize_config of src/axolotl/utils/config/__init__.py, axolotl 0.19.
    """
    mbs = reader.degree("micro_batch_size")
    return max(1, reader.degree("batch_size", mbs) // mbs)


def _away(row: PlanRow | None, reader: KeyReader) -> PlanRow | None:
    """A plan with the activations that go to the host."""
    host = _host(reader)
    if row is None or not host:
        return row
    return replace(row, offload="".join(one for one in "waog" if one in row.offload + host))


def _row(reader: KeyReader, trainer: hugging_face.Arguments, devices: int | None) -> PlanRow | None:
    """The plan of FSDP2, or of whole copies."""
    sharded = any([reader.get("fsdp_config"), reader.get("fsdp")])
    tp, replicate = reader.degree("tensor_parallel_size"), reader.degree("dp_replicate_size")
    cp = reader.degree("context_parallel_size", reader.degree("sequence_parallel_degree"))
    shard = reader.degree("dp_shard_size") if reader.get("dp_shard_size") else None
    world = devices or tp * cp * replicate * (shard or 1)
    dp = world // (tp * cp)
    if world % (tp * cp) or dp % replicate or (sharded and shard is not None and shard * replicate != dp):
        why = f"must make {world} devices with tp {tp} x cp {cp} x copies {replicate}"
        reader.refuse("dp_shard_size", shard, why, "leave it out")
        return None

    def said(name: str, default: bool = False) -> bool:
        earlier = f"fsdp_config.fsdp_{name}"
        return reader.switch(earlier if reader.get(earlier) is not None else f"fsdp_config.{name}", default)

    return PlanRow(
        tp=tp,
        sp=tp == 1,
        cp=(("p2p", cp),) if cp > 1 else (),
        dp=dp,
        **fsdp.sharding(
            sharded,
            dp=dp,
            replicate=replicate if sharded else dp,
            cp=cp,
            reshard=said("reshard_after_forward", default=True),
        ),
        mbs=trainer.mbs,
        gbs=trainer.mbs * trainer.steps * dp,
        recompute="full" if said("activation_checkpointing") else trainer.recompute,
        offload="wog" if said("offload_params") else "",
    )


_PATTERN = re.compile(r"[\w.\\\[\]+*()|?]*\(((?:\w+\|)*\w+)\)(\w+)")


def _targets(reader: KeyReader, named: object) -> list[str]:
    """Modules with adapters: names, or one pattern over the same names of every layer."""
    if not isinstance(named, str) or not set(named) & set("[]()|\\"):
        return fine_tuning.targets_of(named)
    match = _PATTERN.fullmatch(named)
    if match is None or re.search(r"layers\W{0,4}\(?\d", named):
        why = "it is a pattern over paths, of which those of all layers that end in a list of names are read"
        reader.refuse("lora_target_modules", named, why, "name the modules")
        return ["q_proj", "v_proj"]
    return [f"{name}{match[2]}" for name in match[1].split("|")]


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    kind = reader.word("adapter")
    if kind not in ("", "lora", "qlora"):
        reader.refuse("adapter", kind, "lora and qlora can be planned", "use lora")
    if kind not in ("lora", "qlora"):
        return None
    every = reader.switch("lora_target_linear")
    named = reader.get("lora_target_modules")
    layers = reader.get("peft_layers_to_transform")
    found = {
        "r": reader.degree("lora_r", 8),
        "targets": [ALL_LINEAR] if every else _targets(reader, named or "q_proj,v_proj"),
        "dora": reader.switch("peft_use_dora"),
        "dropout": reader.get("lora_dropout", 0.0),
        "layers": adapters.layer_texts(layers) if isinstance(layers, list) else None,
        "train": reader.get("lora_modules_to_save"),
        "base": "nf4" if reader.switch("load_in_4bit") else "int8" if reader.switch("load_in_8bit") else None,
        "parameters": parameters_of(reader.get("lora_target_parameters")),
    }
    experts = reader.switch("quantize_moe_experts")
    if experts and (every or not found["base"]):
        why = "Axolotl stops beside lora_target_linear, and without load_in_4bit or load_in_8bit"
        reader.refuse("quantize_moe_experts", "true", why, "name lora_target_modules and load_in_4bit")
    if not experts and found["base"]:
        found["skip"] = ["experts"]
    return {name: value for name, value in found.items() if value}
