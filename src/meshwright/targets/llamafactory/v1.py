"""The YAML of LLaMA-Factory's second trainer, whose engines are plug-ins with a table of their own.

Keys are those of src/llamafactory/v1/config of llamafactory 0.9.5 (2026-11); weights are loaded in the format of their
checkpoint (core/model_engine.py, dtype "auto"), 16 bits, and updated as they are.
"""

from __future__ import annotations

from typing import Any

from meshwright.formats.launch_file import LaunchFile
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.targets import fine_tuning, fsdp, hugging_face
from meshwright.targets.contract import Files
from meshwright.targets.keys import KeyReader

_ENGINES = ("fsdp2", "deepspeed")


def read_v1(reader: KeyReader, files: Files, devices: int | None) -> LaunchFile:
    """A file of the second trainer as a plan.

    Args:
        reader: its keys.
        files: the files of the run: the JSON of DeepSpeed, where it is named and there.
        devices: the number of devices of the job; one where nobody says it.
    """
    _refuse(reader)
    mbs, cp, world = reader.degree("micro_batch_size"), reader.degree("cp_size"), devices or 1
    if world % cp:
        reader.refuse("cp_size", cp, f"must divide the {world} devices", "use --gpus with the devices of the job")
        return reader.launch(None)
    dp = world // cp
    gbs = reader.degree("global_batch_size") if reader.get("global_batch_size") else mbs * dp
    if gbs % (mbs * dp):
        why = f"must be a multiple of micro_batch_size {mbs} x data ranks {dp}"
        reader.refuse("global_batch_size", gbs, why, "use --gpus with the devices of the job")
        return reader.launch(None)
    full = "full" if reader.switch("enable_activation_checkpointing", default=True) else "none"
    wide = not reader.switch("bf16", default=True)
    lora = _lora(reader)
    workload: dict[str, Any] = {
        "seq_len": reader.degree("cutoff_len", 2048),
        "precision": PRECISIONS["fp32"] if wide else fsdp.IN_16_BITS,
        "optimizer": "adamw",
        "global_batch": gbs,
        **({"lora": lora} if lora else {}),
    }
    named = {"name": str(reader.get("model"))} if reader.get("model") else {}
    if reader.word("dist_config.name") == "deepspeed":
        trainer = hugging_face.Arguments(given=True, recompute=full, mbs=mbs, steps=gbs // (mbs * dp))
        name = str(reader.get("dist_config.config_file"))
        engine = KeyReader(
            keys={fine_tuning.ENGINE: name}, problems=reader.problems, file=reader.file, beside=reader.beside
        )
        launched = fine_tuning.of_deepspeed(engine, files, trainer, devices)
        if launched is None:
            return reader.launch(None, model=named, questions=(fine_tuning.engine_missing(engine),))
        return reader.launch(launched.row, **fine_tuning.with_fields(launched, reader, reader.get("model"), **workload))
    sharded = reader.word("dist_config.name") == "fsdp2"
    row = PlanRow(
        cp=(("a2a", cp),) if cp > 1 else (),
        dp=dp,
        **fsdp.sharding(sharded, dp=dp, replicate=1 if sharded else dp, cp=cp),
        mbs=mbs,
        gbs=gbs,
        recompute=full,
    )
    return reader.launch(row, model=named, workload=workload)


def _refuse(reader: KeyReader) -> None:
    """What trains otherwise than plans do."""
    engine = reader.word("dist_config.name")
    if engine and engine not in _ENGINES:
        why = f"how it shards is not known here; {' and '.join(_ENGINES)} are"
        reader.refuse("dist_config.name", engine, why, "check the file of one of these")
    kind = reader.word("peft_config.name")
    if kind not in ("", "lora"):
        reader.refuse("peft_config.name", kind, "full training and lora can be planned", "use lora, or leave it out")
    if reader.word("model_class", "llm") != "llm":
        reader.refuse("model_class", reader.get("model_class"), "decoders of text can be planned", "check one of llm")
    if reader.get("dpo_config") is not None or reader.get("dpo_beta") is not None:
        reader.refuse("dpo_config", True, "more than one model runs", "check a file of SFT")
    strategy = reader.word("batching_strategy", "normal")
    if strategy not in ("normal", "padding_free"):
        why = "micro-batches then hold as many samples as fill them, which depends on the data"
        reader.refuse("batching_strategy", strategy, why, "check with micro_batch_size whole sequences of cutoff_len")
    mode = reader.word("cp_mode", "ulysses")
    if reader.degree("cp_size") > 1 and mode != "ulysses":
        reader.refuse("cp_mode", mode, "only ulysses is known here", "use ulysses")
    optimizer = reader.word("optim_config.name")
    if optimizer:
        reader.refuse(
            "optim_config.name", optimizer, "what it keeps of each weight is not known here", "say --optimizer"
        )


def _lora(reader: KeyReader) -> dict[str, Any] | None:
    if reader.word("peft_config.name") != "lora":
        return None
    bits = reader.get("quant_config.quantization_bit")
    base = {4: "nf4", 8: "int8"}.get(bits) if isinstance(bits, int) else None
    if reader.get("quant_config.name") is not None and base is None:
        reader.refuse("quant_config.quantization_bit", bits, "frozen weights in 4 or 8 bits can be planned", "use 4")
    found = {
        "r": reader.degree("peft_config.r", 8),
        "targets": fine_tuning.targets_of(reader.get("peft_config.target_modules", "all")),
        "dropout": reader.get("peft_config.lora_dropout", 0.0),
        "base": base,
    }
    return {name: value for name, value in found.items() if value}
