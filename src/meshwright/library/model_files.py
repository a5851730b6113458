"""The config of a model in a file, in a folder, beside weights, in their header or on standard input."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from meshwright.errors import InputError
from meshwright.formats.files import content_of, has_no_name
from meshwright.formats.huggingface import WEIGHTS, read_config
from meshwright.specs.model import ModelSpec

MAX_BYTES = 64 * 2**20
COUNT_TOLERANCE = 1e-3
"""How far the parameters of weights may be from those of their config."""


def name_of_path(path: str) -> str:
    """What to call the model of this file or folder."""
    whole = Path(os.path.abspath(path))
    named = whole.parent.name if whole.name == "config.json" else whole.name
    for ending in (".json", *WEIGHTS):
        named = named.removesuffix(ending)
    return named or "model"


def name_of_config(config: Mapping[str, object]) -> str:
    """What to call the model of a config that stands in no file: as transformers does, else as its family."""
    path = config.get("_name_or_path")
    named = path.rstrip("/").rpartition("/")[2] if isinstance(path, str) else ""
    family = config.get("model_type")
    return named or (family if isinstance(family, str) and family else "model")


def model_at(path: str, *, name: str | None = None) -> ModelSpec:
    """The model of a config.json, of a folder with one, or of weights; notes say where weights disagree."""
    content = config_content(path)
    if has_no_name(path) and isinstance(content, dict):
        name = name or name_of_config(content)
    return _checked(model_of_config(content, name or name_of_path(path), source=path), content, path)


def _checked(model: ModelSpec, content: object, path: str) -> ModelSpec:
    """The model, with a note where weights beside its config.json hold another number of parameters."""
    inside = os.path.isdir(path)
    whole = os.path.basename(path) == "config.json" or path.lower().endswith(WEIGHTS)
    if not isinstance(content, dict) or not (inside or whole):
        return model
    from meshwright.formats.weights import count_beside

    found = count_beside(path if inside else os.path.dirname(path) or ".", content)
    if found is None:
        return model
    # Checkpoints may hold prediction modules, with tables of their own or not, and a tied head once more.
    table = model.vocab * model.hidden
    modules = (0, model.mtp_parameters, model.mtp_parameters + 2 * model.mtp_layers * table)
    heads = (0, table if model.tied_embeddings else 0)
    expected = [model.parameters + mtp + head for mtp in modules for head in heads]
    near = min(expected, key=lambda count: abs(count - found.parameters))
    if abs(near - found.parameters) <= COUNT_TOLERANCE * found.parameters:
        return model
    note = (
        f"{found.where} beside the config holds {found.parameters:,} parameters, the model that was read has {near:,} "
        f"({near / max(1, found.parameters) - 1:+.1%}): check what the config leaves out"
    )
    return replace(model, notes=(*model.notes, note))


def model_of_config(content: object, name: str, *, source: str) -> ModelSpec:
    """A parsed config.json, or an entry of a library."""
    if is_entry(content):
        assert isinstance(content, dict)
        said = content.get("source")
        return read_config(content["config"], name, source=said if isinstance(said, str) else source)
    return read_config(content, name, source=source)


def is_entry(content: object) -> bool:
    """Whether it is an entry of a library: `{"source": ..., "config": ...}`."""
    return isinstance(content, dict) and "model_type" not in content and isinstance(content.get("config"), dict)


def config_content(path: str) -> object:
    """The JSON in a file, or in the config.json of a folder."""
    inside = os.path.join(path, "config.json")
    if os.path.isdir(path) and not os.path.isfile(inside):
        if os.path.isfile(adapters := os.path.join(path, "adapter_config.json")):
            return config_content(adapters)  # refused for what it is
        raise model_refusal(
            f"folder {path} holds no config.json",
            "a model folder has a config.json beside its weights",
            "pass that folder, or the file itself",
        )
    path = inside if os.path.isdir(path) else path
    if path.lower().endswith(WEIGHTS) and os.path.isfile(path):
        return _from_weights(path)
    try:
        data = content_of(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        file_name, mark, _ = path.rpartition("#")
        of_plans = bool(mark) and os.path.isfile(file_name)
        why = "a plan of a file is no model" if of_plans else "the path does not exist"
        fix = f"say --plan {path}" if of_plans else "check the path"
        raise model_refusal(f"no file or folder {path}", why, fix, code="MW201") from None
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise model_refusal(f"cannot read {path[:200]!r}", why, "check the path and its permissions") from None
    return parsed_config(data, path)


def _from_weights(path: str) -> object:
    """The config beside weights, else what the header of GGUF says; that of safetensors says no heads."""
    beside = os.path.join(os.path.dirname(path), "config.json")
    if os.path.isfile(beside):
        return config_content(beside)
    if path.lower().endswith(".gguf"):
        from meshwright.formats.gguf import config_of_gguf

        return config_of_gguf(path)
    raise model_refusal(
        f"there is no config.json beside {path}",
        "the header of safetensors names tensors and their shapes, not how many heads share them",
        "put the model's config.json beside it, or pass it",
    )


def content_of_stream(stream: IO[bytes] | IO[str] | None) -> object:
    """The JSON on standard input."""
    if stream is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise model_refusal(
                "standard input is a terminal", "- reads a config.json from a pipe", "pipe one in: ... < config.json"
            )
        stream = sys.stdin.buffer
    try:
        data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise model_refusal("cannot read standard input", str(error), "pipe in a config.json") from None
    return parsed_config(data.encode("utf-8", "replace") if isinstance(data, str) else data, "standard input")


def parsed_config(data: bytes, where: str) -> object:
    """The JSON in these bytes.

    Args:
        data: the data of a file, a stream or a text.
        where: the place where they are, as an error says it.

    Raises:
        InputError: they are too many, no text or no JSON.
    """
    if len(data) > MAX_BYTES:
        raise _too_large(where)
    if not data.strip():
        raise model_refusal(
            f"{where} is empty", "a config.json holds one JSON object", "pass the config.json of a model"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise model_refusal(
            f"{where} is not text",
            "a config.json is JSON in UTF-8; this is something else, such as weights",
            "pass the config.json next to the weights",
        )
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise model_refusal(
            f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            "a config.json holds one JSON object",
            "correct the file there, or pass the config.json as published",
            code="MW203",
        ) from None
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise model_refusal(
            f"{where} is not JSON that can be read", why, "pass the config.json as published", code="MW203"
        ) from None


def _too_large(where: str) -> InputError:
    return model_refusal(
        f"{where} is larger than {MAX_BYTES // 2**20} MiB",
        "a config.json has a few kilobytes",
        "pass the config.json, not the weights",
    )


def model_refusal(what: str, why: str, fix: str, *, code: str = "MW202", field: str = "model") -> InputError:
    """What a model that cannot be used is refused with."""
    return InputError(what=what, why=why, fix=fix, field=field, code=code)
