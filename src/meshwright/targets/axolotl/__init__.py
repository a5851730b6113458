"""Axolotl: the YAML of a fine-tuning, with FSDP2 in its own keys or DeepSpeed in a JSON file.

Keys are those of its schemas (utils/schemas/config.py, training.py, peft.py, fsdp.py) in axolotl 0.19.0 (2026-11),
https://github.com/axolotl-ai-cloud/axolotl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS, stated
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import ALL_LINEAR
from meshwright.targets import adapters, deepspeed, fine_tuning, fsdp, hugging_face
from meshwright.targets.contract import Files, file_of, marked_lines
from meshwright.targets.keys import KeyReader, Keys, nested_tables, yaml_text
from meshwright.targets.one_strategy import OneStrategyTarget
from meshwright.targets.overrides import by_flags
from meshwright.targets.sayable import ANY, Plan, Rule, only

TITLE = "Axolotl"
CONFIG = "axolotl.yaml"
DATASETS = [{"path": "data.jsonl", "type": "completion"}]
"""Texts to train on: the command line takes no list of data sets."""
_SCHEMA = "axolotl/utils/schemas/config.py of axolotl 0.19.0"
_LOADED = "axolotl/utils/config/__init__.py and axolotl/monkeypatch/accelerate/fsdp2.py of axolotl 0.19.0"
_AS_LOADED = (
    fsdp.ALL_IN_16_BITS.name,
    stated(PRECISIONS["bf16"], {"grad_dtype": "bf16", "moment_dtype": "bf16", "main_copy": "none"}).name,
)
"""Names of the formats in which FSDP2 trains weights that are loaded in 16 bits: a question leaves the messages out."""
SAYS = (
    deepspeed.SAYS
    | fsdp.SAYS
    | {
        "tp": only(1, why="its call for tensor ranks stops in transformers 5.23", fix="use fsdp, z3 or cp"),
        "cp": ANY,
        "context.kinds": only("p2p", why="keys and values go round in a ring", fix="use p2p"),
        "expert.ep": only(1, why="experts are on every rank"),
        "offload.tier": ANY,
        "precision": only("bf16", "fp16", "fp32", *_AS_LOADED),
    }
)
_FREER = ("data.replicate", "data.reshard", "offload.weights")
"""What DeepSpeed's rules say of these does not hold of FSDP2; tensor ranks are refused as such."""
RULES = (
    *(rule for rule in deepspeed.RULES if rule.field not in ("cp", "data.zero", "tensor.sequence_parallel", *_FREER)),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or plan.strategy.data.family == "fsdp",
        why="context parallelism goes with FSDP2",
        fix="use fsdp",
        source=_SCHEMA,
    ),
    Rule(
        field="cp",
        holds=lambda plan: plan.strategy.cp == 1 or _attention(plan) == "flash_attention_2",
        why="its ring of keys and values is made of flash attention, which takes 16 bits",
        fix="use bf16 and no materialised attention, or cp1",
        source=_SCHEMA,
    ),
    Rule(
        field="precision",
        holds=lambda plan: (
            plan.strategy.data.family != "fsdp"
            or plan.model.lora is not None
            or plan.precision.name in ("fp32", *_AS_LOADED)
        ),
        why="weights are loaded in 16 bits, which FSDP2 shards and trains as they are, moments too",
        fix="state grad_dtype bf16, moment_dtype bf16 and main_copy none, or use z3",
        source=_LOADED,
    ),
    Rule(
        field="precision",
        holds=lambda plan: plan.strategy.data.family == "fsdp" or plan.precision.name not in _AS_LOADED,
        why="DeepSpeed keeps a main copy and moments in fp32",
        fix="leave out main_copy, or use fsdp",
        source="deepspeed/runtime/bf16_optimizer.py of deepspeed 0.19.8",
    ),
    Rule(
        field="data.replicate",
        holds=lambda plan: (
            plan.strategy.data.zero == 0 or plan.strategy.data.replicate == 1 or plan.strategy.data.family == "fsdp"
        ),
        why="ZeRO shards over all data ranks",
        fix="use hsdp",
        source=_SCHEMA,
    ),
    Rule(
        field="offload.optimizer",
        holds=lambda plan: (
            plan.strategy.data.family != "fsdp"
            or plan.strategy.offload.optimizer == plan.strategy.offload.weights == plan.strategy.offload.gradients
        ),
        why="FSDP2 offloads weights, gradients and optimizer states together",
        fix="use off-wog, or none",
        source=fsdp.OFFLOAD_POLICY,
    ),
    Rule(
        field="data.overlap",
        holds=lambda plan: plan.strategy.data.overlap or plan.strategy.data.family != "fsdp",
        why="FSDP2 overlaps its collectives",
        fix="leave out nodpov",
        source=_SCHEMA,
    ),
    Rule(
        field="data.reshard",
        holds=lambda plan: plan.strategy.data.reshard or plan.strategy.data.family == "fsdp" or not plan.sharded,
        why="ZeRO-3 frees gathered weights as the limits on live parameters say",
        fix="use z3",
        source=_SCHEMA,
    ),
    fsdp.offloads_shards(_SCHEMA, why="weights that every rank holds whole are not offloaded", fix="use fsdp, or z3"),
)
_LENGTH = 512
"""Default of sequence_len."""


def configuration(plan: Plan) -> Keys:
    """The keys of the YAML."""
    strategy, lora = plan.strategy, plan.model.lora
    flat: Keys = {
        "datasets": DATASETS,
        "sequence_len": plan.workload.seq_len,
        "sample_packing": plan.workload.attention_kernel != "materialised" and not _several_in_a_ring(plan),
        "micro_batch_size": plan.found.pipeline.micro_batch,
        "gradient_accumulation_steps": plan.found.pipeline.num_micro_batches,
        "gradient_checkpointing": plan.recomputed,
        "attn_implementation": _attention(plan),
        "optimizer": hugging_face.OPTIMIZERS[plan.workload.optimizer],
        **fine_tuning.dtype_keys(plan),
        "learning_rate": 1e-4,
        "max_steps": 20,
        "output_dir": "out",
    }
    if fine_tuning.by_deepspeed(plan):
        flat["deepspeed"] = deepspeed.CONFIG
    else:
        flat |= {
            "dp_shard_size": strategy.data.shard,
            "dp_replicate_size": strategy.data.replicate,
            "tensor_parallel_size": strategy.tp,
            "context_parallel_size": strategy.cp,
            "fsdp_version": 2,
            "fsdp_config.reshard_after_forward": strategy.data.reshard,
            "fsdp_config.offload_params": bool(strategy.offload.weights),
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
        }
    if lora is not None:
        every = ALL_LINEAR in lora.targets
        flat |= {
            "adapter": "qlora" if lora.base not in (None, "int8") else "lora",
            "lora_r": lora.rank,
            "lora_alpha": lora.rank,
            "lora_dropout": lora.dropout,
            "lora_target_linear": True if every else None,
            "lora_target_modules": None if every else list(lora.targets),
            "peft_use_dora": lora.dora or None,
            "peft_layers_to_transform": adapters.layer_numbers(lora),
            "lora_modules_to_save": [adapters.SAVED[part] for part in lora.train] or None,
            "load_in_8bit": True if lora.base == "int8" else None,
            "load_in_4bit": True if lora.base not in (None, "int8") else None,
        }
    return nested_tables(flat)


def _attention(plan: Plan) -> str:
    """Its kernels of attention: those of flash attention take no fp32."""
    if plan.workload.attention_kernel == "materialised":
        return "eager"
    return "sdpa" if plan.precision.activations == "fp32" else "flash_attention_2"


def _several_in_a_ring(plan: Plan) -> bool:
    """Packed sequences go round a ring one at a time."""
    return plan.strategy.cp > 1 and plan.found.pipeline.micro_batch > 1


def _files(plan: Plan) -> tuple[tuple[str, str], ...]:
    texts = (
        f'{DATASETS[0]["path"]} holds the texts, {{"text": ...}} in each line; the model is given on the command line'
    )
    head = (texts, f"plan: {plan.job.name or plan.model.name}")
    return (CONFIG, yaml_text(configuration(plan), head)), *fine_tuning.engine_files(plan)


def _start(plan: Plan) -> str:
    launcher = ""
    if plan.nodes > 1:
        address = "--rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:6000"
        launcher = f" --launcher torchrun -- --nnodes {plan.nodes} --nproc_per_node {plan.per_node} {address}"
    return f"axolotl train {CONFIG} --base-model id/or/folder{launcher}"


def _beyond(plan: Plan) -> Iterator[Problem]:
    yield from hugging_face.trainer_problems(plan)
    lora = plan.model.lora
    if lora is not None and lora.base not in (None, "nf4", "int8"):
        why, fix = "frozen weights in 4 bits are nf4 with double quantisation", "use base=nf4"
        yield Problem(what=f"plan: frozen weights are stored in {lora.base}", why=why, fix=fix, field="tuning")


_recognised = marked_lines(r"^(?:sequence_len|base_model):", r"^(?:micro_batch_size|adapter):")


def read(files: Files, devices: int | None = None) -> LaunchFile:
    """A YAML file as a plan, with the JSON of DeepSpeed that it names.

    Args:
        files: the YAML, and the JSON where it is there.
        devices: of the job; one where nobody says it.

    Raises:
        InputError: the text is no YAML.
    """
    reader = fine_tuning.reader_of(files, file_of(files, CONFIG, _recognised), TITLE)
    rl = reader.word("rl")
    if rl:
        reader.refuse("rl", rl, "more than one model runs, or a sequence runs twice", "check a file without it")
    if reader.get("qat") is not None:
        why = "weights and inputs are rounded in every product, which is not priced"
        reader.refuse("qat", "given", why, "check a file without it")
    _refuse(reader)
    trainer = _trainer(reader)
    said: dict[str, Any] = {"seq_len": reader.degree("sequence_len", _LENGTH), "lora": _lora(reader)}
    if reader.switch("torch_compile"):
        said["software"] = "pytorch-compiled"
    if reader.word("attn_implementation") == "eager" or reader.switch("eager_attention"):
        said["attention_kernel"] = "materialised"
    model = reader.get("base_model")
    if reader.get("deepspeed") is not None:
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
    }
    return reader.launch(row, model={"name": str(model)} if model else {}, workload=workload)


def _second(reader: KeyReader) -> bool:
    """Whether FSDP2 shards, which trains weights as they are loaded; FSDP1 makes its shards fp32."""
    nested = reader.get("fsdp_config.fsdp_version", 1)
    return str(reader.get("fsdp_version", nested)) == "2"


_UNREAD = (
    *("unfrozen_parameters", "lora_target_parameters", "quantize_moe_experts", "gptq", "llmcompressor", "diffusion"),
    *("model_quantization_config", "lisa_n_layers", "lisa_step_interval", "tiled_mlp", "use_onebitllms", "rl_beta"),
)
"""What changes memory or time, and is in no plan."""
_OTHER_MODELS = ("num_labels", "reward_model", "process_reward_model", "cls_model_config", "processor_type")
"""Keys of models without a head of the vocabulary, or with a tower before the text."""


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do."""
    fine_tuning.refuse_on(reader, _UNREAD, "what it changes of memory and time is in no plan")
    why = "it is no plain decoder: images go through a tower, or a head of other outputs stands at the end"
    fine_tuning.refuse_on(reader, _OTHER_MODELS, why, "check a file of a text model")
    if not any(one.field == "processor_type" for one in reader.problems):
        fine_tuning.refuse_seeing(reader, "base_model")
    if reader.degree("expert_parallel_size") > 1:
        why = "its ranks are among those that share a batch, which is not read"
        reader.refuse("expert_parallel_size", reader.get("expert_parallel_size"), why, "use 1")


def _host(reader: KeyReader) -> str:
    """What of the activations goes to the host: the inputs of layers, where these are recomputed."""
    checkpointing, said = reader.word("gradient_checkpointing", "false"), reader.word("activation_offloading", "false")
    for name, value in (("gradient_checkpointing", checkpointing), ("activation_offloading", said)):
        if value in ("offload_disk", "disk"):
            reader.refuse(name, value, "activations on a disk are in no plan", "use true")
    return "a" if checkpointing == "offload" or said not in ("false", "disk") else ""


def _trainer(reader: KeyReader) -> hugging_face.Arguments:
    bf16, checkpointing = reader.word("bf16", "false"), reader.word("gradient_checkpointing", "false")
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
    }
    return {name: value for name, value in found.items() if value}


TARGET = OneStrategyTarget(
    name="axolotl",
    title=TITLE,
    version="0.19.0 (2026-11)",
    says=SAYS,
    rules=RULES,
    beyond=_beyond,
    write=_files,
    start=_start,
    read=read,
    recognised=_recognised,
    overrides=lambda launch: by_flags(launch.words),
    beside=(deepspeed.CONFIG, hugging_face.ARGUMENTS),
    named=fine_tuning.engine_named,
    suggested=False,
    software="pytorch-eager",
)
