"""What a live page asks of its answers: one view, one plan changed, several plans beside each other, a run's log."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from meshwright.app.pages.source import on_page
from meshwright.app.plans.plan_set import RankedPlan
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.estimate.price import estimate_plan, priced_step
from meshwright.fields.kinds import Choice
from meshwright.formats.plan_json import job_document, with_model
from meshwright.library.made_with import made_with
from meshwright.planning.what_if import (
    changed_job,
    changed_plan,
    describe_change,
    describe_conditions,
    quantities_of,
    varied_settings,
)
from meshwright.records import as_json, plain
from meshwright.report.page.document import page_document, view_data
from meshwright.report.page.shell import VIEWS
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.specs.expert_load import ExpertLoad
from meshwright.specs.job import Job

_FILE_NAME = re.compile(r"\w[\w.-]{0,99}")
"""Name of a log that is dropped on the page, kept for its ending; any other name is as good."""
MOST_ANSWERS = 32
MOST_CHANGED = 64
"""Plans with what was simulated of them: a few of a pull at a slider, and those that are compared."""


class PageAnswers:
    """The answers of one page, by the name that its address has for them."""

    def __init__(self) -> None:
        self._answers: OrderedDict[str, PageSource] = OrderedDict()
        self._changed: OrderedDict[str, PlanOnPage] = OrderedDict()
        self._lock = Lock()

    def add(self, source: PageSource) -> str:
        """Keep an answer; equal questions have one name."""
        name = hashlib.sha256(source.command.encode()).hexdigest()[:12]
        with self._lock:
            self._answers[name] = source
            self._answers.move_to_end(name)
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
        return name

    def page(self, name: str) -> dict[str, Any]:
        """The document that the page draws, without views."""
        return page_document(self._answer(name), live=True) | {"answer": name}

    def opened(self, name: str) -> dict[str, Any]:
        """The document with what the page asks first: the settings of its first plan, and what the overview draws."""
        first = self.what_if({"answer": name, "plan": 0, "changes": {}, "quantities": True, "view": VIEWS[0]})
        return self.page(name) | {"first": first}

    def what_if(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A plan with what is changed: its entry, what that changes of it, and the values that settings may now have.

        Args:
            asked: `answer`, `plan` from 0, `changes`; whether `settings` are wanted, unseen while a slider is
                held, and whether `quantities` are; the name of a `view` whose data, or `refused`, come along.
        """
        base, shown = self._plan(asked, {}), self._plan(asked)
        job = with_model(shown.job)
        load = job.workload.expert_load
        conditions = describe_conditions(base.job, job, asked.get("changes") or {}) if isinstance(base.job, Job) else ()
        found = {
            "entry": shown.entry,
            "change": ", ".join(filter(None, (describe_change(base.row, shown.row), *conditions))),
            "settings": plain(varied_settings(job, shown.row)) if asked.get("settings", True) else None,
            "workload": {
                "seq_len": job.workload.seq_len,
                "global_batch": job.workload.global_batch,
                "expert_load": None if load else job.workload.expert_imbalance,
                "zipf": load and load.zipf,
            },
            "prices": {group.device.name: group.price_per_hour for group in job.cluster.groups},
        }
        if asked.get("quantities"):
            found["quantities"] = _that_matter(job)
        if asked.get("view") is not None:
            try:
                found["view"] = self.view({**asked, "name": asked["view"]})
            except MeshwrightError as error:
                found["refused"] = error.to_dict()
        return found

    def view(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What a view draws of a plan.

        Args:
            asked: `answer`, `plan`, `changes`, the `name` of the view, and what it asks besides.
        """
        source, plan = self._answer(str(asked.get("answer", ""))), self._plan(asked)
        more = asked.get("asked")
        if more is not None and not isinstance(more, Mapping):
            raise InputError(what="asked is no table", why="it has values by name", field="asked")
        return view_data(str(asked.get("name", "")), source, plan, more)

    def run(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A plan and its run: a `meshwright.run-comparison/1`.

        Args:
            asked: `answer`, `plan`, `changes`, the `log` as text and its file's `name`.
        """
        from meshwright.app.runs.compared import compare_with_run
        from meshwright.fields.job import JobFields

        plan, log = self._plan(asked), str(asked.get("log", ""))
        with _dropped(log.encode(errors="replace"), asked, "run.log") as path:
            return compare_with_run(plan.job, str(path), None, asked=JobFields()).to_dict()

    def accuracy(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Measured runs as points, each beside its prediction.

        Args:
            asked: the file of `validate` as text, in `measured`, and its `name`.
        """
        from meshwright.app.pages.accuracy_points import accuracy_points

        with _dropped(str(asked.get("measured", "")).encode(errors="replace"), asked, "measured.csv") as path:
            return accuracy_points(path)

    def study(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Studies of a tuner as they were kept, with their trials.

        Args:
            asked: the file in base64, in `file`, and its `name`.
        """
        from meshwright.app.studies.kept import studies_of_file

        try:
            content = b64decode(str(asked.get("file", "")), validate=True)
        except ValueError:
            raise InputError(what="file is no base64", why="a study is sent as it is on a disk", field="file") from None
        with _dropped(content, asked, "study") as path:
            return studies_of_file(path)

    def expert_load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Counted tokens of a file, as a change takes them.

        Args:
            asked: the file of `--expert-load` as text, in `counts`.
        """
        from meshwright.formats.expert_load import expert_load_of

        with _dropped(str(asked.get("counts", "")).encode(errors="replace"), asked, "counts") as path:
            load = expert_load_of(path)
        return {"expert_load": plain(load.counts)} if isinstance(load, ExpertLoad) else {"expert_load": load}

    def plan_file(self, asked: Mapping[str, Any]) -> str:
        """A plan as the file that other verbs take."""
        job = self._plan(asked).job
        return as_json(plain(job_document(job, made_with(job))))

    def export(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A plan as the files of a framework; nothing is written.

        Args:
            asked: `answer`, `plan`, `changes`, and the `target`.
        """
        from meshwright.app.export import export

        found = export(self._plan(asked).job, str(asked.get("target", ""))[:80])
        return {
            "start": found.start,
            "files": [{"name": name, "content": text} for name, text in found.files],
            "notes": list(found.notes),
            "warnings": list(found.warnings),
        }

    def trace(self, asked: Mapping[str, Any]) -> str:
        """One step of a plan as a file's text.

        Args:
            asked: `answer`, `plan`, `changes`, and the `form`: `svg`, or `chrome` for Perfetto and Chrome.
        """
        from meshwright.app.requests.read import TraceRequest
        from meshwright.app.trace import trace

        form = Choice(names=("svg", "chrome"), noun="form").read("form", asked.get("form"))
        step = trace(TraceRequest.read({"plan": self._plan(asked).job}))
        return step.svg() if form == "svg" else step.chrome(compress=False).decode()

    def _answer(self, name: str) -> PageSource:
        with self._lock:
            found = self._answers.get(name)
        if found is None:
            why = "it is of another start of `meshwright web`, or many answers ago"
            problem = Problem(what="this answer is not kept", why=why, fix="ask the question again", field="answer")
            raise InputError(problem, code="MW240")
        return found

    def _plan(self, asked: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> PlanOnPage:
        """The plan that is meant, priced anew where something is changed."""
        name, place = str(asked.get("answer", "")), asked.get("plan", 0)
        source = self._answer(name)
        if not isinstance(place, int) or not 0 <= place < len(source.plans):
            why = f"the answer has {len(source.plans)}"
            raise InputError(what=f"plan {str(place)[:20]}", why=why, fix="count from 0", field="plan")
        wanted = asked.get("changes") if changes is None else changes
        base = source.plans[place]
        if not wanted:
            return base
        if not isinstance(wanted, Mapping):
            raise InputError(what="changes is no table", why="it has values by name", field="changes")
        key = f"{name} {place} {json.dumps(wanted, sort_keys=True)}"
        with self._lock:
            kept = self._changed.get(key)
        if kept is None:
            kept = _changed(base, wanted)
            with self._lock:
                self._changed[key] = kept
                while len(self._changed) > MOST_CHANGED:
                    self._changed.popitem(last=False)
        return kept


@contextmanager
def _dropped(content: bytes, asked: Mapping[str, Any], usual: str) -> Iterator[Path]:
    """A file that was dropped on the page, under its own name; errors speak of it by this name alone."""
    with tempfile.TemporaryDirectory() as folder:
        name = PurePath(str(asked.get("name"))).name
        path = Path(folder) / (name if _FILE_NAME.fullmatch(name) else usual)
        path.write_bytes(content)
        try:
            yield path
        except InputError as error:
            said = ({field: getattr(one, field).replace(f"{folder}/", "") for field in _SAID} for one in error.problems)
            problems = [replace(one, **texts) for one, texts in zip(error.problems, said, strict=True)]
            raise InputError(problems, code=error.code) from None


_SAID = ("what", "why", "fix")


def _changed(base: PlanOnPage, changes: Mapping[str, Any]) -> PlanOnPage:
    if not isinstance(base.job, Job):
        problem = Problem(
            what="a plan of measured layers is changed",
            why="its layers were measured as they are",
            fix="plan again with --profiles",
            field="changes",
        )
        raise UnsupportedError(problem, code="MW421")
    job, row = changed_plan(base.job, base.row, changes)
    priced = priced_step(job.plan, job.model, job.cluster, job.workload)
    return on_page(RankedPlan(rank=0, job=job, row=row, estimate=priced.estimate), priced)


def _that_matter(job: Job) -> list[dict[str, Any]]:
    """Numbers of the cluster that move the step of this plan, or what fits."""
    from meshwright.planning.what_if import MEMORY

    before_s = estimate_plan(job.plan, job.model, job.cluster, job.workload).step_time_s
    found = []
    for one in quantities_of(job):
        half = changed_job(job, {"numbers": {one.name: 0.5}})
        after_s = estimate_plan(half.plan, half.model, half.cluster, half.workload).step_time_s
        if one.name == MEMORY or abs(after_s - before_s) > 1e-4 * before_s:
            found.append(plain(one))
    return found
