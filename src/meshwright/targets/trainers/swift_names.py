"""Options of ms-swift by today's names: those of version 2 (2024) had others.

Source: swift/llm/utils/argument.py of ms-swift 2.6 and swift/arguments of ms-swift 4 (2026).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from meshwright.formats.shell import Word, word
from meshwright.targets.trainers import commands

_EARLIER = {
    "model_id_or_path": "model",
    "sft_type": "tuner_type",
    "batch_size": "per_device_train_batch_size",
    "dtype": "torch_dtype",
    "quantization_bit": "quant_bits",
    "lora_target_modules": "target_modules",
    "lora_dropout_p": "lora_dropout",
    "lora_modules_to_save": "modules_to_save",
}
"""What ms-swift 2 (2024) called an option, by today's name."""
_EARLIER_FILE = re.compile(r"^default-(?=zero)")
"""The start of those files' names in ms-swift 2."""


def options(words: Sequence[Word]) -> dict[str, tuple[Word, ...]]:
    """Options of a command by today's names, with the words behind each.

    Args:
        words: the words behind the verb.
    """
    found = commands.options_by_name(words)
    if not found.keys() & _EARLIER.keys():
        return found
    if "model_type" in found and "model_id_or_path" not in found:
        found["model_id_or_path"] = found["model_type"]
    if found.get("sft_type", (word("lora"),))[0].text == "lora" and "lora_target_modules" not in found:
        found["lora_target_modules"] = (word("DEFAULT"),)
    return {_EARLIER.get(name, name): said for name, said in found.items()}


def engine(name: str) -> str:
    """Today's name of a file of DeepSpeed that comes with it: `default-zero2` was that of `zero2`.

    Args:
        name: the name as an option says it; another file's name is left as it is.
    """
    today = _EARLIER_FILE.sub("", name)
    return name if today == name else today.replace("-offload", "_offload")
