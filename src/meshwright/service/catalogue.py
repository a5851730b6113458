"""Which verbs a service answers, at which address, and why it refuses the others."""

from __future__ import annotations

from functools import cache

from meshwright.app.verbs import VERBS
from meshwright.fields.field import Field
from meshwright.fields.kinds import OutputFile
from meshwright.fields.request import request_fields

VERSION = "v1"
"""Version of the addresses; an answer names the schema it has."""
_TRAINS = "it trains on the devices of the machine it runs on"
_WRITES = "it writes into the library of the machine it runs on"
_LONG = "it runs for hours and keeps its trials in files of the machine it runs on"
REFUSED = {
    "run": _TRAINS,
    "verify": _TRAINS,
    "profile": "it times kernels on the devices of the machine it runs on",
    "doctor": "it describes the machine it runs on",
    "sweep": _LONG,
    "tune": _LONG,
    "calculon tune": _LONG,
    "calculon sweep": _LONG,
    "calculon search": _LONG,
    "calculon what-if": _LONG,
    "calibrate": "it reads many files of runs, and changes what is predicted",
    "validate": "it reads many files of runs",
    "models add": _WRITES,
    "gpus add": _WRITES,
    "web": "it serves a page of its own",
    "serve": "it is what answers",
    "mcp": "it is a service of its own",
}
"""Verbs of the command that no service answers, and why."""
SERVED = tuple(verb for verb in VERBS if verb not in REFUSED)
"""Verbs that answer from what a question says and from the library, writing nothing."""
QUICK = ("estimate", "models list", "models show", "gpus list", "gpus show", "clusters show", "calculon estimate")
"""Verbs that search nothing: a few milliseconds each, with workers of their own."""
LISTS = {"models": "models list", "gpus": "gpus list"}
"""What GET lists; GET .../NAME shows one."""
NOT_ASKED = frozenset(
    ("output", "svg", "window", "memory_snapshot", "directory", "force", "workload", "profiles", "fix")
)
"""Fields that write files, read folders or hold objects of Python."""
TEXT_OF_SCRIPT = ("arguments", "environment")
"""Fields whose texts a launch script is given: data, whatever they look like."""
OWN_PARALLELIZERS = ("native", "layerwise", "calculon")
"""Parallelizers that plan in this process; the others load code or start programs."""


def path_of(verb: str) -> str:
    """The address of a verb below the version: `models/list`."""
    return verb.replace(" ", "/")


def verb_at(path: str) -> str:
    """The verb that an address names, whether it is one or not."""
    return path.strip("/").replace("/", " ")


@cache
def asked_fields(verb: str) -> dict[str, Field]:
    """The fields of a verb that a request may have, by name."""
    return {
        one.name: one
        for one in request_fields(VERBS[verb].request)
        if one.python and one.name not in NOT_ASKED and not isinstance(one.kind, OutputFile)
    }


def is_quick(verb: str, body: object) -> bool:
    """Whether a question is answered without a search or a simulation of many schedules."""
    compared = verb == "estimate" and isinstance(body, dict) and body.get("schedule")
    return verb in QUICK and not compared


def takes_document(field: Field) -> bool:
    """Whether a field names a file on the command line, so that a request may hold the document itself."""
    annotation = field.annotation or field.kind.annotation
    named = field.placeholder in ("FILE", "PLAN", "MODEL")
    return named or any(word in annotation for word in ("PathLike", "PlanLike", "Source"))
