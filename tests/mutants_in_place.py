"""Mutations made in a process that has collected the tests of a room: a plugin of pytest that `tests.mutants` starts.

A first fork runs every test and notes which ones reach the statement of a mutation. Then each mutation has a fork of
its own, in which the code of the living functions it changes is exchanged, and which runs those tests, the quickest
first, until one fails: nothing is imported, collected or run that cannot notice it. What functions have kept is
forgotten before, so that it is made again with the mutation. What runs at imports cannot be changed so.

Behind the tests of the room come the recorded answers that `make test` asks; what they alone notice is told apart.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import gc
import importlib
import json
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.mutants import Verdict

ASKED = "MUTATIONS_ASKED"
"""Variable with the file of mutations; the answers are written beside it."""
ANSWERS = ".answers"
REACHED = "__reached__"
WAITING = 10
"""Times its processor time that a fork may take by the clock."""
MAP_S = 3600.0
"""Processor time of all tests of a room."""
ELSEWHERE = ("*/test_on_ray.py", "*/test_on_cores.py", "*/test_with_ray_tune.py")
"""Tests whose work is done in other processes, which have the code as it is written."""
RECORDED = "tests/answers/test_answers.py"
ASKING = re.compile(r"test_the_answer_is_the_recorded_one\[(plan|estimate|check|explain|compare|schedule|trace|size) ")
"""Those of the recorded answers for which no device is started."""


def said_in_place(place: Path, room: str, made: list[tuple[Path, int, str]], limit_s: float) -> list[str | None]:
    """Values of the verdicts of a room's tests on mutations; None of those outside functions.

    Args:
        place: a copy of the repository.
        room: the name of the room.
        made: of each mutation its file in the copy, its line and the changed text.
        limit_s: processor time of the tests asked for a mutation.
    """
    asked = place / f"{room}.json"
    listed = [{"file": str(file), "line": line, "text": text} for file, line, text in made]
    asked.write_text(json.dumps({"limit_s": limit_s, "mutations": listed}))
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-p", __name__]
    command += [f"--ignore-glob={name}" for name in ELSEWHERE]
    recorded = [RECORDED] if (place / RECORDED).exists() else []
    ran = subprocess.run(
        [*command, f"tests/{room}", *recorded],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place / 'src'}{os.pathsep}{place}", ASKED: str(asked)},
        text=True,
        capture_output=True,
        check=False,
    )
    if not asked.with_suffix(ANSWERS).exists():
        raise SystemExit(f"the tests of {room} do not run:\n{ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    said: list[str | None] = json.loads(asked.with_suffix(ANSWERS).read_text())
    return said


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what is no test of the room and starts devices, or asks for no answer."""
    items[:] = [item for item in items if not is_recorded(item) or ASKING.match(item.name)]


def is_recorded(item: pytest.Item) -> bool:
    """Whether a test holds an answer against a recorded one."""
    return item.nodeid.startswith(RECORDED)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Ask every mutation instead of running the tests once."""
    asked = Path(os.environ[ASKED])
    work = json.loads(asked.read_text())
    for one in work["mutations"]:
        imported(Path(one["file"]))
    gc.unfreeze()  # what is frozen is not found
    reaching = forked(lambda: tests_by_mutation(session.items, work["mutations"]), MAP_S)
    if not isinstance(reaching, dict):
        raise RuntimeError(f"the tests do not end: {reaching}")
    answers = [
        verdict(session.items, one, reaching.get(number, []), work["limit_s"])
        for number, one in enumerate(work["mutations"])
    ]
    asked.with_suffix(ANSWERS).write_text(json.dumps(answers))
    return True


def imported(file: Path) -> None:
    """Import a module: what is first imported by a test is not there to be changed. Some need what is not installed."""
    parts = file.with_suffix("").parts
    with contextlib.suppress(ImportError):
        importlib.import_module(".".join(parts[len(parts) - parts[::-1].index("src") :]))


def verdict(items: list[pytest.Item], mutation: dict[str, Any], tests: list[int], limit_s: float) -> str | None:
    """What tests say of a mutation, None if it is outside functions. What takes twice the limit has been noticed."""
    if not in_functions(mutation):
        return None
    own, recorded = ([one for one in tests if is_recorded(items[one]) is answer] for answer in (False, True))
    said = forked(lambda: asked(items, mutation, own, limit_s), 2 * limit_s)
    if said is Verdict.SURVIVES and recorded:
        said = forked(lambda: asked(items, mutation, recorded, limit_s), 2 * limit_s)
        said = Verdict.RECORDED if said is Verdict.NOTICED else said
    if isinstance(said, Verdict):
        return said.value
    return (Verdict.NOTICED if said == signal.SIGXCPU else Verdict.UNDECIDED).value


def asked(items: list[pytest.Item], mutation: dict[str, Any], tests: list[int], limit_s: float) -> Verdict:
    """Run tests under a mutation until one fails or their time is over."""
    exchange(mutation["file"], mutation["text"])
    forget()
    end_s = time.process_time() + limit_s
    for place, number in enumerate(tests):
        if time.process_time() > end_s:
            break
        nextitem = items[tests[place + 1]] if place + 1 < len(tests) else None
        if any(report.failed for report in runtestprotocol(items[number], nextitem=nextitem, log=False)):
            return Verdict.NOTICED
    return Verdict.SURVIVES


def tests_by_mutation(items: list[pytest.Item], mutations: list[dict[str, Any]]) -> dict[int, list[int]]:
    """Run every test, and number those that pass and reach each mutation, the quickest first."""
    hit: set[int] = set()
    setattr(builtins, REACHED, hit.add)
    for file in {one["file"] for one in mutations}:
        exchange(
            file, noted(file, {number: one["line"] for number, one in enumerate(mutations) if one["file"] == file})
        )
    forget()
    reaching: dict[int, list[tuple[float, int]]] = {}
    for number, item in enumerate(items):
        hit.clear()
        started_s = time.process_time()
        nextitem = items[number + 1] if number + 1 < len(items) else None
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports):
            for mutation in hit:
                reaching.setdefault(mutation, []).append((time.process_time() - started_s, number))
    return {mutation: [number for _, number in sorted(found)] for mutation, found in reaching.items()}


def noted(file: str, lines: dict[int, int]) -> ast.Module:
    """A module that says which mutations are reached, before the innermost statement that holds each."""
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    for number, line in lines.items():
        body, place = innermost(tree, line)
        call = ast.parse(f"{REACHED}({number})").body[0]
        for node in ast.walk(call):
            ast.copy_location(node, body[place])
        body.insert(place, call)
    return tree


def innermost(tree: ast.Module, line: int) -> tuple[list[ast.stmt], int]:
    """The block and the position of the innermost statement that holds a line, the last one for a decorator's."""
    found = tree.body, len(tree.body) - 1
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            for place, one in enumerate(block if isinstance(block, list) else ()):
                if isinstance(one, ast.stmt) and one.lineno <= line <= (one.end_lineno or one.lineno):
                    found = block, place
    return found


def exchange(file: str, changed: str | ast.Module) -> None:
    """Exchange the code of living functions that another text of their module changes."""
    pairs = {old: new for old, new in differing(*codes(file, changed)) if is_function(old)}
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename == file and one.__code__ in pairs:
            one.__code__ = pairs[one.__code__]


def in_functions(mutation: dict[str, Any]) -> bool:
    """Whether a mutation changes functions alone, which close over the same names."""
    pairs = list(differing(*codes(mutation["file"], mutation["text"])))
    return all(old.co_freevars == new.co_freevars if is_function(old) else ran_alike(old, new) for old, new in pairs)


def codes(file: str, changed: str | ast.Module) -> tuple[CodeType, CodeType]:
    """The code of a module and of another text of it."""
    before = Path(file).read_text(encoding="utf-8")
    return compile(before, file, "exec", dont_inherit=True), compile(changed, file, "exec", dont_inherit=True)


def differing(old: CodeType, new: CodeType) -> Iterator[tuple[CodeType, CodeType]]:
    """Pairs of code that differ, those inside others included; a mutation makes no code and drops none."""
    if old == new:
        return
    yield old, new
    inner = [[one for one in code.co_consts if isinstance(one, CodeType)] for code in (old, new)]
    for first, second in zip(*inner, strict=True):
        yield from differing(first, second)


def is_function(code: CodeType) -> bool:
    """Whether code is of a function, and not of a module or a class, which have run."""
    return bool(code.co_flags & 0x2)


def ran_alike(old: CodeType, new: CodeType) -> bool:
    """Whether code of a module or a class differs in the functions in it alone."""
    return (old.co_code, plain(old)) == (new.co_code, plain(new))


def plain(code: CodeType) -> list[str]:
    """Constants that are not code."""
    return [repr(one) for one in code.co_consts if not isinstance(one, CodeType)]


def forget() -> None:
    """Clear what functions of meshwright have kept."""
    for one in gc.get_objects():
        if isinstance(one, functools._lru_cache_wrapper) and str(one.__module__).startswith("meshwright"):
            one.cache_clear()


def forked(act: Callable[[], Any], limit_s: float) -> Any:
    """What a function returns in a fork, or the signal that ended it there."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
        try:
            said = act()
        except BaseException as error:  # the fork ends here whatever it was
            said = f"{type(error).__name__}: {error}"
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(said, pipe)
        os._exit(0)
    os.close(write)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(child, signal.SIGKILL))
    signal.alarm(int(WAITING * limit_s))
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read()
    signal.alarm(0)
    _, status = os.waitpid(child, 0)
    return pickle.loads(text) if text else os.WTERMSIG(status)
