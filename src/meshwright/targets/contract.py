"""What a target is: a framework that runs plans, with its files written, read, and its rules."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.specs.collective_libraries import collective_library, crossed
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.tuning import Lora
from meshwright.targets.sayable import Plan, Rule, Says, refusals

if TYPE_CHECKING:
    from meshwright.formats.key_text import KeyText
    from meshwright.formats.launch_file import LaunchFile
    from meshwright.formats.shell import Launch, Script, Word

Files = Mapping[str, str]
"""Text by file name."""

OF_PYTORCH = frozenset(("NVIDIA", "AMD"))
"""Vendors whose devices PyTorch drives as CUDA or by its build for ROCm, which most of its frameworks ask for."""
PLAN_FILE = "plan.json"
"""Name of the plan's own file beside every target's files: it says more than most targets can."""


def _key_text(name: str, text: str) -> KeyText | None:
    from meshwright.formats.key_text import key_text  # only who edits a file parses it

    return key_text(name, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFiles:
    """A job in the words of one target."""

    files: tuple[tuple[str, str], ...]
    """Name and content."""
    notes: tuple[str, ...]
    """What the target does a little differently."""
    start: str
    """The command that starts the run, inside the folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ABC):
    """A framework: a folder of this package, and a line of `TARGETS`."""

    name: str
    """`export --to NAME`, `plan --target NAME`, `check --from NAME`."""
    title: str
    """Title of the framework, as its own people write it."""
    version: str
    """Release or commit whose keys these are, with its date."""
    read: Callable[[Files, int | None], LaunchFile] | None = None
    """Files of the target as a plan, and the number of devices where that is known; None where they say no plan."""
    script: Callable[[Script, int | None], LaunchFile] | None = None
    """A bash script, read as bash means it, as a plan; None where scripts are not this target's."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Options of Megatron-LM that stand for what another file of the target says, each with where: a script's edit
    leaves them out."""
    edited: Callable[[str, str], KeyText | None] = _key_text
    """A file of the target, by name and text, as one that can be edited; None where it cannot."""
    left_out: frozenset[str] = frozenset()
    """Keys that an edit takes away where the plan's own file has none, though the file reads the same with them: the
    program compares them with others, and stops."""
    beside: tuple[str, ...] = ()
    """Names of files that say more of a plan, where they lie in one folder with the file that is read."""
    named: Callable[[str], tuple[str, ...]] = lambda text: ()
    """Paths of files that the text of one names, which say more of a plan."""
    overrides: Callable[[Launch], Mapping[str, Word]] | None = None
    """Keys that a command sets over those of its file, by dotted path; None where commands set none."""
    option: Callable[[str, str], tuple[str, ...]] = lambda name, value: (f"--{name}", *([value] if value else []))
    """Words that say an option to the target's program."""
    configs: Callable[[Launch], tuple[str, ...] | None] = lambda launch: None
    """Where the configuration lies that the words of a launch name otherwise than by a path: the first that is there;
    nothing where defaults will do, None for programs that are not the target's own."""
    programs: str = ""
    """Pattern of its own programs, where others that are given its files may lay out devices in a way of their own."""
    recognised: Callable[[str, str], bool] = lambda name, text: False
    """Whether a file, by its name and text, is one of the target's."""
    as_run: Callable[[Job], Job] = lambda job: job
    """The plan as the target's memory holds it, where that is not what the plan says; the same job elsewhere."""
    unequal_nodes: bool = False
    """Whether its files start another number of processes on a node of another size."""
    suggested: bool = True
    """Whether answers say of a plan if this target runs it, unless asked."""
    software: str | None = None
    """Software whose kernels and memory price its plans, by name in the library; None for the default."""
    formats: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What its own recipe of a `--dtype` states besides, by the name of the option: `weight_dtype`."""
    vendors: frozenset[str] | None = OF_PYTORCH
    """Vendors of the devices that it runs on; None for all."""
    adapters: Callable[[ModelSpec], str] = lambda model: ""
    """Modules of a model that adapters are on where a question names none; empty for all linear ones."""
    adapted: Callable[[ModelSpec, Lora], Lora] = lambda model, lora: lora
    """Adapters that it makes of a model where a question asks for some."""
    predicts_ahead: bool = True
    """Whether it has modules that predict more tokens, of models that come with them."""

    @property
    def searched(self) -> str | None:
        """The target among whose plans a better one than that of a file is looked for."""
        return self.name

    @abstractmethod
    def refused(self, job: Job) -> tuple[Problem, ...]:
        """What the target cannot run of a plan."""

    @abstractmethod
    def files(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """The plan in the words of the target.

        Raises:
            UnsupportedError: with all that it cannot run of the plan.
        """

    def loaded(self, model: ModelSpec) -> ModelSpec:
        """A model as the target loads it: without modules that predict more tokens where it has none."""
        if self.predicts_ahead or not model.mtp_layers:
            return model
        note = f"{self.title} trains it without its multi-token-prediction module: the class that it loads has none"
        return replace(model, mtp_layers=0, mtp_layer=None, notes=(*model.notes, note))

    def problems(self, job: Job) -> tuple[Problem, ...]:
        """All that keeps the target from running a plan: what no framework runs, and what this one cannot express."""
        return (*self._unfit(job), *self.refused(job))

    def _unfit(self, job: Job) -> Iterator[Problem]:
        """What part of the cluster keeps any plan from running."""
        for group in job.cluster.groups:
            vendor = group.device.vendor
            if self.vendors is not None and collective_library(vendor) and vendor not in self.vendors:
                own = " and ".join(sorted(self.vendors))
                why = f"it runs on no device of {vendor}"
                fix = f"{self.title} runs on those of {own}; `plan` says which targets run on others"
                yield Problem(what=f"cluster: {group.device.name} is made by {vendor}", why=why, fix=fix, field="gpus")
        yield from _two_libraries(job)

    def written(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """A plan as the target's files.

        Raises:
            UnsupportedError: with all that keeps the target from running it.
        """
        if problems := tuple(self._unfit(job)):
            raise UnsupportedError([*problems, *self.refused(job)], code="MW420")
        return self.files(job, estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTarget(Target):
    """A target that translates whole jobs, whose pipelines and layers may differ, by functions of its own."""

    translate: Callable[[Job, StepEstimate], TargetFiles]
    """Raises UnsupportedError with what `refusals_of` says of the plan."""
    refusals_of: Callable[[Job], tuple[Problem, ...]]
    """What its files cannot say of a plan."""

    def refused(self, job: Job) -> tuple[Problem, ...]:
        """What the target cannot run of a plan."""
        return self.refusals_of(job)

    def files(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """The plan in the words of the target."""
        return self.translate(job, estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTarget(Target):
    """A trainer whose files are read as plans, and not written."""

    like: str
    """The target that runs the plans it can run, among which a better one is looked for."""
    says: Callable[[PlanRow, str], Mapping[str, object]] | None = None
    """Keys, by dotted path, that say a plan in a file with this text; what they cannot say is found by reading the
    edited file. None where files are not edited."""

    @property
    def searched(self) -> str:
        """The target among whose plans a better one than that of a file is looked for."""
        return self.like

    def refused(self, job: Job) -> tuple[Problem, ...]:
        """Every plan: its files are not written."""
        why, fix = "its files are read, and not written", f"use {self.like}"
        return (Problem(what=f"plan: {self.title} is named", why=why, fix=fix, field="target"),)

    def files(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """None: its files are not written."""
        raise UnsupportedError(self.refused(job), code="MW420")


def _two_libraries(job: Job) -> tuple[Problem, ...]:
    """Frameworks make communicators of all ranks, which devices under two libraries do not share."""
    mixed = crossed(job.cluster, [group.name for group in job.cluster.groups])
    if mixed is None:
        return ()
    libraries, carriers = mixed
    why = f"its ranks would share one communicator, and {' and '.join(libraries)} share none"
    why += f"; traffic between them goes by {' and '.join(carriers)}" if carriers else ""
    fix = "plan the devices of one vendor"
    return (Problem(what="plan: devices under two collective libraries", why=why, fix=fix, field="cluster"),)


def target_files(job: Job, files: tuple[tuple[str, str], ...], *, notes: tuple[str, ...], start: str) -> TargetFiles:
    """A job in the words of a target: its files, and the plan itself before them."""
    from meshwright.formats.plan_json import write_job  # who only asks what a target runs writes nothing
    from meshwright.library.made_with import made_with

    return TargetFiles(files=((PLAN_FILE, write_job(job, made_with(job))), *files), notes=notes, start=start)


def one_line(text: str) -> str:
    """A name as it may stand in a comment of a script: a name with a line of its own would be run."""
    return " ".join(text.split())


def marked(suffixes: tuple[str, ...], *marks: tuple[str, ...]) -> Callable[[str, str], bool]:
    """Recognises files of these suffixes whose text holds a spelling of each mark; keys are not the ends of others."""
    patterns = [
        re.compile("|".join(rf"{r'(?<![A-Za-z0-9_])' if one[0].islower() else ''}{re.escape(one)}" for one in mark))
        for mark in marks
    ]

    def recognised(name: str, text: str) -> bool:
        return PurePath(name).suffix in suffixes and all(one.search(text) for one in patterns)

    return recognised


def marked_lines(*marks: str, suffixes: tuple[str, ...] = (".yaml", ".yml")) -> Callable[[str, str], bool]:
    """Recognises files of these suffixes in which each pattern, read line by line, matches somewhere."""
    patterns = [re.compile(mark, re.MULTILINE) for mark in marks]

    def recognised(name: str, text: str) -> bool:
        return PurePath(name).suffix in suffixes and all(one.search(text) for one in patterns)

    return recognised


def text_beside(files: Files, name: str) -> str | None:
    """Text of the first file whose name ends so; None where there is none."""
    return next((text for one, text in files.items() if one.endswith(name)), None)


def file_of(files: Files, name: str, recognised: Callable[[str, str], bool]) -> tuple[str, str]:
    """Name and text of the file a target reads: that of this name, else the first it recognises, else the first."""
    found = [one for one in files if one == name or one.endswith(f"/{name}")]
    found += [one for one, text in files.items() if recognised(one, text)]
    chosen = (found or list(files))[0]
    return chosen, files[chosen]


def text_of(files: Files, name: str, recognised: Callable[[str, str], bool]) -> str:
    """Text of a target's file, found as by `file_of`."""
    return file_of(files, name, recognised)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a target does a little differently, and of which plans that is to be said."""

    text: str
    when: Callable[[Plan], bool] = lambda plan: True


def overlaps(text: str) -> Note:
    """Collectives run beside computation, whatever the plan says."""
    return Note(text=text, when=lambda plan: not plan.strategy.data.overlap)


ADAM_IS_ADAMW = Note(text="its optimizer is AdamW", when=lambda plan: plan.workload.optimizer == "adam")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStrategyTarget(Target):
    """A target whose files say plans of equal pipelines whose layers are alike."""

    says: Mapping[str, Says]
    rules: tuple[Rule, ...]
    beyond: Callable[[Plan], Iterable[Problem]] = lambda plan: ()
    """What it cannot run whatever the settings, such as models it has not."""
    write: Callable[[Plan], tuple[tuple[str, str], ...]]
    """Name and content of its files, of a plan that it can run."""
    start: Callable[[Plan], str]
    notes: tuple[Note, ...] = ()

    def refused(self, job: Job) -> tuple[Problem, ...]:
        """What the target cannot run of a plan."""
        return self._said(job)[1]

    def files(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """The plan in the words of the target."""
        plan, problems = self._said(job)
        if problems or plan is None:
            raise UnsupportedError(problems, code="MW420")
        notes = tuple(note.text for note in self.notes if note.when(plan))
        return target_files(job, self.write(plan), notes=notes, start=self.start(plan))

    def _said(self, job: Job) -> tuple[Plan | None, tuple[Problem, ...]]:
        plan, problems = refusals(self.title, job, self.says, self.rules)
        return plan, (*problems, *self.beyond(plan)) if plan else problems
