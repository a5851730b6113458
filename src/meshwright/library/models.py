"""Models by name, alias, file, folder or standard input; never the network.

Built-in models lie one per file in data/models as `{"source": ..., "config": ...}`; index.json holds their names and
aliases, so that finding one opens two small files. A folder named by MESHWRIGHT_LIBRARY adds the user's own.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.huggingface import WEIGHTS, read_config
from meshwright.library.calibration import LIBRARY_VARIABLE
from meshwright.specs.model import ModelSpec

__all__ = [
    "LIBRARY_VARIABLE",
    "add_model_file",
    "config_of",
    "find_name",
    "library_models",
    "model_aliases",
    "names",
    "near_names",
    "resolve",
    "spec",
]

_DATA = Path(__file__).parent / "data" / "models"
_FITTING_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,98}[a-z0-9])?")


def resolve(text: str | os.PathLike[str] | Mapping[str, object], stdin: IO[bytes] | IO[str] | None = None) -> ModelSpec:
    """The model that MODEL means on the command line.

    Args:
        text: a library name or alias (case and punctuation do not matter), a path to a config.json or a folder with
            one, or `-` for standard input. A name wins over a path of the same letters; `./NAME` is always a path.
            Or what a config.json holds: as text, as a mapping, or as a configuration object of transformers.
        stdin: read for `-`; the process's own by default.

    Returns:
        The model.

    Raises:
        UnsupportedError: if nobody knows the name, or the family of the config.
        InputError: if the file is missing, unreadable or not the config of a model.
    """
    if (content := stated_config(text)) is not None:
        from meshwright.library.model_files import model_of_config, name_of_config

        return model_of_config(content, name_of_config(content), source="the config given")
    text = os.fspath(text)  # type: ignore[arg-type]
    if text == "-":
        from meshwright.library.model_files import content_of_stream, model_of_config

        return model_of_config(content_of_stream(stdin), "stdin", source="standard input")
    if not text.strip():
        from meshwright.library.model_files import model_refusal

        raise model_refusal(
            "no model is given", "the name is empty", "pass a library name or the path of a config.json"
        )
    is_path = _looks_like_path(text)
    if not is_path:
        found = find_name(text)
        if found is not None:
            return spec(found)
    path = os.path.expanduser(text)
    if is_path or os.path.lexists(path):
        from meshwright.library.model_files import model_at

        return model_at(path)
    raise UnsupportedError(_unknown(text), code="MW401")


def spec(name: str) -> ModelSpec:
    """The library's model of exactly this name.

    Raises:
        UnsupportedError: if there is none.
    """
    if name in _index():
        return _built_in(name)
    path = _own().get(name)
    if path is None:
        raise UnsupportedError(_unknown(name), code="MW401")
    from meshwright.library.model_files import model_at

    return model_at(str(path), name=name)


def stated_config(model: object) -> dict[str, object] | None:
    """What a config.json holds, where it is given itself; None where a name or a path is.

    Args:
        model: text that is JSON, a mapping, or an object with `to_dict`, such as a configuration of transformers.

    Raises:
        InputError: the text is no JSON object.
    """
    if isinstance(model, str) and model.lstrip().startswith("{"):
        from meshwright.library.model_files import parsed_config

        return parsed_config(model.encode("utf-8", "replace"), "the model's text")  # type: ignore[return-value]
    if isinstance(model, Mapping):
        return dict(model)
    if isinstance(model, (str, os.PathLike)) or not callable(say := getattr(model, "to_dict", None)):
        return None
    content = say()
    return dict(content) if isinstance(content, Mapping) else None


def config_of(text: str | os.PathLike[str] | Mapping[str, object]) -> dict[str, object] | None:
    """The config.json that MODEL means on the command line, as it stands there; None where it has none.

    Args:
        text: the text as for `resolve`, whose answer it is read for.
    """
    from meshwright.library.model_files import config_content, is_entry

    if (stated := stated_config(text)) is not None:
        return stated
    text = os.fspath(text)  # type: ignore[arg-type]
    name = None if _looks_like_path(text) else find_name(text)
    built_in = name is not None and name in _index()
    if built_in:
        content: object = json.loads((_DATA / f"{name}.json").read_bytes())
    elif text == "-":
        return None
    else:
        content = config_content(str(_own()[name]) if name is not None else os.path.expanduser(text))
    found = content["config"] if is_entry(content) and isinstance(content, dict) else content
    return found if isinstance(found, dict) and "model_type" in found else None


def knows(name: str) -> bool:
    """Whether the library has a model of exactly this name."""
    return name in _index() or name in _own()


def names() -> list[str]:
    """All names in the library, the user's own included, in alphabetical order."""
    return sorted({*_index(), *_own()})


def model_aliases(name: str) -> list[str]:
    """Other names of a library model, Hugging Face ids among them."""
    return list(_index().get(name, ()))


def library_models() -> list[dict[str, object]]:
    """One row a model for a table: what `ModelSpec.describe` says, aliases and source.

    A file of the user's own that does not read has a row with `error` instead, so that it hides no other.
    """
    rows: list[dict[str, object]] = []
    for name in names():
        try:
            model = spec(name)
        except (InputError, UnsupportedError) as error:
            rows.append({"name": name, "error": error.problems[0].what})
            continue
        extra = {"aliases": model_aliases(name), "built_in": name in _index(), "source": model.source}
        rows.append({**model.describe(), **extra})
    return rows


def add_model_file(
    source: str | os.PathLike[str],
    library: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    replace: bool = False,
) -> Path:
    """Check a config.json and copy it whole into LIBRARY/models/NAME.json.

    Args:
        source: a config.json or a folder with one.
        library: the library folder; by default the one MESHWRIGHT_LIBRARY names.
        name: how the model will be called; by default as its file or folder.
        replace: overwrite a model of this name.

    Returns:
        The file written.

    Raises:
        InputError: if there is no library folder, the name does not do or is taken, or the config is not a model's.
        UnsupportedError: if the family is unknown.
    """
    from meshwright.library.model_files import config_content, is_entry, model_of_config, model_refusal, name_of_path

    folder = os.fspath(library) if library is not None else os.environ.get(LIBRARY_VARIABLE, "")
    if not folder:
        raise model_refusal(
            "no library folder to add to",
            "models are added only to a folder you name",
            f"set {LIBRARY_VARIABLE} to a folder, or pass one",
            field=LIBRARY_VARIABLE,
        )
    origin = os.path.expanduser(os.fspath(source))
    content = config_content(origin)
    model_of_config(content, name_of_path(origin), source="")

    called = _fitting(name if name is not None else name_of_path(origin))
    target = Path(folder).expanduser() / "models" / f"{called}.json"
    if _match(called, _keys()) is not None:
        raise model_refusal(
            f"model name {called!r} is built in", "a built-in model cannot be replaced", "choose another name"
        )
    if target.exists() and not replace:
        raise model_refusal(
            f"model {called!r} is in the library already", str(target), "choose another name or replace it"
        )
    entry = {"source": f"added from {os.path.abspath(origin)}", "config": content}
    body = content if is_entry(content) else entry
    from meshwright.formats.writing import write_file

    write_file(target, json.dumps(body, indent=2) + "\n", make_folder=True)
    return target


# Names


@lru_cache(maxsize=1)
def _index() -> dict[str, tuple[str, ...]]:
    """Built-in names and their aliases."""
    raw = json.loads((_DATA / "index.json").read_bytes())
    return {name: tuple(others) for name, others in raw.items()}


def _key(text: str) -> str:
    """A name without case and punctuation; what parts two digits stays: opt-1.3b is not opt-13b."""
    dotted = re.sub(r"(?<=\d)[^0-9a-z/]+(?=\d)", ".", text.strip().lower())
    return re.sub(r"(?<!\d)\.|\.(?!\d)|[^0-9a-z./]", "", dotted)


@lru_cache(maxsize=1)
def _keys() -> dict[str, str]:
    """Built-in name by key: names first, then aliases, then what follows the slash of an id."""
    keys: dict[str, str] = {_key(name): name for name in _index()}
    for name, others in _index().items():
        for other in others:
            keys.setdefault(_key(other), name)
    for name, others in _index().items():
        for other in others:
            keys.setdefault(_key(other.rpartition("/")[2]), name)
    return keys


def _match(text: str, keys: Mapping[str, str]) -> str | None:
    return keys.get(_key(text))


def find_name(text: str) -> str | None:
    """The library name that `text` means, or None."""
    found = _match(text, _keys())
    return found if found is not None else _match(text, {_key(name): name for name in _own()})


def near_names(text: str) -> list[str]:
    """Up to three library names that are, or have an alias, spelt about like `text`, the nearest first."""
    known = [*names(), *(alias for others in _index().values() for alias in others)]
    return list(dict.fromkeys(find_name(match) or match for match in nearest(text[:80], known, count=5)))[:3]


def _own() -> dict[str, Path]:
    """The user's own models: name to file."""
    folder = os.environ.get(LIBRARY_VARIABLE, "")
    if not folder:
        return {}
    try:
        return {path.stem: path for path in sorted((Path(folder).expanduser() / "models").glob("*.json"))}
    except (OSError, ValueError):
        return {}


def _unknown(text: str) -> Problem:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    file_name, mark, _ = text.rpartition("#")
    if mark and os.path.isfile(file_name):
        why = "a plan of a file is no model"
        return Problem(what=f"unknown model {shown!r}", why=why, fix=f"--plan {shown}", field="model")
    close = near_names(text)
    return Problem(
        what=f"unknown model {shown!r}",
        why="it is neither in the library nor a path that exists, and nothing is fetched from the network",
        fix=(f"did you mean {' or '.join(close)}? " if close else "`meshwright models list` shows the library; ")
        + "any other model: pass the path of its config.json",
        field="model",
    )


@lru_cache(maxsize=256)
def _built_in(name: str) -> ModelSpec:
    entry = json.loads((_DATA / f"{name}.json").read_bytes())
    return read_config(entry["config"], name, source=entry["source"])


# Paths


def _looks_like_path(text: str) -> bool:
    """Whether it can only be a path: rooted, relative with a dot, more than one folder deep, or a .json file."""
    return (
        text.startswith(("/", "./", "../", "~", ".\\", "..\\"))
        or text in {".", ".."}
        or text.lower().endswith((".json", *WEIGHTS))
        or text.count("/") > 1
        or (os.sep != "/" and (os.sep in text or ":" in text))
    )


def _fitting(name: str) -> str:
    lower = name.strip().lower()
    if not _FITTING_NAME.fullmatch(lower):
        from meshwright.library.model_files import model_refusal

        raise model_refusal(
            f"model name {name[:80]!r} is not valid",
            "a name has at most 100 letters, digits, dots, dashes and underscores, with a letter or digit at both ends",
            "pass another name",
            field="name",
        )
    return lower
