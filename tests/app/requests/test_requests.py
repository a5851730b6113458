"""Every request: each field from a command line and from Python, and one error that names field, rule and remedy."""

from __future__ import annotations

import inspect
import io
import re
from contextlib import redirect_stdout
from typing import Any

import pytest

import meshwright as mw
from meshwright.app.requests.check import CheckRequest
from meshwright.app.requests.plan import PlanRequest
from meshwright.app.requests.schedule import ScheduleRequest
from meshwright.app.verbs import VERBS, docstring_of, python_verb, signature_of
from meshwright.cli import answers, commands, main
from meshwright.errors import InputError, MeshwrightError
from meshwright.fields.failures import FailureSpec
from meshwright.fields.field import Field
from meshwright.fields.host import MemorySize, NvmeDrives, PcieSlot
from meshwright.fields.job import OutputFields, WatchedFields
from meshwright.fields.kinds import (
    CarbonIntensity,
    Choice,
    Count,
    Duration,
    Number,
    Numbers,
    OutputFile,
    Spec,
    Texts,
    Watts,
    Whole,
    Window,
)
from meshwright.fields.request import request_fields
from meshwright.formats.host import Disks
from meshwright.specs.failures import Failures
from meshwright.specs.workload import Workload

MOST_LINES = 25
CLOSED = (
    Whole,
    Number,
    Count,
    Duration,
    Numbers,
    Choice,
    MemorySize,
    NvmeDrives,
    PcieSlot,
    FailureSpec,
    Watts,
    CarbonIntensity,
    Window,
)
"""Kinds that refuse a word."""


def example(one: Field) -> tuple[Any, Any]:
    """A text of the kind, and the Python value of the same meaning."""
    if isinstance(one.kind, Numbers):
        return "2,4", [2, 4]
    if isinstance(one.kind, Texts):
        return (["a=1", "b"], ["a=1", "b"]) if one.repeated else ("a,b", ["a,b"])
    if isinstance(one.kind, Whole):
        return "4", 4
    if isinstance(one.kind, Window):
        return "40%-60%", (0.4, 0.6)
    if isinstance(one.kind, Duration):
        return "2h", 7200
    if isinstance(one.kind, Number) and one.kind.high < 2:
        return "0.5", 0.5
    if isinstance(one.kind, (Number, Count)):
        return "2", 2
    if isinstance(one.kind, MemorySize):
        return "128GB", 128e9
    if isinstance(one.kind, NvmeDrives):
        return "2TB@7GB/s", Disks(bytes_per_s=7e9, size_bytes=2e12)
    if isinstance(one.kind, PcieSlot):
        return "12GB/s", 12e9
    if isinstance(one.kind, Watts):
        return "620W", 620.0
    if isinstance(one.kind, CarbonIntensity):
        return "380g/kWh", 0.38
    if isinstance(one.kind, FailureSpec):
        return "rate=1%/year", Failures(rate_per_device_hour=0.01 / 8766)
    if isinstance(one.kind, Choice):
        return one.kind.names[0], one.kind.names[0]
    if isinstance(one.kind, Spec):
        workload = Workload(global_batch=8, seq_len=4096)
        return workload, workload
    return "word", "word"


@pytest.mark.parametrize("verb", VERBS)
def test_a_field_reads_its_text_and_its_value_alike(verb: str) -> None:
    for one in request_fields(VERBS[verb].request):
        if not one.flag:
            text, value = example(one)
            assert one.kind.read(one.spelled, text) == one.kind.read(one.name, value), one.spelled


@pytest.mark.parametrize("verb", VERBS)
def test_a_bad_value_gives_one_error_that_names_field_rule_and_remedy(verb: str) -> None:
    for one in request_fields(VERBS[verb].request):
        if isinstance(one.kind, (*CLOSED, OutputFile)):
            with pytest.raises(MeshwrightError) as caught:
                one.kind.read(one.spelled, "no/where/at all")
            (problem,) = caught.value.problems
            assert problem.why, one.spelled
            assert problem.fix or isinstance(one.kind, Count), one.spelled
            assert one.spelled in problem.what or isinstance(one.kind, (Choice, OutputFile))


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_a_sentence_and_a_default_is_said(verb: str) -> None:
    for one in request_fields(VERBS[verb].request):
        assert one.explained.partition("  [default")[0].endswith((".", ")")), one.spelled
        assert one.flag or one.default in (None, ()) or one.usual or not one.cli, one.spelled


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_in_help_comes_from_the_request(verb: str) -> None:
    shown = io.StringIO()
    with redirect_stdout(shown):
        assert main([*verb.split(), "--help-all"]) == 0
    listed = {word.strip(",") for line in shown.getvalue().splitlines() for word in line.split()[:2]}
    options = {word for word in listed if re.fullmatch(r"--[a-z0-9-]+", word)}
    output = WatchedFields if verb in commands.WATCHED else OutputFields
    asked = (*request_fields(VERBS[verb].request), *request_fields(output))
    assert options - {"--help"} == {one.spelled for one in asked if one.cli and not one.argument}


@pytest.mark.parametrize("module", [answers, commands])
def test_no_body_of_a_command_is_long(module: Any) -> None:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ == module.__name__ and not name.startswith("_"):
            assert len(inspect.getsource(function).splitlines()) <= MOST_LINES, name


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if " " not in verb and verb not in ("doctor", "web", "serve", "mcp")]
)
def test_a_verb_in_python_says_what_it_takes(verb: str) -> None:
    function = getattr(mw, verb)
    request = VERBS[verb].request
    assert inspect.signature(function) == signature_of(request)
    assert set(request.positional) <= set(signature_of(request).parameters)
    for name in signature_of(request).parameters:
        assert f"    {name}: " in docstring_of(request)


def test_all_problems_come_together_in_the_words_of_each_side() -> None:
    wrong = {"model": "gpt2", "gpus": "8xH100", "seq_len": "x", "top": "0", "max_step_time": "soon", "days": "3"}
    with pytest.raises(InputError) as typed:
        PlanRequest.read(wrong, typed=True)
    with pytest.raises(InputError) as called:
        PlanRequest.read(wrong)
    assert [problem.field for problem in typed.value.problems] == ["--seq", "--top", "--max-step-time", "--days"]
    assert [problem.field for problem in called.value.problems] == ["seq_len", "top", "max_step_time", "days"]


def test_what_is_not_given_takes_its_default_and_what_is_given_is_known() -> None:
    request = PlanRequest.read({"model": "gpt2", "gpus": "8xH100", "pin": ["tp=2"], "pareto": False})
    assert request.given == {"model", "gpus", "pin"}
    assert (request.top, request.job.seq_len, request.space.pin) == (5, None, ("tp=2",))


def test_fields_that_do_not_go_together_are_refused_each_once() -> None:
    with pytest.raises(InputError) as caught:
        PlanRequest.read({"profiles": "dir", "model": "m", "global_batch": 8, "pareto": True, "tokens": "1T"})
    assert [problem.field for problem in caught.value.problems] == ["tokens", "pareto"]
    with pytest.raises(InputError, match="both plan and source"):
        CheckRequest.read({"model": "gpt2", "plan": "tp2", "source": "x.sh"})


def test_settings_of_schedules_are_fields_and_only_those_given_arrive() -> None:
    request = ScheduleRequest.read({"name": "hanayo", "p": "4", "m": 8, "waves": "2"})
    assert request.parameters == {"waves": 2}
    assert request.name == ("hanayo",)


def test_a_python_verb_refuses_a_name_that_is_no_field() -> None:
    with pytest.raises(TypeError, match="sequence_length"):
        python_verb("plan")("gpt2", sequence_length=4)
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'seqlen'; did you mean seq_len?"):
        python_verb("plan")("gpt2", seqlen=4)
    with pytest.raises(TypeError, match=r"'seqlen'; did you mean seq_len\?\n.*'pinn'; did you mean pin\?"):
        python_verb("plan")("gpt2", seqlen=4, pinn={"tp": 2})
    with pytest.raises(TypeError, match="it takes plan, target, directory, force"):
        python_verb("export")("plans.json", where="launch")
    for verb, option, name in (
        ("plan", "gbs", "global_batch"),
        ("export", "to", "target"),
    ):  # as the command line has it
        with pytest.raises(TypeError, match=f"did you mean {name}"):
            python_verb(verb)(**{option: "8"})
    with pytest.raises(TypeError, match=r"takes without a name: model; say by name what '8xH100' is"):
        python_verb("plan")("gpt2", "8xH100")


@pytest.mark.parametrize("verb", ["explain", "estimate", "check", "trace"])
def test_a_whole_plan_set_is_no_plan(verb: str) -> None:
    plans = mw.estimate("gpt2", plan="dp8", cluster="8xH100")
    with pytest.raises(InputError, match=r"plans\[0\]"):
        getattr(mw, verb)(plan=plans)
