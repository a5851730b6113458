"""What is installed and whether it works: versions, the library's data, and a plan priced against closed forms."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata

from meshwright.app.answer import Answer
from meshwright.errors import MeshwrightError
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library import devices as device_library
from meshwright.library import models as model_library
from meshwright.library.clusters import resolve_gpus
from meshwright.records import plain
from meshwright.schedules import SCHEDULES, simulate
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.layers.attention import Attention
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload

CORE = ("numpy", "pydantic", "typer", "rich", "tree-sitter", "tree-sitter-bash")
OPTIONAL = ("torch", "jax", "ray", "optuna", "smac", "pyyaml")
"""Looked up by their metadata; none is imported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DoctorReport(Answer):
    """What is installed, what was checked, and the verdict."""

    version: str
    python: str
    platform: str
    core: tuple[tuple[str, str | None], ...]
    """Packages that planning needs, None where one is missing."""
    optional: tuple[tuple[str, str | None], ...]
    """Packages that other verbs may use."""
    models: int
    devices: int
    schedules: int
    checks: tuple[Finding, ...]
    self_check_s: float

    @property
    def ok(self) -> bool:
        """Whether everything that planning needs is there and works."""
        return all(check.ok for check in self.checks)

    def __repr__(self) -> str:
        return f"DoctorReport({'ok' if self.ok else 'not ok'}, {len(self.checks)} checks)"

    def data(self) -> dict[str, object]:
        """As data."""
        return {
            "schema": "meshwright.doctor/1",
            "ok": self.ok,
            "version": self.version,
            "python": self.python,
            "platform": self.platform,
            "core": dict(self.core),
            "optional": dict(self.optional),
            "library": {"models": self.models, "devices": self.devices, "schedules": self.schedules},
            "checks": plain(self.checks),
            "timing": {"self_check_s": self.self_check_s},
        }


def doctor() -> DoctorReport:
    """Look at the installation; takes about a second and writes nothing."""
    core = tuple((name, _version(name)) for name in CORE)
    missing = [name for name, version in core if version is None]
    started = time.perf_counter()
    checks = [
        Finding(
            name="python",
            ok=sys.version_info >= (3, 11),
            detail=f"{platform.python_version()}; 3.11 or later is needed",
        ),
        Finding(
            name="core packages",
            ok=not missing,
            detail=f"missing: {', '.join(missing)}" if missing else "all installed",
        ),
        _checked("models", _check_models),
        _checked("devices", _check_devices),
        *_self_checks(),
    ]
    return DoctorReport(
        version=_version("meshwright") or "not installed",
        python=platform.python_version(),
        platform=platform.platform(),
        core=core,
        optional=tuple((name, _version(name)) for name in OPTIONAL),
        models=len(model_library.names()),
        devices=len(device_library.device_names()),
        schedules=len(SCHEDULES),
        checks=tuple(checks),
        self_check_s=time.perf_counter() - started,
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _checked(name: str, check: Callable[[], tuple[bool, str]]) -> Finding:
    """A check whose own failure is a finding: the doctor reports, it does not fall ill."""
    try:
        ok, detail = check()
    except MeshwrightError as error:
        ok, detail = False, error.problems[0].what
    except Exception as error:
        ok, detail = False, f"{type(error).__name__}: {error}"
    return Finding(name=name, ok=ok, detail=detail)


def _check_models() -> tuple[bool, str]:
    """Every model of the library reads."""
    rows = model_library.library_models()
    broken = [f"{row['name']}: {row['error']}" for row in rows if "error" in row]
    return not broken, "; ".join(broken[:3]) or f"all {len(rows)} read"


def _check_devices() -> tuple[bool, str]:
    """Every device of the library reads."""
    broken = []
    names = device_library.device_names()
    for name in names:
        try:
            device_library.device(name)
        except MeshwrightError as error:
            broken.append(f"{name}: {error.problems[0].what}")
    return not broken, "; ".join(broken[:3]) or f"all {len(names)} read"


def _self_checks() -> Iterator[Finding]:
    """A plan of Llama-3-8B on one node, priced, against what can be worked out by hand."""
    try:
        model, cluster, workload, estimate = _priced()
    except Exception as error:
        yield Finding(name="a plan is priced", ok=False, detail=f"{type(error).__name__}: {error}")
        return
    yield _checked("model FLOP", lambda: _check_flop(model, cluster, workload, estimate))
    yield _checked("memory of states", lambda: _check_states(model, estimate))
    yield _checked("breakdown", lambda: _check_breakdown(estimate))
    yield _checked("schedules", _check_schedules)


def _priced() -> tuple[ModelSpec, ClusterSpec, Workload, StepEstimate]:
    model = model_library.spec("llama-3-8b")
    cluster = resolve_gpus("1x8xH100")
    workload = Workload(seq_len=4096, global_batch=64)
    row = PlanRow(tp=4, dp=2, gbs=64, recompute="sel")
    return model, cluster, workload, estimate_plan(expand(row, model, 4096), model, cluster, workload)


def _check_flop(model: ModelSpec, cluster: ClusterSpec, workload: Workload, estimate: StepEstimate) -> tuple[bool, str]:
    """MFU x devices x peak x step = (6 N + 6 L s h_attention) x tokens: causal attention is half of 12 L s h."""
    attention = sum(
        count * layer.attention.query_width
        for layer, count in model.kind_counts().items()
        if isinstance(layer.attention, Attention)
    )
    by_hand = (6 * model.active_parameters + 6 * workload.seq_len * attention) * workload.tokens_per_step
    peak = cluster.groups[0].device.peak(workload.precision.compute) or math.nan
    priced = estimate.mfu * cluster.devices * peak * estimate.step_time_s
    return math.isclose(priced, by_hand, rel_tol=0.01), f"{priced:.4g} priced, {by_hand:.4g} by hand"


def _check_states(model: ModelSpec, estimate: StepEstimate) -> tuple[bool, str]:
    """Weights, gradients and optimizer states of bf16 with Adam: 18 bytes a parameter over tp 4."""
    memory = dict(estimate.stages[0].memory_bytes)
    priced = memory["weights"] + memory["gradients"] + memory["optimizer"]
    by_hand = 18 * model.parameters / 4
    return math.isclose(priced, by_hand, rel_tol=0.01), f"{priced:.4g} bytes priced, {by_hand:.4g} by hand"


def _check_breakdown(estimate: StepEstimate) -> tuple[bool, str]:
    """The parts of the step sum to it."""
    total = sum(part for _, part in estimate.breakdown_s)
    return math.isclose(total, estimate.step_time_s, rel_tol=1e-9), f"{total:.6g} s of {estimate.step_time_s:.6g} s"


def _check_schedules() -> tuple[bool, str]:
    """Simulated and closed-form time of every schedule that exists, 4 workers and 8 micro-batches."""
    wrong = []
    for name, schedule in SCHEDULES.items():
        v = 1 if not schedule.problems(4, 8, 1) else 2
        simulated = simulate(schedule.table(4, 8, v), schedule.equal_times(4, v, recompute_s=1.0)).makespan_s
        closed = schedule.closed_form_s(4, 8, v, 1.0, 2.0)
        if closed is not None and not math.isclose(simulated, closed, rel_tol=1e-9):
            wrong.append(f"{name} {simulated:g} simulated, {closed:g} in closed form")
    return not wrong, "; ".join(wrong) or f"{len(SCHEDULES)} simulated; those with closed forms match them"
