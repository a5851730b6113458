"""Plan files: a job as JSON without loss, versioned and hashed by content.

    {schema: "meshwright.plan/1", name, hash: "sha256:...", made_with, model, cluster, workload, strategies, pipelines}

A plan of measured layers has `profile` (what it uses of them) and `global_batch` in place of model and workload.
A plan set (`meshwright.plan-set/1`) holds such documents in `plans[i].plan`. Equal jobs give equal bytes and equal
hashes on every machine: keys are sorted, defaults left out, numbers that may have a fraction always written with one.
`made_with` holds hashes of what the plan rests on, so that a reader can say what has changed since; it is no part of
the content that `hash` is of. Files without it, of versions up to 0.5, are read too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError, nearest
from meshwright.formats.canonical import canonical_json, digest, joined_json, own_data, plain_record, record_hash
from meshwright.formats.files import read_text
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob, MeasuredModel
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

PLAN_SCHEMA = "meshwright.plan/1"
PLAN_SET_SCHEMA = "meshwright.plan-set/1"
MAX_FILE_BYTES = 64 * 2**20


NEWER = re.compile(r"meshwright\.plan(-set)?/[0-9]{1,6}")
"""A schema of plans; those that this version does not know are of later ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeWith:
    """Hashes of what a plan rests on, as it was when the plan was made."""

    model: str
    """Hash of the model, or of the measured layers, that the document holds."""
    cluster: str
    calibration: str
    """Hash of the calibration that priced the plan."""
    library: tuple[tuple[str, str], ...] = ()
    """What the library holds under the names of the plan: `model llama-3.1-8b`, `device H100`, each with its hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """The keys of a plan document."""

    schema: str
    name: str | None = None
    hash: str | None = None
    made_with: MadeWith | None = None
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    strategies: tuple[LayerStrategy, ...]
    pipelines: tuple[Pipeline, ...]
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        plan = ExecutionPlan(strategies=self.strategies, pipelines=self.pipelines)
        job = Job(model=self.model, cluster=self.cluster, workload=self.workload, plan=plan, name=self.name)
        object.__setattr__(self, "job", job)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MeasuredDocument:
    """The keys of a plan document of measured layers."""

    schema: str
    name: None = None
    hash: str | None = None
    made_with: MadeWith | None = None
    profile: MeasuredModel
    cluster: ClusterSpec
    global_batch: int
    strategies: tuple[LayerStrategy, ...]
    pipelines: tuple[Pipeline, ...]
    job: MeasuredJob = field(init=False)

    def __post_init__(self) -> None:
        plan = ExecutionPlan(strategies=self.strategies, pipelines=self.pipelines)
        job = MeasuredJob(profile=self.profile, cluster=self.cluster, global_batch=self.global_batch, plan=plan)
        object.__setattr__(self, "job", job)


PlannedJob = Job | MeasuredJob


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """What a plan file holds."""

    planned: PlannedJob
    hash: str
    """Hash of the content as read."""
    made_with: MadeWith | None = None
    """What it was made with, where the file says so."""
    warnings: tuple[str, ...] = ()

    @property
    def job(self) -> Job:
        """The job, for those who need a model.

        Raises:
            UnsupportedError: the plan is of measured layers.
        """
        return with_model(self.planned)


def with_model(planned: PlannedJob) -> Job:
    """The job, for those who need a model.

    Raises:
        UnsupportedError: the plan is of measured layers.
    """
    if isinstance(planned, Job):
        return planned
    profile = planned.profile
    raise UnsupportedError(
        what=f"the plan of {profile.name} carries measured layers instead of a model",
        why="profiles tell how long each layer takes and what it holds, not its heads, widths or sequence length",
        fix="explain, check, compare and trace take it; for others plan a model of the library or a config.json",
        field="profile",
        code="MW421",
    )


def content_hash(job: PlannedJob) -> str:
    """`sha256:` and the digest of the job's canonical JSON; the name does not count."""
    return digest(joined_json(_texts(job)))


def job_document(job: PlannedJob, made_with: MadeWith | None = None) -> dict[str, Any]:
    """The plan document of a job, as data.

    Args:
        job: the plan and what it is for.
        made_with: what it rests on; None leaves it out.

    Raises:
        InputError: if a number in it is not finite.
    """
    texts = _texts(job)
    content = {name: own_data(text) for name, text in texts.items()}
    rests = {} if made_with is None else {"made_with": plain_record(made_with)}
    return {"schema": PLAN_SCHEMA, "name": job.name, "hash": digest(joined_json(texts)), **rests, **content}


def write_job(job: PlannedJob, made_with: MadeWith | None = None) -> str:
    """The plan document of a job, as text with sorted keys and a final newline; arguments as `job_document` takes."""
    document = job_document(job, made_with)
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read_job(source: str | Path, index: int | None = None) -> PlanFile:
    """Read a plan.

    Args:
        source: path of a plan file or plan set, `plans.json#2` for the second plan of a set; or the JSON text itself.
        index: the number of the plan in a set, from 1; instead of `#2`.

    Returns:
        The job; a changed hash or an unsaid choice among plans is a warning.

    Raises:
        InputError: all that is wrong with the file, by dotted field.
    """
    if isinstance(source, str) and source.lstrip()[:1] in ("{", "["):
        return read_document(parse_json(source, "plan"), index)
    path, chosen = _split_index(str(source))
    if index is None:
        index = chosen
    return read_document(parse_json(read_text(path, "plan file", max_bytes=MAX_FILE_BYTES), path), index)


def read_document(document: Any, index: int | None = None) -> PlanFile:
    """The job in a plan document or plan set given as data; see `read_job`."""
    if not isinstance(document, Mapping):
        raise _fail("the document is no object", f"a plan file is an object with schema {PLAN_SCHEMA}", code="MW222")
    schema = document.get("schema")
    if schema == PLAN_SET_SCHEMA:
        return _from_set(document, index)
    if schema != PLAN_SCHEMA:
        close = nearest(schema, [PLAN_SCHEMA, PLAN_SET_SCHEMA]) if isinstance(schema, str) else []
        fix = f"this version reads {' and '.join(close or [PLAN_SCHEMA, PLAN_SET_SCHEMA])}"
        if isinstance(schema, str) and NEWER.fullmatch(schema):
            fix += "; a later one wrote this file: pip install -U meshwright"
        what = f"schema is {schema!r}" if "schema" in document else "schema is missing"
        raise _fail(what, "the version of a plan file must be known", fix, "schema", "MW222")
    if index not in (None, 1):
        raise _fail(f"plan #{index} is asked for", "the file holds one plan", "leave out the number", "index", "MW222")
    return _from_plan(document, "")


def _texts(job: PlannedJob) -> dict[str, str]:
    """The content of a plan document by key, each as canonical JSON."""
    plan = _plan_texts(job.plan)
    if isinstance(job, MeasuredJob):
        own = {"profile": canonical_json(plain_record(job.profile)), "global_batch": canonical_json(job.global_batch)}
    else:
        own = {"model": _record_text(job.model), "workload": canonical_json(plain_record(job.workload))}
    return {"cluster": _record_text(job.cluster), **own, **plan}


@lru_cache(maxsize=64)
def _record_text(record: ModelSpec | ClusterSpec) -> str:
    """JSON of a record that documents share: written once, as the documents of many plans and estimates hold it."""
    return canonical_json(plain_record(record))


@lru_cache(maxsize=64)
def _plan_texts(plan: ExecutionPlan) -> dict[str, str]:
    """The plan itself, as a document has it beside model, cluster and workload."""
    return {
        "strategies": canonical_json([plain_record(strategy) for strategy in plan.strategies]),
        "pipelines": canonical_json([plain_record(pipeline) for pipeline in plan.pipelines]),
    }


def _fail(what: str, why: str, fix: str = "", field: str = "", code: str = "MW220") -> InputError:
    return InputError(what=what, why=why, fix=fix, field=field, code=code)


def _split_index(source: str) -> tuple[str, int | None]:
    """`plans.json#2` into path and number; a file whose name has the # in it comes first."""
    match = re.fullmatch(r"(.+)#(\d*)", source)
    if not match or os.path.exists(source):
        return source, None
    if not match[2] or len(match[2]) > 9 or int(match[2]) < 1:
        raise _fail(f"plan number {match[2]!r} of {match[1]}", "plans of a set count from 1", f"write {match[1]}#1")
    return match[1], int(match[2])


def parse_json(text: str, where: str) -> Any:
    """JSON text as data.

    Raises:
        InputError: for text that is not JSON, with the line; for NaN and Infinity, keys said twice, endless nesting.
    """
    twice: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(items)
        if len(seen) < len(items):
            names = [name for name, _ in items]
            twice.extend(sorted({name for name in names if names.count(name) > 1}))
        return seen

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON number")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        why = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise _fail(f"{where!r} is not JSON", why, "", "file", "MW221") from None
    except RecursionError:
        raise _fail(f"{where!r} is nested too deeply", "", "", "file", "MW221") from None
    except ValueError as error:
        raise _fail(f"{where!r} holds a number that cannot be read", str(error), "", "file", "MW221") from None
    if twice:
        problems = [
            Problem(what=f"{name!r} is given twice in one object", fix="keep one", field=name) for name in twice
        ]
        raise InputError(problems, code="MW221")
    return data


def _from_set(document: Mapping[str, Any], index: int | None) -> PlanFile:
    plans = document.get("plans")
    if not isinstance(plans, list) or not plans:
        raise _fail("plans is empty or no list", "a plan set holds at least one plan", "", "plans", "MW222")
    number = 1 if index is None else index
    if not 1 <= number <= len(plans):
        raise _fail(
            f"plan #{number} is asked for", f"the set holds {len(plans)}", f"use #1 to #{len(plans)}", "index", "MW222"
        )
    where = f"plans[{number - 1}]"
    entry = plans[number - 1]
    plan = entry.get("plan") if isinstance(entry, Mapping) else None
    if not isinstance(plan, Mapping):
        raise _fail(f"{where}.plan is no object", "each entry of a plan set holds a plan", "", f"{where}.plan", "MW222")
    if plan.get("schema") != PLAN_SCHEMA:
        why = f"this version reads {PLAN_SCHEMA}"
        raise _fail(f"{where}.plan.schema is {plan.get('schema')!r}", why, "", f"{where}.plan.schema", "MW222")
    read = _from_plan(plan, f"{where}.plan")
    if index is None and len(plans) > 1:
        first = f"the file holds {len(plans)} plans and none is named: #1 is used"
        return PlanFile(
            planned=read.planned, hash=read.hash, made_with=read.made_with, warnings=(*read.warnings, first)
        )
    return read


def _from_plan(document: Mapping[str, Any], path: str) -> PlanFile:
    from pydantic import ValidationError

    from meshwright.formats.problems import json_reader, problems_of

    kind = _MeasuredDocument if "profile" in document else _Document
    try:
        # As text again: a strict reader takes a list for a tuple from JSON alone.
        read = json_reader(kind).validate_json(json.dumps(document, default=repr))
    except ValidationError as error:
        raise InputError(problems_of(error, kind, path), code="MW223") from None
    except RecursionError:
        raise _fail("the plan is nested too deeply", "", field=path, code="MW223") from None
    found = content_hash(read.job)
    warnings: tuple[str, ...] = ()
    if read.hash is not None and read.hash != found:
        changed = _changed_parts(read.job, read.made_with)
        warnings = (f"the file says hash {read.hash}, its content has {found}: {changed} changed after it was written",)
    return PlanFile(planned=read.job, hash=found, made_with=read.made_with, warnings=warnings)


def plan_schemas() -> dict[str, Any]:
    """JSON Schema of a plan document, as its records have it: of a model, or of measured layers."""
    from meshwright.formats.problems import json_reader

    found = [json_reader(kind).json_schema() for kind in (_Document, _MeasuredDocument)]
    records = {name: record for one in found for name, record in one.pop("$defs").items()}
    for one in found:
        one["properties"]["schema"] = {"const": PLAN_SCHEMA}
        one["title"] = "plan of measured layers" if "profile" in one["properties"] else "plan of a model"
        del one["description"]
    return {"anyOf": found, "$defs": records}


def _changed_parts(job: PlannedJob, made_with: MadeWith | None) -> str:
    """What was changed by hand, as the subject of a sentence with its verb."""
    if made_with is None:
        return "it was"
    held = {"model": job.profile if isinstance(job, MeasuredJob) else job.model, "cluster": job.cluster}
    parts = [f"its {name}" for name, record in held.items() if record_hash(record) != getattr(made_with, name)]
    return " and ".join(parts) + (" was" if len(parts) == 1 else " were") if parts else "its workload or plan was"
