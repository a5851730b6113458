"""Studies as files and tables state them.

model = ["llama-3.1-70b", "mixtral-8x22b"]
gpus = ["256xH100", "256xnext"]
seq = [4096, 16384]
gbs = 1024

[gpu.next]                      # numbers of a data sheet, as `gpus add` takes them
like = "H100"
memory_gib = [80, 120, 160]
node.scaleup_gb_s = [450, 900]
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meshwright.app.studies.study import StudyAxis, StudyQuestion, SweepStudy, Values, plain_value
from meshwright.app.verbs import VERBS
from meshwright.errors import InputError, Problem, nearest
from meshwright.fields.field import Field
from meshwright.fields.gather import Gather
from meshwright.fields.kinds import MAX_NUMBER, SEVERAL, FieldKind, Texts, shortened
from meshwright.fields.request import request_fields
from meshwright.formats.gpus import parse_gpus
from meshwright.library.changed_device import changeable
from meshwright.library.devices import device
from meshwright.planning.question.job_inputs import resolve_cluster, resolve_model
from meshwright.specs.device import DeviceSpec

GPU, LIKE = "gpu", "like"
NOT_SWEPT = frozenset((
    "output", "svg", "pareto", "top", "profiles", "replan_from", "lost", "added", "horizon", "workload", "calibration",
))  # fmt: skip
"""Fields of the verbs that write files, or that ask something else than for plans of a model on a cluster."""
FILES = frozenset(("model", "cluster", "plan", "lengths", "expert_load", "prices", "carbon_intensity"))
"""Fields that may name a file: one beside the study is found from anywhere."""
CODE = "MW247"
MOST_SHOWN = 6


def read_study(source: Mapping[str, Any] | str | os.PathLike[str]) -> SweepStudy:
    """A study from a file or a table.

    Every key is an option of `plan` by its name, with one value or a list of them; of options that take a list, a list
    in the list is one value. With `plan` the plans are stated, and `estimate` prices them. A table `gpu.NAME` states
    numbers of a device: one of the library, or one that is `like` it.

    Args:
        source: TOML, JSON or YAML; or what such a file holds.

    Raises:
        InputError: keys or values that cannot be used; all of them together.
    """
    if isinstance(source, Mapping):
        return _study(source, Path())
    from meshwright.formats.files import read_table

    path = Path(source)
    return _study(read_table(path, "study"), path.parent)


def _study(table: Mapping[str, Any], folder: Path) -> SweepStudy:
    gather = Gather()
    devices = table.get(GPU, {})
    if not isinstance(devices, Mapping) or not all(isinstance(one, Mapping) for one in devices.values()):
        what, fix = f"gpu is {shortened(devices)}", "[gpu.H100] with memory_gib = [80, 120], or gpus = '64xH100'"
        gather.problem(Problem(what=what, why="it has a table for each device", fix=fix, field=GPU), CODE)
        devices = {}
    verb = "estimate" if "plan" in table else "plan"
    options = _options(gather, {key: value for key, value in table.items() if key != GPU}, verb, folder)
    like = {name: str(own.get(LIKE, name)) for name, own in devices.items()}
    numbers = [axis for name, own in devices.items() for axis in _numbers(gather, name, own)]
    study = SweepStudy(verb=verb, axes=(*options, *numbers), like=tuple(like.items()))
    if not gather.errors and like:
        study = replace(study, used=gather.attempt(lambda: _used(study)) or ())
    gather.done()
    if not study.axes:
        what, fix = "the study states nothing", 'model = ["llama-3-8b"], gpus = ["8xH100", "16xH100"]'
        raise InputError(Problem(what=what, why="a sweep needs a model and devices", fix=fix, field="study"), code=CODE)
    _check_values(study)
    return study


def _options(gather: Gather, table: Mapping[str, Any], verb: str, folder: Path) -> list[StudyAxis]:
    """Options of the verb, by any of their names."""
    fields = {one.name: one for one in request_fields(VERBS[verb].request) if one.name not in NOT_SWEPT}
    names = {
        **{_plain(one.spelled): name for name, one in fields.items() if not one.argument},
        **{n: n for n in fields},
    }
    axes: dict[str, StudyAxis] = {}
    for key, stated in table.items():
        name = names.get(_plain(key))
        if name is None:
            gather.problem(_unknown(key, verb, names), CODE)
        elif name in axes:
            what, why = f"{key} and another key are both {name}", "an option is stated once"
            gather.problem(Problem(what=what, why=why, fix="leave one out", field=key), CODE)
        elif (values := _values(gather, key, stated, fields[name])) is not None:
            axes[name] = StudyAxis(name=name, values=tuple(_beside(name, one, folder) for one in values))
    return list(axes.values())


def _plain(key: str) -> str:
    return key.lstrip("-").replace("-", "_")


def _unknown(key: str, verb: str, names: Mapping[str, str]) -> Problem:
    plain = _plain(key)
    if plain in NOT_SWEPT:
        elsewhere = {"output": "name the file with -o", "top": "say --top"}
        why = "a sweep asks for plans of models on clusters, and writes them to one file"
        return Problem(
            what=f"the study has a key {key!r}", why=why, fix=elsewhere.get(plain, "leave it out"), field=key
        )
    close = nearest(plain, names)
    fix = f"did you mean {' or '.join(close)}?" if close else f"`meshwright {verb} --help-all` lists all"
    return Problem(what=f"the study has a key {key[:60]!r}", why=f"it is no option of {verb}", fix=fix, field=key)


def _values(gather: Gather, key: str, stated: Any, field: Field) -> Values | None:
    """The values of an option: those of a list, or the one that is stated."""
    values = stated if isinstance(stated, (list, tuple)) else [stated]
    if not values:
        what, why = f"{key} has no value", "a sweep needs at least one of each"
        gather.problem(Problem(what=what, why=why, fix="give one, or leave the key out", field=key), CODE)
        return None
    several = isinstance(field.kind, Texts)
    tables = several or bool(SEVERAL.search(field.annotation or field.kind.annotation)) or "Mapping" in field.annotation
    for one in values:
        if (isinstance(one, (list, tuple)) and not several) or (isinstance(one, Mapping) and not tables):
            what, why = f"{key} has the value {shortened(one)}", "each value is one text, number or truth"
            gather.problem(Problem(what=what, why=why, fix="write the values in one list", field=key), CODE)
            return None
    read = [gather.attempt(partial(_read, key, one, field)) for one in values]
    return None if any(one is None for one in read) else _distinct(read)


def _read(key: str, value: Any, field: Field) -> Any:
    """A value, numbers as they are read: 16k is 16,384."""
    if isinstance(field.kind, Texts) or type(field.kind) is FieldKind:
        return value
    found = field.kind.read(key, value)
    return found if isinstance(found, (int, float)) else value


def _distinct(values: Sequence[Any]) -> Values:
    return tuple({json.dumps(plain_value(one), default=str): one for one in values}.values())


def _beside(name: str, value: Any, folder: Path) -> Any:
    """A file that lies beside the study, by its own path."""
    if name not in FILES or not isinstance(value, str) or folder == Path() or len(value) > 1024:
        return value
    path = folder / value.partition("#")[0]
    try:
        return str(folder / value) if not Path(value).is_absolute() and path.exists() else value
    except (OSError, ValueError):
        return value


def _numbers(gather: Gather, name: str, table: Mapping[str, Any], inside: str = "") -> Iterator[StudyAxis]:
    """Numbers of a device, those of its `node` and `efficiency` tables among them."""
    for own, stated in table.items():
        key = f"{inside}{own}"
        if key == LIKE:
            continue
        if isinstance(stated, Mapping):
            yield from _numbers(gather, name, stated, f"{key}.")
            continue
        values = stated if isinstance(stated, (list, tuple)) else [stated]
        sound = values and all(map(_is_number, values))
        if not changeable(key):
            what, why = f"gpu.{name} has a key {key[:60]!r}", "it is no number of a device file"
            fix = "for example memory_gib, memory_gb_s, bf16_tflops, power_w, node.devices, node.scaleup_gb_s"
            gather.problem(Problem(what=what, why=why, fix=fix, field=key), CODE)
        elif not sound:
            what, why = (
                f"gpu.{name}.{key} is {shortened(stated)}",
                f"must be a number or a list of numbers, at most {MAX_NUMBER:g}",
            )
            gather.problem(Problem(what=what, why=why, fix=f"{key} = [80, 120]", field=key), CODE)
        else:
            yield StudyAxis(name=f"{name}.{key}", values=_distinct(values), device=name, key=key)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_NUMBER


def _used(study: SweepStudy) -> tuple[tuple[str, frozenset[str]], ...]:
    """The devices of the study that each text of `gpus` names.

    Raises:
        InputError: a device is in none, or is like none that is known.
    """
    texts = next((axis.values for axis in study.axes if axis.name == "gpus"), ())
    own, gather, used = dict(study.like), Gather(), dict[str, frozenset[str]]()
    if not texts:
        what, why = "[gpu] tables without gpus", "they say of which devices gpus are"
        fix = "gpus = ['64xH100']; a cluster file states its own numbers"
        raise InputError(Problem(what=what, why=why, fix=fix, field=GPU), code=CODE)

    def named(text: str) -> frozenset[str]:
        seen: set[str] = set()

        def found(name: str) -> DeviceSpec:
            seen.add(name)
            return device(own.get(name, name))

        parse_gpus(text, found)
        return frozenset(seen & own.keys())

    for base in own.values():
        gather.attempt(partial(device, base))
    for text in map(str, texts):
        used[text] = gather.attempt(partial(named, text)) or frozenset()
    gather.done()
    for name in sorted(own.keys() - frozenset[str]().union(*used.values())):
        what, why = f"[gpu.{name}] states numbers of {name}", "no value of gpus names it so"
        said = ", ".join(map(str, texts[:MOST_SHOWN]))
        gather.problem(Problem(what=what, why=why, fix=f"gpus has {said}; write {name} there", field=name), CODE)
    gather.done()
    return tuple(used.items())


def _check_values(study: SweepStudy) -> None:
    """Raise where a value cannot be read, or is not one that its option has, beside the first of all others.

    Raises:
        InputError: all such values together.
    """
    gather, first = Gather(), {axis.name: axis.values[0] for axis in study.axes}
    # A number of a device is tried on the first cluster that has it.
    having = {name: text for text, names in reversed(study.used) for name in names}
    beside = (
        first | ({"gpus": having[axis.device]} if axis.device else {}) | {axis.name: value}
        for axis in study.axes
        for value in axis.values
    )
    for values in itertools.islice(beside, MOST_CHECKED):
        _read_one(gather, study.question(0, tuple(values.values())))
    # A first value that is wrong is so beside every other.
    gather.errors = list({error.render(): error for error in gather.errors}.values())
    gather.done()


MOST_CHECKED = 1000
"""Values that are tried before a sweep begins."""


def _read_one(gather: Gather, question: StudyQuestion) -> None:
    """Note where an option cannot be read, or names a model or a cluster that there is not."""
    request: Any = gather.attempt(question.request)
    if request is None:
        return
    job = request.job
    if job.model is not None:
        gather.attempt(lambda: resolve_model(job.model))
    if job.cluster is not None or job.gpus is not None:
        gather.attempt(lambda: resolve_cluster(job.cluster, job.gpus))
