"""The model that a launch file trains: by its name, or as its options describe it."""

from __future__ import annotations

import re
from dataclasses import replace

from meshwright.errors import MeshwrightError, Problem
from meshwright.formats.launch_file import LaunchFile
from meshwright.formats.megatron.described import described_model, describes
from meshwright.library import models
from meshwright.specs.model import ModelSpec

_VOCABULARIES = {"Llama2Tokenizer": 32000, "GPT2BPETokenizer": 50257}
"""Tokens of tokenizers that are one file everywhere: of Llama 2 (arXiv 2307.09288) and of GPT-2."""
_MIXED = ("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model")
"""Options of Megatron-LM that describe Mamba layers beside attention."""
_NAME_IT = "name the model before the file: check MODEL FILE"


def model_trained(launch: LaunchFile, name: str) -> tuple[ModelSpec | None, Problem | None]:
    """The model of a launch file, or the question for what it leaves open.

    Args:
        launch: the file as read.
        name: the name of a model that only options describe.

    Raises:
        InputError: sizes contradict each other.
    """
    if launch.spec is not None:
        return launch.spec, None
    named = launch.model.get("name")
    if isinstance(named, str) and named:
        return _resolved(named)
    if not describes(launch.model) and "tokenizer" not in launch.model:
        mixed = next((one.option for one in launch.unpriced if one.option in _MIXED), None)
        why = "the file says how a model is trained, not which one"
        if mixed is not None:
            why = f"its layers are of several kinds ({mixed}), which are read from a model's config.json alone"
        return None, Problem(what="no model is given", why=why, fix=_NAME_IT, field="model")
    vocab, whose = _vocabulary(launch)
    if vocab is None:
        why = "the tokenizer is not available, and no --vocab-size says how many tokens it has"
        fix = "give --set vocab-size=N, or name the model before the file: check MODEL FILE"
        return None, Problem(what="the vocabulary is not known", why=why, fix=fix, field="model")
    if not describes(launch.model):
        return None, None
    notes = (f"vocabulary of {vocab:,} tokens, that of {whose}",) if whose else ()
    return described_model(launch.model, name=name, vocab=vocab, notes=notes), None


def model_meant(named: str) -> str:
    """The library's name of the model that a trainer loads by a name or a path; the name itself where it has none.

    Args:
        named: a name on the hub, or a path.
    """
    return models.find_name(named) or _named_in(named) or named


def _vocabulary(launch: LaunchFile) -> tuple[int | None, str]:
    """Tokens of the vocabulary, and whose it is where no option says them."""
    kind, place = launch.model["tokenizer"]
    vocab: int | None = launch.model.get("vocab")
    if vocab is not None and vocab > 0:
        return vocab, ""
    whole = _named_in(place, files=True) if place else None
    if whole is not None:
        return models.spec(whole).vocab, whole
    return _VOCABULARIES.get(kind), kind


def _named_in(place: str, *, files: bool = False) -> str | None:
    """The library's model whose name the end of a path has; None where it has none.

    Args:
        place: a path or a name on the hub: `/data/Llama-2-7b-hf`, a folder of the hub's cache, `x/qwen3-8b-instruct`.
        files: whether the path may be that of a tokenizer's file in the model's folder.
    """
    parts = [part for part in place.split("/") if part]
    if len(parts) > 2 and parts[-2] == "snapshots":
        parts = parts[:-2]
    if files and len(parts) > 1 and _TOKENIZER_FILE.fullmatch(parts[-1]):
        parts.pop()
    if not parts:
        return None
    last = _CACHED.sub("", parts[-1]).replace("--", "/")
    return models.find_name(last) or models.find_name(_TUNED.sub("", last))


def with_stored_weights(launch: LaunchFile) -> LaunchFile:
    """A launch file whose model is stored in fewer bits by its name: adapters stand beside weights in that format.

    Args:
        launch: the file as read.
    """
    name, lora = str(launch.model.get("name", "")), launch.workload.get("lora")
    last = name.rstrip("/").rpartition("/")[2]
    match = _STORED.search(last)
    if (match is None and not _OTHERWISE.search(last)) or (launch.row is None and launch.questions):
        return launch
    if match is None or _OTHERWISE.search(last):
        what, why = (
            f"the model is {name[:80]}",
            "weights in 2 or 3 bits, or in a file of another program, have no price",
        )
        fix = "name the model in 16 bits"
        return replace(launch, problems=(*launch.problems, Problem(what=what, why=why, fix=fix, field="model")))
    bits = "int8" if "8" in match[0] else "nf4"
    if lora is None:
        what = f"the model is {name[:80]}, whose weights are stored in {'8' if bits == 'int8' else '4'} bits"
        why, fix = "such weights are frozen: adapters are trained beside them", "name the model in 16 bits"
        return replace(launch, problems=(*launch.problems, Problem(what=what, why=why, fix=fix, field="model")))
    if (re.search(r"\bbase=", lora) if isinstance(lora, str) else lora.get("base")) is not None:
        return launch
    own = f"{lora},base={bits}" if isinstance(lora, str) else {**lora, "base": bits}
    note = f"weights of {name[:80]} are stored in fewer bits by its name: they are priced as {bits}"
    return replace(launch, workload={**launch.workload, "lora": own}, notes=(*launch.notes, note))


_STORED = re.compile(
    r"(?i)(?:^|[-_.])(?:awq|gptq|hqq|bnb|w[48]a16)(?:[-_.]?(?:int)?[48](?:[-_.]?bit)?)?(?=[-_.]|$)"
    r"|(?:^|[-_.])(?:int[48]|[48]-?bit)(?=[-_.]|$)"
)
"""What names of models say of weights that are stored quantized."""
_OTHERWISE = re.compile(r"(?i)(?:^|[-_.])(?:aqlm|exl2|gguf|ggml|[23]-?bit|int[23])(?=[-_.]|$)")
_CACHED = re.compile(r"^models--")
"""Start of a folder in the cache of the hub's client: models--ORGANISATION--NAME/snapshots/COMMIT."""
_TUNED = re.compile(r"[-_.](?:instruct|chat|base|it|hf|sft|dpo|mcore|awq|gptq|bnb|int[48]|[48]bit)(?=[-_.]|$)", re.I)
"""Parts of names of what was made of a model by training, or stored in another form: its shape is the model's."""
_TOKENIZER_FILE = re.compile(r"tokenizer[\w.-]*")


def _resolved(named: str) -> tuple[ModelSpec | None, Problem | None]:
    """A model by the name that a trainer loads: copies of a model on the hub or a disk end in the model's own name."""
    try:
        return models.resolve(named), None
    except MeshwrightError as error:
        known = _named_in(named)
        if known is None:
            near = " or ".join(models.near_names(named) or models.near_names(named.rstrip("/").rpartition("/")[2]))
            why = f"{error.problems[0].why}; did you mean {near}?" if near else error.problems[0].why
            fix = "name its config.json, or a model of its shape, before the file: check MODEL FILE"
            return None, Problem(what=f"the model is not available: {named[:80]}", why=why, fix=fix, field="model")
    model = models.spec(known)
    return replace(model, notes=(*model.notes, f"{named[:80]} is taken as {known}, whose name it has")), None
