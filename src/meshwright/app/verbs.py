"""The verbs: each a request, and the use case that answers it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshwright.app.answer import asked_with
from meshwright.errors import InputError, Problem, nearest
from meshwright.fields.request import Request, loaded, request_fields


class _Unlimited:
    """What a verb without a search may use."""

    def budget(self) -> AbstractContextManager[None]:
        return nullcontext()


UNLIMITED = _Unlimited()


@dataclass(frozen=True, slots=True)
class Verb:
    """A request, and the function that answers it."""

    asks: str
    """`module:class` in `app.requests`."""
    use: str
    """`module:function` in its room."""
    apart: bool = False
    """Whether the function takes the fields by name rather than the request."""
    home: str = "app"
    """The room of the function."""

    @property
    def request(self) -> type[Request]:
        """What may be asked."""
        found: type[Request] = loaded(f"app.requests.{self.asks}")
        return found

    @property
    def words(self) -> str:
        """What the command line calls it."""
        return next(words for words, verb in VERBS.items() if verb is self)

    def answer(self, request: Any, **more: Any) -> Any:
        """The answer to a request.

        Args:
            request: the request of this verb.
            more: the further arguments of the use case: functions that it calls while it works, parts of the answer
                that are left out.
        """
        use = loaded(f"{self.home}.{self.use}")
        if self.apart:
            answer = use(**request.values(), **more)
        else:
            with getattr(request, "limits", UNLIMITED).budget():
                answer = use(request, **more)
        return asked_with(answer, self.words, request)


VERBS = {
    "plan": Verb("plan:PlanRequest", "plan:plan"),
    "estimate": Verb("estimate:EstimateRequest", "estimate:estimate"),
    "check": Verb("check:CheckRequest", "check:check"),
    "xray": Verb("xray:XrayRequest", "xray:xray"),
    "explain": Verb("read:ExplainRequest", "explain:explained"),
    "compare": Verb("read:CompareRequest", "compare:compared"),
    "trace": Verb("read:TraceRequest", "trace:trace"),
    "report": Verb("page:ReportRequest", "report:report"),
    "web": Verb("page:WebRequest", "page:page_source"),
    "serve": Verb("serve:ServeRequest", "serve:serve", home="service"),
    "mcp": Verb("serve:McpRequest", "mcp:serve_mcp", home="service"),
    "size": Verb("size:SizeRequest", "size:size"),
    "sweep": Verb("sweep:SweepRequest", "sweep:sweep"),
    "tune": Verb("tune:TuneRequest", "tune:tune"),
    "export": Verb("read:ExportRequest", "export:exported"),
    "schedule": Verb("schedule:ScheduleRequest", "schedule:draw_schedule"),
    "validate": Verb("measure:ValidateRequest", "validate:validate", apart=True),
    "calibrate": Verb("measure:CalibrateRequest", "calibrate:calibrate"),
    "profile": Verb("measure:ProfileRequest", "profile:profile", apart=True),
    "run": Verb("run:RunRequest", "run:run"),
    "verify": Verb("run:VerifyRequest", "verify:verify"),
    "doctor": Verb("library:DoctorRequest", "doctor:doctor", apart=True),
    "models list": Verb("library:ListModelsRequest", "library:list_models", apart=True),
    "models show": Verb("library:ShowModelRequest", "library:show_model", apart=True),
    "models add": Verb("library:AddModelRequest", "library:add_model", apart=True),
    "gpus list": Verb("library:ListGpusRequest", "library:list_gpus", apart=True),
    "gpus show": Verb("library:ShowGpuRequest", "library:show_gpu", apart=True),
    "gpus add": Verb("library:AddGpuRequest", "library:add_gpu", apart=True),
    "clusters show": Verb("library:ShowClusterRequest", "clusters:show_cluster", apart=True),
    "calculon estimate": Verb("calculon:CalculonEstimateRequest", "calculon:calculon_estimate", apart=True),
    "calculon search": Verb("calculon:CalculonSearchRequest", "calculon:calculon_search"),
    "calculon sweep": Verb("calculon:CalculonSweepRequest", "calculon_sweep:calculon_sweep"),
    "calculon what-if": Verb("calculon:CalculonWhatIfRequest", "calculon:calculon_what_if"),
    "calculon tune": Verb("tune:CalculonTuneRequest", "tune:calculon_tune"),
}
"""The verbs by the words of the command line, in the order of its help."""


@cache
def python_verb(verb: str) -> Callable[..., Any]:
    """A verb as a Python function, its signature and docstring made of its request."""
    asked = VERBS[verb]
    request = asked.request
    signature = signature_of(request)

    def call(*values: Any, **named: Any) -> Any:
        if unknown := [name for name in named if name not in signature.parameters]:
            raise TypeError("\n".join(_unexpected(verb, name, request) for name in unknown))
        if len(values) > len(request.positional):
            raise TypeError(_too_many(verb, values, request))
        given = signature.bind(*values, **named).arguments
        more = {name: given.pop(name) for name in request.calls if given.get(name) is not None}
        if problems := [_no_function(request, *one) for one in more.items() if not callable(one[1])]:
            raise InputError(problems)
        return asked.answer(request.read(given), **more)

    call.__name__ = call.__qualname__ = verb
    call.__module__ = "meshwright"
    call.__doc__ = docstring_of(request)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call


def _no_function(request: type[Request], name: str, value: Any) -> Problem:
    """What is said of something that cannot be called where a function belongs."""
    when = request.calls[name][1].rstrip(".")
    why = f"it is a function, {when[0].lower()}{when[1:]}"
    return Problem(what=f"{name} is {value!r:.40}", why=why, fix=f"{name}=print, for one", field=name)


def _unexpected(verb: str, name: str, request: type[Request]) -> str:
    """What is said of an argument that a verb does not take: `--gbs` of the command line is `global_batch`."""
    from meshwright.fields.other_names import meant_options  # few calls are wrong

    known = {one.name: one.spelled for one in request_fields(request) if one.python} | {
        call: call for call in request.calls
    }
    said = [f"--{name.replace('_', '-')}", *meant_options(name, known.values())]
    meant = [one.partition(" ")[0] for one in said]
    close = [own for own, option in known.items() if option in meant] or nearest(name, known)
    instead = f"did you mean {' or '.join(close)}?" if close else f"it takes {', '.join(known)}"
    return f"{verb}() got an unexpected keyword argument {name!r}; {instead}"


def _too_many(verb: str, values: tuple[Any, ...], request: type[Request]) -> str:
    """What is said of values without a name beyond those that have a place."""
    placed = ", ".join(request.positional) or "none"
    beyond = ", ".join(f"{value!r:.40}" for value in values[len(request.positional) :])
    return f"{verb}() takes without a name: {placed}; say by name what {beyond} is, as in gpus='64xH100'"


def signature_of(request: type[Request]) -> inspect.Signature:
    """The arguments of a verb in Python."""
    asked = {one.name: one for one in request_fields(request) if one.python}
    order = [*request.positional, *(name for name in asked if name not in request.positional)]
    parameters = []
    for name in order:
        one = asked[name]
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if name in request.positional else inspect.Parameter.KEYWORD_ONLY
        hint = one.annotation or one.kind.annotation
        hint = f"{hint} | None" if one.default is None else hint
        parameters.append(inspect.Parameter(name, kind, default=one.default, annotation=hint))
    for name, (hint, _) in request.calls.items():
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=f"{hint} | None")
        )
    return inspect.Signature(parameters)


def docstring_of(request: type[Request]) -> str:
    """What the command's help says, for Python."""
    text = inspect.cleandoc(request.__doc__ or "").replace("\b\n", "")
    said = {one.name: one.explained for one in request_fields(request)}
    said |= {name: explained for name, (_, explained) in request.calls.items()}
    lines = [f"    {name}: {said[name]}" for name in signature_of(request).parameters]
    raises = (
        "    InputError: malformed or contradictory input, all problems together.",
        "    UnsupportedError: an unknown name and nothing else wrong.",
        "    InfeasibleError: nothing fits, or nothing keeps to the limits.",
    )
    parts = [text, "Args:\n" + "\n".join(lines) if lines else "", f"Returns:\n    {request.returns}"]
    return "\n\n".join([part for part in parts if part] + ["Raises:\n" + "\n".join(raises)]) + "\n"
