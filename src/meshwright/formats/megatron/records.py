"""Options of Megatron-LM from where they are kept beside scripts: printed arguments, W&B and Hydra configs, YAML.

Each is written out as the command it stands for, every option on the line it has in its own file, and read as a script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from meshwright.errors import InputError
from meshwright.formats.files import parsed
from meshwright.formats.megatron.earlier import EARLIER
from meshwright.formats.megatron.options import known_options

if TYPE_CHECKING:
    from meshwright.formats.megatron.nemo import NemoConfig

RECORDS = ("args", "wandb", "hydra")
YAML = (".yaml", ".yml")
MAX_KEYS = 20_000
CONTAINER = "training.config.ConfigContainer"
"""The class of the whole configuration of a run of Megatron-Bridge."""
_DUMPED = re.compile(r"^(?:\s*[\w.-]+:)?\s*([A-Za-z_][A-Za-z0-9_]*) \.{2,} ?(.*?)\s*$")
_INVERTED = {
    "add_bias_linear": "--disable-bias-linear",
    "torch_fsdp2_reshard_after_forward": "--torch-fsdp2-no-reshard-after-forward",
}
"""Names that options set to False."""
_DERIVED = {"virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank"}
_NEMO = {
    "encoder_seq_length": "seq_length",
    "activations_checkpoint_granularity": "recompute_granularity",
    "activations_checkpoint_method": "recompute_method",
    "activations_checkpoint_num_layers": "recompute_num_layers",
    "num_moe_experts": "num_experts",
}
"""Names of NeMo's configs for those of Megatron-LM."""
_NEMO_VALUES = {("normalization", "rmsnorm"): "RMSNorm", ("normalization", "layernorm"): "LayerNorm"}
"""Values of NeMo's configs for those of Megatron-LM."""
_WHOLE = ("rotary_base",)
"""Numbers that Megatron-LM takes whole, and configs write as fractions."""
_OF_A_PLAN = ("micro_batch_size", "tensor_model_parallel_size", "num_layers", "global_batch_size")


_ROLE = re.compile(r"(?:^|[._])(rollout|generation|actor|critic|reward|teacher|ref)(?=[._])")
"""Names of tables that hold one of the models of reinforcement learning and distillation."""


def record_of(name: str, text: str) -> str | None:
    """Which record a file is, by its name and text; None where it is none of them.

    Args:
        name: the name of the file.
        text: the text of the file.
    """
    dumped = sum(_DUMPED.match(line) is not None for line in text.splitlines()[:MAX_KEYS])
    if dumped >= len(_OF_A_PLAN):
        return "args"
    if not name.endswith(YAML):
        return None
    if re.search(r"^_wandb:|^wandb_version:", text, re.MULTILINE):
        return "wandb"
    if CONTAINER in text:
        return "hydra"
    # A micro-batch alone is said by files of many trainers, which shard in ways of their own.
    both = all(re.search(rf"^[ \t]+{name}:", text, re.MULTILINE) for name in _OF_A_PLAN[:2])
    return "hydra" if both else None


def command_of(said: Mapping[int, list[str]], start: str) -> str:
    """A command with its options, each on the line where the record has it.

    Args:
        said: words by line, from 0.
        start: the program.
    """
    last = max(said, default=0)
    body = [" ".join([start if number == 0 else "", *said.get(number, [])]) + " \\" for number in range(last + 1)]
    return "\n".join([*body, ""]) + "\n"


def script_of(text: str, kind: str) -> str:
    """The command that a record stands for.

    Args:
        text: the text of the record.
        kind: one of RECORDS, or `yaml`: options under MODEL_ARGS, with variables in them.

    Raises:
        InputError: it is no such record, or holds no option of Megatron-LM.
    """
    nemo = nemo_of(text, kind)
    lines = text.split("\n")
    if nemo is not None:
        held: dict[int, list[str]] = {}
        for option, value, key in nemo.options:
            word = None if value is None else _double_quoted(value) if "$" in value else shlex.quote(value)
            held.setdefault(key_line(lines, key), []).append(option if word is None else f"{option} {word}")
        return command_of(held, f"{nemo.launcher} train.py".strip() if nemo.launcher else "python train.py")
    fields: Mapping[str, str] = {}
    if kind == "hydra" and CONTAINER in text:
        values, fields = _of_bridge(text)
    else:
        values = _dumped(text) if kind == "args" else _table(text, kind)
    if kind == "hydra" and (under := _base_of(text)):
        why = f"its options lie over those of {under}, which is not read: number formats and sharding may be there"
        fix = "check the arguments that the run prints when it starts: --from args"
        raise InputError(what="the file says a part of a run", why=why, fix=fix, code="MW231")
    said: dict[int, list[str]] = {}
    for option, value, key in _options(values, kind):
        at = key_line(lines, fields.get(key, key))
        said.setdefault(at, []).append(option if value is None else f"{option} {value}")
    if not any(name in values or f"--{name.replace('_', '-')}" in values for name in _OF_A_PLAN):
        shown = {"args": "the arguments Megatron-LM prints when it starts", "yaml": "options under MODEL_ARGS"}
        why = f"it has none of {', '.join(_OF_A_PLAN)}"
        raise InputError(
            what="there are no options", why=why, fix=f"give {shown.get(kind, 'the config of a run')}", code="MW231"
        )
    world = str(values.get("world_size", ""))
    counted = re.fullmatch(r"[1-9]\d{0,6}", world) is not None and kind in ("args", "wandb")
    starter = f"torchrun --nproc_per_node {world}" if counted else "python"
    return command_of(said, f"{starter} {'pretrain_gpt.py' if kind == 'yaml' else 'train.py'}")


def _of_bridge(text: str) -> tuple[dict[str, object], Mapping[str, str]]:
    """Values of a run of Megatron-Bridge, and the fields that say those of other names."""
    from meshwright.formats.megatron.bridge_run import SAID_BY, run_values  # few files are such

    _table(text, "hydra")  # bounds it
    data = parsed(text, "YAML", "configuration of a run")
    return run_values(data if isinstance(data, dict) else {}), SAID_BY


def nemo_of(text: str, kind: str) -> NemoConfig | None:
    """What a config of a GPT model of NeMo 1 says; None of other records."""
    if kind != "hydra":
        return None
    from meshwright.formats.megatron.nemo import nemo_config  # few files are such

    _table(text, kind)  # bounds it
    return nemo_config(parsed(text, "JSON" if text.lstrip()[:1] == "{" else "YAML", "hydra file"))


def _options(values: Mapping[str, object], kind: str) -> Iterator[tuple[str, str | None, str]]:
    """Options with their value as a shell word, None for switches, and the key they come from."""
    for key, value in values.items():
        if kind == "yaml":
            if key.startswith("--"):
                yield from _one(key, value, key, expanded=True)
            continue
        name = _NEMO.get(key, key) if kind == "hydra" else key
        value = _NEMO_VALUES.get((name, str(value)), value)
        value = int(value) if name in _WHOLE and isinstance(value, float) and value.is_integer() else value
        if name in _INVERTED:
            if value in (False, "False", "false"):
                yield _INVERTED[name], None, key
            continue
        if kind != "hydra" and _of_another_program(name, values):
            continue
        option = _DERIVED.get(name) or _by_destination().get(name)
        if option is None and kind != "hydra":
            option = _earlier(name, values)
        if option is not None:
            yield from _one(option, value, key, expanded=False)


_OTHERS = re.compile(
    r"(?:vision|retro|retriever|biencoder|bert|dino|img)_|(?:encoder|decoder)_(?:num_layers|seq_length)$"
)
"""Arguments of other programs, which every program prints with their defaults."""
_OF_DEEPSPEED = frozenset(
    (
        *("zero_stage", "deepspeed_config", "no_pipeline_parallel", "expert_interval", "moe_expert_parallel_size"),
        *("ds_sequence_parallel_size", "topk", "enable_zbh1_pipeline", "enable_expert_tensor_parallelism"),
    )
)
"""Arguments that Megatron-DeepSpeed prints, which mean something where it starts DeepSpeed."""


def _of_another_program(name: str, values: Mapping[str, object]) -> bool:
    """Whether a printed argument says nothing of this run: another program's default, or what follows from others."""
    said = str(values.get(name))
    if name == "num_experts":
        return said in ("[1]", "1")
    if _OTHERS.match(name) is None:
        return False
    option = _by_destination().get(name)
    usual = known_options()[option].default if option is not None else ""
    return said in (usual, str(values.get(name.partition("_")[2])))


def _earlier(name: str, values: Mapping[str, object]) -> str | None:
    """The option of an earlier release or of a fork that an argument is, where it says something today."""
    found = next((f"--{one}" for one in (name, name.replace("_", "-")) if f"--{one}" in EARLIER), None)
    if found is None or not EARLIER[found].gives:
        return None
    off = name in _OF_DEEPSPEED and str(values.get("deepspeed")) != "True"
    return None if off or (name == "ds_sequence_parallel_size" and str(values[name]) == "1") else found


def _one(option: str, value: object, key: str, *, expanded: bool) -> Iterator[tuple[str, str | None, str]]:
    known = known_options().get(option)
    switch = known is not None and known.takes == "0"
    text = str(value)  # 0 and 1 are numbers here, though they equal False and True
    if text in ("None", "", "False", "false", "[]"):
        return
    if option == "--zero-stage" and re.fullmatch(r"\d\.0", text):
        value = text[0]  # older releases of Megatron-DeepSpeed take a fraction
    if switch or (text in ("True", "true") and known is None):
        if text in ("True", "true"):
            yield option, None, key
        return
    entries = value if isinstance(value, list) else _listed(str(value)) if not expanded else [value]
    texts = [f"{entry:g}" if isinstance(entry, float) else str(entry) for entry in entries]
    if expanded:  # launchers write it into a command line, which takes off the quotes that YAML keeps
        texts = [text[1:-1] if len(text) > 1 and text[0] == text[-1] == "'" else text for text in texts]
    words = [_double_quoted(text) if expanded else shlex.quote(text.replace("torch.", "")) for text in texts]
    yield option, " ".join(word for text in words for word in text.split("\n")), key


def _double_quoted(text: str) -> str:
    """A text in which variables are filled in and nothing is run."""
    safe = re.sub(r"`|\$\((?!\()", lambda match: "\\" + match[0], text)
    return '"' + safe.replace('"', '\\"').replace("\n", " ") + '"'


def _listed(text: str) -> list[str]:
    """Entries of a printed list; a text that is none is its own only entry."""
    if text.startswith("[") and text.endswith("]") and re.fullmatch(r"\[[\w'\" ,.+-]*\]", text):
        return [part.strip().strip("'\"") for part in text[1:-1].split(",") if part.strip()]
    return [text]


@cache
def _by_destination() -> dict[str, str]:
    """Options by the name of their value in the program."""
    found: dict[str, str] = {}
    for option in known_options().values():
        for flag in reversed(option.flags):
            found[flag.removeprefix("--").replace("-", "_")] = option.flags[0]
        found.setdefault(option.flags[0].removeprefix("--").replace("-", "_"), option.flags[0])
    return found


def _dumped(text: str) -> dict[str, object]:
    """Names and values of lines such as `  hidden_size ..................... 4096`."""
    found: dict[str, object] = {}
    for line in text.splitlines():
        if match := _DUMPED.match(line[:2000]):
            found.setdefault(match[1], match[2])
        if len(found) > MAX_KEYS:
            break
    return found


def _table(text: str, kind: str) -> dict[str, object]:
    """Keys of a JSON or YAML record, without the tables they stand in."""
    language = "JSON" if text.lstrip()[:1] == "{" else "YAML"
    data = parsed(text, language, f"{kind} file")
    found: dict[str, object] = {}
    count = 0

    def walk(node: object, depth: int, above: str) -> None:
        nonlocal count
        if not isinstance(node, dict):
            return
        for key, value in node.items():
            count += 1
            if count > MAX_KEYS or depth > 12:
                why = f"it has more than {MAX_KEYS:,} keys, anchors written out, or is nested too deeply"
                raise InputError(what=f"the {kind} file cannot be read", why=why, fix="keep the options alone")
            if isinstance(value, dict) and set(value) <= {"value", "desc"} and "value" in value:
                value = value["value"]
            if isinstance(value, dict):
                walk(value, depth + 1, f"{above}{key}.")
            elif key in _OF_A_PLAN and (role := _ROLE.search(above)) is not None:
                why = f"{above}{key} is of one of several models ({role[1]}): no plan here prices them together"
                fix = "check a file of SFT or pretraining"
                raise InputError(what="the file trains a policy with others around it", why=why, fix=fix, code="MW231")
            else:
                found.setdefault(str(key), value)

    walk(data, 0, "")
    return found


def _base_of(text: str) -> str:
    """The file over whose options a module of Primus lays its `overrides`; nothing of other files."""
    data = parsed(text, "YAML", "hydra file")
    modules = data.get("modules") if isinstance(data, dict) else None
    for module in modules.values() if isinstance(modules, dict) else ():
        if isinstance(module, dict) and "overrides" in module and "config" in module:
            return f"{module.get('framework', 'the framework')}'s {module['config']}"[:80]
    return ""


def key_line(lines: list[str], key: str) -> int:
    """The line, from 0, where a key stands; the first where none does."""
    pattern = re.compile(rf"^[\s\"'{{,]*(?:[\w.-]+:\s*)?{re.escape(key)}[\"']?\s*(?::| \.\.)")
    return next((number for number, line in enumerate(lines) if key in line and pattern.match(line)), 0)
