"""One published claim, what the tree says of it, and the verdict."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from meshwright.cli.entry import main

Answer = dict[str, Any]
Rule = Literal["near", "least", "most"]
"""When ours is the claim's number: within `tolerance` of it, no less than it, no more than it."""

NOTHING_FITS = 3
"""Exit code of `plan` where no plan fits."""
KNOWN = {"P": "read in the paper", "2": "read in notes on the paper", "R": "recalled", "C": "read in public code"}
"""How the published number is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A number that a system's authors published, and how to get ours."""

    system: str
    says: str
    """What is claimed, in words."""
    published: float
    unit: str
    setting: str
    """Of the published number, and what stands for it here."""
    source: str
    known: str
    """A key of `KNOWN`."""
    commands: tuple[str, ...] = ()
    """Of meshwright, without its name; none where `ours` takes no answers, or nothing can be said."""
    ours: Callable[..., float] | None = None
    """The number from the answers to the commands, in their order."""
    rule: Rule = "near"
    tolerance: float = 0.1
    """Relative; half of what the step-time model is off on sources that it was not fitted to."""
    why: str = ""
    """What differs, where it is not reproduced."""
    from_files: bool = False
    """Whether its number needs files that do not come along."""

    def shown_commands(self) -> tuple[str, ...]:
        """What to type."""
        if self.from_files:
            return ("python -m benchmarks.claims --cases FILE --profiles DIR",)
        if self.ours is None:
            return ()
        return tuple(f"meshwright {command}" for command in self.commands) or (
            f'python -m benchmarks.claims --system "{self.system}"',
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A claim with our number."""

    claim: Claim
    ours: float | None

    @property
    def verdict(self) -> str:
        """`reproduced`; `in part`, for a gain of another size; `not`."""
        claim, ours = self.claim, self.ours
        if ours is None:
            return "not"
        low, high = claim.published * (1 - claim.tolerance), claim.published * (1 + claim.tolerance)
        if {"near": low <= ours <= high, "least": ours >= low, "most": ours <= high}[claim.rule]:
            return "reproduced"
        return "in part" if claim.unit == "x" and claim.published > 1 and ours > 1 + claim.tolerance / 5 else "not"


def outcome(claim: Claim) -> Outcome:
    """The claim, computed.

    Args:
        claim: that names commands, or takes its number from elsewhere.

    Raises:
        RuntimeError: a command is refused.
    """
    if claim.ours is None:
        return Outcome(claim=claim, ours=None)
    return Outcome(claim=claim, ours=float(claim.ours(*(answer(command) for command in claim.commands))))


@cache
def answer(command: str) -> Answer:
    """What the command line answers, as JSON.

    Args:
        command: without `meshwright` and `--json`.

    Raises:
        RuntimeError: it is refused.
    """
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        code = main([*command.split(), "--json"])
    if code == NOTHING_FITS:
        return {"plans": []}
    if code:
        raise RuntimeError(f"{command!r} ends with {code}: {said.getvalue()}{complained.getvalue()}")
    found: Answer = json.loads(said.getvalue())
    return found


def estimate_of(found: Answer) -> Answer:
    """The estimate of the best plan."""
    best: Answer = found["plans"][0]["estimate"]
    return best


def step_s(found: Answer) -> float:
    """Seconds of its step."""
    return float(estimate_of(found)["step_time_s"])


def rate(found: Answer) -> float:
    """Its tokens per second and device."""
    return float(estimate_of(found)["tokens_per_s_per_device"])


def gain(before: Answer, after: Answer) -> float:
    """Throughput of the second over that of the first."""
    return rate(after) / rate(before)


def mfu(found: Answer) -> float:
    """Its model FLOP utilization in percent."""
    return 100 * float(estimate_of(found)["mfu"])


def fits(found: Answer) -> float:
    """1 where it fits the memory, else 0."""
    return float(bool(found["plans"]) and estimate_of(found)["fits"] != "no")


def makespan(found: Answer) -> float:
    """Of a drawn schedule, in units of its times."""
    return float(found["makespan_s"])


def peak(found: Answer) -> float:
    """Activations on its fullest worker, in chunks."""
    return float(max(worker["peak_activations"] for worker in found["workers"]))


def memory_gib(parts: Sequence[str]) -> Callable[[Answer], float]:
    """Reads the memory of these parts on the first stage, in GiB.

    Args:
        parts: keys of `memory_bytes`.
    """

    def read(found: Answer) -> float:
        held = estimate_of(found)["stages"][0]["memory_bytes"]
        return float(sum(held[part] for part in parts)) / 2**30

    return read


def states_gib(found: Answer) -> float:
    """Weights, gradients and optimizer states per device, the mean of the stages, in GiB."""
    stages = estimate_of(found)["stages"]
    held = [stage["memory_bytes"] for stage in stages]
    return float(sum(one["weights"] + one["gradients"] + one["optimizer"] for one in held)) / len(held) / 2**30
