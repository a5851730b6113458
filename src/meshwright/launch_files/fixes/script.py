"""The user's own launch script with another plan in it: the fewest options changed where they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.formats.launch_file import LaunchFile, Said
from meshwright.formats.megatron.earlier import EARLIER
from meshwright.formats.script_edit import edits
from meshwright.launch_files.fixes.base import OptionChange, ScriptFix, unified
from meshwright.launch_files.fixes.engine_files import EngineFiles
from meshwright.launch_files.fixes.processes import with_processes
from meshwright.launch_files.named_files import NamedFiles
from meshwright.launch_files.script import shape_differs
from meshwright.launch_files.source import LaunchSource, Outside
from meshwright.launch_files.workload import usable
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.targets.contract import PLAN_FILE

_OF_A_PLAN = re.compile(
    r"parallel|recompute|checkpoint-activations|virtual|pipeline|distributed-optimizer|overlap|fsdp|offload|"
    r"micro-batch|global-batch|precision-aware|cp-comm|sharding|ckpt-format|zero-stage|cpu-optimizer|dispatcher|wgrad|"
    r"dp-mapping|^--plan$"
)
"""Options that say a plan, not the model or the run."""
_SPREAD, _EXPERTS, _CUT = "--moe-tp-extend-ep", "--expert-model-parallel-size", "--expert-tensor-parallel-size"
_USUAL = ("1", "p2p")
"""Values that hold where an option is not given."""


def script_fix(source: LaunchSource, now: LaunchFile, job: Job, wanted: PlanRow, estimate: StepEstimate) -> ScriptFix:
    """The script with the options of another plan.

    Every edit is read back: one that changes anything else is not made.

    Args:
        source: the user's script.
        now: what was read of it.
        job: the other plan.
        wanted: the wanted plan as a row.
        estimate: the estimate of it.
    """
    first: list[OptionChange] = []
    if source.target.name == "megatron" and of_mindspeed(now):
        from meshwright.launch_files.fixes import mindspeed  # few scripts start it

        job, first = mindspeed.with_equal_stages(job), mindspeed.without_empty_layers(now, wanted)
    try:
        written = source.target.files(job, estimate)
    except MeshwrightError as error:
        return ScriptFix(plan=wanted.format(), changes=(), diff="", why_not=error.problems[0].what)
    if source.target.name == "megatron" and any(said.option == "--deepspeed" for said in now.said):
        why = (
            "Megatron-DeepSpeed has other options for it: --zero-stage for ZeRO, --checkpoint-activations for full "
            "recompute, --ds-sequence-parallel-size for Ulysses; stages are of equal size and have one chunk"
        )
        return ScriptFix(plan=wanted.format(), changes=(), diff="", why_not=why)
    held, source = source.devices or wanted.devices, replace(source, devices=wanted.devices)
    other_plan = read_back(source, {name: text for name, text in written.files if name != PLAN_FILE})
    engine = EngineFiles.of(source, dict(written.files))
    all_changes = list(_changes(now, other_plan))
    spread = next((said for said in (*now.said, *now.unpriced) if said.option == _SPREAD), None)
    if spread is not None and now.row is not None:
        all_changes = _of_spread_experts(all_changes, spread, now.row, wanted)
    other = [change.option for change in all_changes if change.option in source.target.elsewhere]
    changes = first + [change for change in all_changes if change.option not in other]
    notes = () if engine.theirs else tuple(_said_elsewhere(source, other))
    if held > wanted.devices:
        notes += (f"it runs on {wanted.devices} of {held} devices: the others stay idle",)
    text, missed = _with_changes(source, source.text, changes)
    if now.row is None and not missed:  # what says no plan was not read to its end
        named = {change.option for change in all_changes}
        more = [change for change in _changes(source.read(text), other_plan) if change.option not in named]
        text, missed = _with_changes(source, text, more)
        changes += more
    text, repaired = _without_complaints(source, text, other_plan, job.model)
    changes += repaired
    started = with_processes(source, text, wanted.devices)
    if started is None:
        missed.append(f"the number of processes, for {wanted.devices} devices,")
    else:
        text, counts = started
        changes += counts
    edited, of_engine = engine.edited(text)
    text, beside = engine.placed(text, edited)
    notes += tuple(_left_beside(source, dict(written.files), beside))
    kept = (*changes, *(change.as_option(now) for change in of_engine))
    reached = engine.read(text, beside)
    if "--overlap-grad-reduce" in other and not engine.theirs and reached.row is not None:
        reached = replace(reached, row=replace(reached.row, dp_overlap=wanted.dp_overlap))
    if why := _why_not(missed, reached, wanted, _complaints(reached, job.model) - _complaints(now, job.model)):
        return ScriptFix(plan=wanted.format(), changes=kept, diff="", why_not=why)
    unset = "unset CUDA_DEVICE_MAX_CONNECTIONS" in "".join(text for _, text in written.files)
    if unset and re.search(r"CUDA_DEVICE_MAX_CONNECTIONS=[\"']?1", text):
        notes += ("take CUDA_DEVICE_MAX_CONNECTIONS=1 out of the environment: this plan does not start with it",)
    before = {source.name or "script": source.text, **engine.own}
    diff = "".join(unified(before, {source.name or "script": text, **beside}))
    return ScriptFix(
        plan=wanted.format(),
        changes=kept,
        diff=diff,
        text=text,
        beside=tuple((name, edited) for name, edited in beside.items() if edited != engine.own[name]),
        notes=notes,
    )


def _why_not(missed: Sequence[str], reached: LaunchFile, wanted: PlanRow, wrong: frozenset[str]) -> str:
    """Why an edited script is not the one that is wanted; empty where it is.

    Args:
        missed: what could not be edited.
        reached: what the edited script says.
        wanted: the plan that it shall say.
        wrong: what is wrong with it that was right before.
    """
    if missed:
        return f"{', '.join(missed)} cannot be changed in place"
    if reached.row is None or reached.row.format() != wanted.format():
        return "the edited script reads as another plan"
    return f"in the edited script {min(wrong)}" if wrong else ""


def of_mindspeed(launch: LaunchFile) -> bool:
    """Whether a script starts MindSpeed-LLM, by options that it alone has."""
    return any(" of MindSpeed, " in note for note in launch.notes)


def _of_spread_experts(
    changes: Sequence[OptionChange], spread: Said, now: PlanRow, wanted: PlanRow
) -> list[OptionChange]:
    """Changes of a script whose expert degree is multiplied by the tensor degree.

    Where experts lie otherwise, the option that multiplies is taken out, so that degrees are those that are written.

    Args:
        changes: the changes as if there were no such option.
        spread: the option.
        now: the script's plan.
        wanted: the other one.
    """
    others = [one for one in changes if one.option not in (_EXPERTS, _CUT)]
    if (now.tp, now.ep, now.etp) == (wanted.tp, wanted.ep, wanted.etp):
        return others
    degree = [one for one in changes if one.option == _EXPERTS]
    out = OptionChange(option=_SPREAD, old="", new=None, place=spread.place)
    cut = OptionChange(option=_CUT, old=None, new=str(wanted.etp), place="")
    return [out, *others, *degree, cut]


def _without_complaints(
    source: LaunchSource, text: str, wanted: LaunchFile, model: ModelSpec
) -> tuple[str, list[OptionChange]]:
    """A script with what is wrong besides its plan as the plan's own has it, and these changes: those that repair it.

    Args:
        source: the user's script.
        text: the text of it, with the plan.
        wanted: what the plan's own script says.
        model: the model that is trained.
    """
    changes: list[OptionChange] = []
    read = source.read(text)
    wrong = _complaints(read, model)
    if not wrong:
        return text, []
    for change in _all_changes(read, wanted):
        edited = _edited(source, text, change, {change.option})
        left = wrong if edited is None else _complaints(source.read(edited), model)
        if edited is not None and len(left) < len(wrong):
            text, wrong = edited, left
            changes.append(change)
    return text, changes


def _complaints(read: LaunchFile, model: ModelSpec) -> frozenset[str]:
    """What is wrong with a script: its options, and what they say otherwise of the model that is trained."""
    read = usable(read)
    return frozenset(
        (*(problem.what for problem in read.problems), *(one.what for one in shape_differs(model, read.model)))
    )


def _said_elsewhere(source: LaunchSource, options: Sequence[str]) -> Iterator[str]:
    """Says where else a plan is said than in options of the script."""
    for option in options:
        yield f"{option} is not an option of this script; set it with {source.target.elsewhere[option]}"


def _with_changes(source: LaunchSource, text: str, changes: Sequence[OptionChange]) -> tuple[str, list[str]]:
    """A script with options changed, and those of them that cannot be changed in place."""
    missed, changing = [], {change.option for change in changes}
    for change in changes:
        edited = _edited(source, text, change, changing)
        if edited is None:
            missed.append(change.option)
        else:
            text = edited
    return text, missed


def _left_beside(source: LaunchSource, written: Mapping[str, str], edited: Mapping[str, str]) -> Iterator[str]:
    """Says which files beside a script still say its own plan."""
    for name, text in written.items():
        there = source.near(name) if name.endswith((".json", ".yaml")) and name != PLAN_FILE else None
        if there is not None and there != text and name != source.name and name not in edited:
            yield f"{name} beside it says the old plan: take its keys from `export --to {source.target.name}`"


def read_back(source: LaunchSource, files: Mapping[str, str]) -> LaunchFile:
    """A plan's files as its target writes them, read."""
    outside = Outside(environment={})
    nothing = NamedFiles(None)
    return LaunchSource(files=files, near=nothing, target=source.target, devices=source.devices, outside=outside).read()


def _changes(now: LaunchFile, wanted: LaunchFile) -> Iterator[OptionChange]:
    """Options of a plan that differ, those that price nothing but belong to it among them."""
    said = {one.option for one in (*now.said, *wanted.said)}
    for change in _all_changes(now, wanted):
        held, after = change.old, change.new
        usual = (held is None and after in _USUAL) or (
            after is None and held in _USUAL and "recompute" not in change.option
        )
        if _OF_A_PLAN.search(change.option) and not usual and (change.option in said or after is not None):
            yield change


def _all_changes(now: LaunchFile, wanted: LaunchFile) -> Iterator[OptionChange]:
    """Options that differ."""
    old: dict[str, Said] = {said.option: said for said in (*now.said, *now.unpriced)}
    new = {said.option: said.value for said in (*wanted.said, *wanted.unpriced)}
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        held = before.value if before is not None else None
        followed = before is not None and not before.place and after is None  # from options that stand elsewhere
        if held != after and not followed:
            yield OptionChange(option=name, old=held, new=after, place=before.place if before is not None else "")


def _edited(source: LaunchSource, text: str, change: OptionChange, changing: set[str]) -> str | None:
    """The text with one option changed and all that stays read as before."""
    held = source.read(text)
    if {said.option: said.value for said in (*held.said, *held.unpriced)}.get(change.option) == change.new:
        return text  # an edit before this one did it
    # What stands nowhere follows from what does.
    wanted = {said.option: said.value for said in held.said if said.option not in changing and said.place}
    file, _, line = change.place.rpartition(":")
    here = int(line) if line.isdigit() and file == (source.name or "script") else None
    for edited in _ways(text, change, here, source.commands(text)):
        read = source.read(edited)
        after = {said.option: said.value for said in (*read.said, *read.unpriced)}
        if after.get(change.option) == change.new and not read.questions:
            same = all(after.get(name) == value for name, value in wanted.items())
            if same:
                return edited
    return None


def _ways(text: str, change: OptionChange, here: int | None, commands: frozenset[int]) -> Iterator[str]:
    """Texts in which an option may be changed: where it stands, or where an earlier name of it does."""
    yield from edits(text, change.option, change.old, change.new, here, commands)
    earlier = [flag for flag, old in EARLIER.items() if any(name == change.option for name, _ in old.gives)]
    for flag in (one for one in earlier if change.old is not None and one in text):
        for without in edits(text, flag, "", None, here, commands):
            if change.new is None:
                yield without
            else:
                yield from edits(without, change.option, None, change.new, None, commands)
