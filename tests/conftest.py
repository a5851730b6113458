"""How every test runs: hypothesis gives the same examples each time, and array shapes are checked where asked for."""

from __future__ import annotations

import gc
import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import once
from tests.processors import processor

# Ray reads these once a process, so that all its tests have the same: nothing leaves the machine, and no token is
# written into the home of whoever runs the tests. Nobody else can reach the clusters.
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
# One core multiplies the small matrices of searches sooner than two that wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Nearly half the time of tests that train goes into XLA. What was compiled once, by either worker, by a command that a
# test starts or by an earlier run, is read again until `make clean`. The key of an entry holds the program, the flags
# and the versions, but not what the processor can do.
_COMPILED = Path(__file__).parents[1] / "build" / "compiled" / processor()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_COMPILED))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
once.begin()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage, and keep them out of every later look for it.

    Fifteen thousand tests and what they import are a million objects that live until the end. Walking them again and
    again took a quarter of the processor time of collecting: 27 s without it 20, in each of two workers.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)  # compiling a step thaws them, and each look at all of them takes half a second
        gc.enable()


DEAREST = 15
"""Files named at the end of a run."""
LONG_S = 120.0
"""Time of all tests together from which on it is worth knowing which files took it."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which files took most of a long run."""
    spent_s: Counter[str] = Counter()
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if isinstance(report, pytest.TestReport):
            spent_s[report.nodeid.partition("::")[0]] += report.duration
    if sum(spent_s.values()) < LONG_S:
        return
    terminalreporter.section(f"dearest files of {sum(spent_s.values()):,.0f} s in {len(spent_s)}")
    for name, seconds in spent_s.most_common(DEAREST):
        terminalreporter.write_line(f"{seconds:8.1f} s  {name}")


CHECK_SHAPES = bool(os.environ.get("CHECK_SHAPES"))
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "shapes" if CHECK_SHAPES else "default")

if CHECK_SHAPES:
    # Arguments and results of every call into these packages are held against annotations such as
    # Float[np.ndarray, "rows"], before the first of them is imported. Pricing takes five times as long under it, so
    # the usual run leaves it out.
    from beartype import BeartypeConf, beartype
    from jaxtyping import install_import_hook

    # As mypy does, take an int where a float is asked for.
    check_types = beartype(conf=BeartypeConf(is_pep484_tower=True))
    install_import_hook(
        [
            *("meshwright.kernels", "meshwright.schedules", "meshwright.estimate", "meshwright.search"),
            "meshwright.calculon",
            # The rest of planning.compose prices one composition at a time, millions of calls of plain numbers.
            *(
                f"meshwright.planning.compose.sources.profiles.{name}"
                for name in ("beam", "bounds", "columns", "pruning", "stage_sequences", "stage_kinds")
            ),
        ],
        typechecker=f"{__name__}.check_types",
    )

settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=50,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# Shapes are wrong, if at all, in most examples.
settings.register_profile("shapes", settings.get_profile("default"), max_examples=8)
settings.register_profile("full", settings.get_profile("default"), derandomize=False, max_examples=500, print_blob=True)
settings.load_profile(PROFILE)

CASES = 3
"""Cases of a test whose shapes are checked, where more differ in numbers alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check shapes in the first cases of a test, and in those that say something new in words.

    A schedule, a strategy, a way to recompute, on or off: other code runs. Other sizes and seeds run the same code, and
    what they give is tested where shapes are not checked.
    """
    if PROFILE != "shapes":
        return
    seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    number: Counter[str] = Counter()
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        given = item.callspec.params if hasattr(item, "callspec") else {}
        words = {(name, repr(value)) for name, value in given.items() if not _is_size(value)}
        new = number[test] < CASES or not words <= seen[test]
        (kept if new else left).append(item)
        number[test] += new
        seen[test] |= words
    items[:] = kept
    config.hook.pytest_deselected(items=left)


def _is_size(value: object) -> bool:
    """Whether a parameter is a number, or numbers alone."""
    if isinstance(value, tuple | list):
        return all(map(_is_size, value))
    return isinstance(value, int | float) and not isinstance(value, bool)
