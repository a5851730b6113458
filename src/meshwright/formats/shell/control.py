"""Compound commands: `&&`, `if`, `case`, loops, pipelines, conditions.

Where one hangs on what only the machine of the job knows, all ways are read, and what differs between them is unknown
from there on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.formats.shell import assignments, conditions, patterns
from meshwright.formats.shell.interpreter import Interpreter
from meshwright.formats.shell.leaving import Left
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import Shell, TooMuch
from meshwright.formats.shell.syntax import between, text_at, trimmed
from meshwright.formats.shell.values import (
    Fragment,
    Truth,
    Unknown,
    Value,
    Variable,
    known_text,
    only_unset,
    unknown_of,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_ROUNDS = 1_000


def run_list(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    parts = [child for child in node.children if child.type != "comment"]
    evaluator.run(parts[0], source, shell)
    for mark, right in zip(parts[1::2], parts[2::2], strict=False):
        chain(evaluator, mark.type, right, source, shell)


def chain(evaluator: Interpreter, mark: str, right: Node, source: Source, shell: Shell) -> None:
    """`&&` or `||` and what follows it."""
    truth = shell.status
    wanted = mark == "&&"
    if isinstance(truth, bool):
        if truth == wanted:
            evaluator.run(right, source, shell)
        return
    evaluator.fork(shell, truth, [lambda twin: evaluator.run(right, source, twin), lambda twin: None])


def run_negated(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    evaluator.all(node, source, shell)
    shell.status = conditions.negated(shell.status)


def conditional(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """`if` or `elif`, from its condition to its last clause."""
    at = next((n for n, child in enumerate(node.children) if child.type == "then"), len(node.children))
    tests = [child for child in node.children[1:at] if child.is_named]
    body = [child for child in node.children[at + 1 :] if child.is_named]
    clauses = [child for child in body if child.type in ("elif_clause", "else_clause")]
    then = [child for child in body if child not in clauses]
    decide(evaluator, tests, then, clauses, source, shell)


def decide(
    evaluator: Interpreter, tests: list[Node], then: list[Node], clauses: list[Node], source: Source, shell: Shell
) -> None:
    truth = evaluator.status(tests, source, shell)

    def yes(twin: Shell) -> None:
        twin.status = True
        asked = _unset_in(tests, source, twin)
        before = len(evaluator.record.commands)
        try:
            evaluator.status(then, source, twin)
        except Left as leaving:
            idle = leaving.kind == "exit" and len(evaluator.record.commands) == before
            if not asked or not (leaving.failed or idle):
                raise
            # A script that ends before it starts anything where a variable is not set is started with it.
            place = source.place(tests[0].start_byte)
            for name in asked:
                # What it sets to nothing itself, it sets from its arguments: the environment does not matter.
                why, names = f"the script ends without {name}", (name,)
                if name in twin.variables:
                    why, names = f"{why}, which it sets from its arguments", ("@",)
                unknown = Unknown(why=why, place=place, names=names)
                twin.variables[name] = Variable(entries={"0": (Fragment("", place, unknown),)})
            twin.status = True

    def no(twin: Shell) -> None:
        twin.status = True
        if not clauses:
            return
        if clauses[0].type == "else_clause":
            evaluator.all(clauses[0], source, twin)
            return
        children = clauses[0].children
        at = next((n for n, child in enumerate(children) if child.type == "then"), len(children))
        inner = [child for child in children[1:at] if child.is_named]
        body = [child for child in children[at + 1 :] if child.is_named]
        decide(evaluator, inner, body, clauses[1:], source, twin)

    if isinstance(truth, bool):
        (yes if truth else no)(shell)
    else:
        evaluator.fork(shell, truth, [yes, no])


_USED = re.compile(r"\$\{?([A-Za-z_]\w*)")


def _unset_in(tests: list[Node], source: Source, shell: Shell) -> list[str]:
    """Variables of a condition that nobody set, where it holds for that alone."""
    text = source.text[tests[0].start_byte : tests[-1].end_byte] if tests else ""
    names = list(dict.fromkeys(_USED.findall(text)))
    unset = [name for name in names if not _set(shell.variable(name))]
    alone = unset == names and "$#" not in text
    return unset if alone or "||" in text else []


def _set(variable: Variable | None) -> bool:
    return variable is not None and bool(variable.words()) and any(variable.words())


def case(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    expander = evaluator.expander(source, shell)
    value = node.child_by_field_name("value")
    assert value is not None
    subject = expander.string(value.start_byte, value.end_byte)
    items = [child for child in node.children if child.type == "case_item"]
    unknown = unknown_of(subject)
    shell.status = True
    if unknown is not None:
        ways: list[Callable[[Shell], object]] = [partial(branch, evaluator, item, source) for item in items]
        if not any(globs(evaluator, item, source, shell) == ["*"] for item in items):
            ways.append(lambda twin: None)
        evaluator.fork(shell, unknown, ways)
        return
    text = known_text(subject)
    falling = False
    for item in items:
        try:
            if falling or any(patterns.matches(glob, text) for glob in globs(evaluator, item, source, shell)):
                branch(evaluator, item, source, shell)
                ends = {child.type for child in item.children}
                falling = ";&" in ends
                if not falling and ";;&" not in ends:
                    return
        except patterns.BadPattern as error:
            evaluator.record.break_off(f"a pattern cannot be read: {error}", source.place(item.start_byte))


def globs(evaluator: Interpreter, item: Node, source: Source, shell: Shell) -> list[str]:
    expander = evaluator.expander(source, shell)
    spans = [(node.start_byte, node.end_byte) for node in item.children_by_field_name("value")]
    return [expander.glob(*trimmed(source.text, *span))[0] for span in spans]


def branch(evaluator: Interpreter, item: Node, source: Source, shell: Shell) -> None:
    at = next((n for n, child in enumerate(item.children) if child.type == ")"), 0)
    for child in item.children[at + 1 :]:
        if child.is_named:
            evaluator.run(child, source, shell)


def loop(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """`while` and `until`."""
    body = node.child_by_field_name("body")
    assert body is not None
    tests = [child for child in node.children if child.is_named and child != body]
    until = node.children[0].type == "until"

    def going() -> Truth:
        truth = evaluator.status(tests, source, shell)
        return conditions.negated(truth) if until else truth

    rounds(evaluator, node, body, source, shell, going, lambda: None)


def rounds(
    evaluator: Interpreter,
    node: Node,
    body: Node,
    source: Source,
    shell: Shell,
    going: Callable[[], Truth],
    after: Callable[[], object],
) -> None:
    """Run a body as long as a condition holds; one nobody knows, or that never ends, is read once."""
    place = source.place(node.start_byte)
    held = shell.unsure
    for _ in range(MAX_ROUNDS):
        before = shell.variables.copy(), shell.stdin, shell.positional
        truth = going()
        if truth is False:
            break
        if isinstance(truth, Unknown):
            cause = truth
            evaluator.forget(body, source, shell, cause)
            evaluator.fork(shell, cause, [lambda twin: once(evaluator, body, source, twin), lambda twin: None])
            evaluator.forget(body, source, shell, cause)
            break
        if once(evaluator, body, source, shell):
            break
        if shell.unsure != held:
            cause = shell.unsure[-1]
            evaluator.forget(body, source, shell, cause)
            break
        after()
        if before == (shell.variables, shell.stdin, shell.positional) and shell.output is None:
            break  # it goes round without end; the job is what one round starts
    else:
        raise TooMuch(f"the loop on line {place.line} goes on without end")
    shell.unsure = held


def once(evaluator: Interpreter, body: Node, source: Source, shell: Shell) -> bool:
    """One round; whether the loop is left."""
    try:
        evaluator.all(body, source, shell)
    except Left as leaving:
        if leaving.kind not in ("break", "continue"):
            raise
        if leaving.count > 1:
            raise Left(leaving.kind, leaving.count - 1) from None
        return leaving.kind == "break"
    return False


def each(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """`for NAME in words`."""
    expander = evaluator.expander(source, shell)
    variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
    assert variable is not None
    assert body is not None
    name = text_at(variable, source)
    place = source.place(node.start_byte)
    if any(child.type == "in" for child in node.children):
        values = [
            word for v in node.children_by_field_name("value") for word in expander.fields(v.start_byte, v.end_byte)
        ]
    else:
        values = expander.special("@", place)[0]
    held = shell.unsure
    shell.status = True
    for value in values:
        evaluator.record.step()
        unknown = unknown_of(value)
        if unknown is not None and not known_text(value) and not unknown.single:
            if only_unset(value):
                shell.assume_unset(value)
                continue
            shell.assign(name, (Fragment("", place, replace(unknown, flags=None)),))
            evaluator.forget(body, source, shell, unknown)
            evaluator.fork(shell, unknown, [lambda twin: once(evaluator, body, source, twin), lambda twin: None])
            evaluator.forget(body, source, shell, unknown)
            continue
        shell.assign(name, value)
        if once(evaluator, body, source, shell):
            break
        if shell.unsure != held:
            evaluator.forget(body, source, shell, shell.unsure[-1])
            break
    shell.unsure = held


def run_counted_loop(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """`for ((a; b; c))`."""
    start, end = between(node, source, "((", "))")
    parts = source.text[start:end].split(";")
    if len(parts) != 3:
        evaluator.record.break_off("a loop's ((...)) does not have three parts", source.place(start))
        return
    spans = []
    for part in parts:
        spans.append((start, start + len(part)))
        start += len(part) + 1
    expander = evaluator.expander(source, shell)
    body = next(child for child in node.children if child.type in ("do_group", "compound_statement"))
    expander.condition(*spans[0])

    def going() -> Truth:
        return expander.condition(*spans[1]) if parts[1].strip() else True

    rounds(evaluator, node, body, source, shell, going, lambda: expander.condition(*spans[2]))


def subshell(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    twin = shell.fork()
    try:
        evaluator.all(node, source, twin)
    except Left as leaving:
        if leaving.kind not in ("exit", "return"):
            raise
    shell.status = twin.status


def pipeline(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """Each part in a shell of its own; what the shell prints goes on to the next."""
    parts = [child for child in node.children if child.is_named and child.type != "comment"]
    # The grammar takes `! a | b` for `(! a) | b`, bash for `! (a | b)`.
    negated = bool(parts) and parts[0].type == "negated_command"
    parts[:1] = [child for child in parts[0].children if child.is_named] if negated else parts[:1]
    piped: Value | None = None
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        twin = shell.fork(stdin=piped)
        if not last:
            twin.output = []
        try:
            evaluator.run(part, source, twin)
        except Left as leaving:
            if leaving.kind not in ("exit", "return"):
                raise
        if not last:
            piped = tuple(piece for value in twin.output or () for piece in value)
        shell.status = conditions.negated(twin.status) if negated else twin.status


def compound(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    if node.children and node.children[0].type == "((":
        start, end = between(node, source, "((", "))")
        shell.status = evaluator.expander(source, shell).condition(start, end)
    else:
        evaluator.all(node, source, shell)


def test(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    place = source.place(node.start_byte)
    expander = evaluator.expander(source, shell)
    mark = node.children[0].type
    if mark == "((":
        shell.status = expander.condition(*between(node, source, "((", "))"))
    elif mark == "[[":
        start, end = between(node, source, "[[", "]]")
        shell.status = conditions.double(expander, start, end, place)
    else:
        start, end = between(node, source, "[", "]")
        words = [word for span in assignments.word_spans(source.text, start, end) for word in expander.fields(*span)]
        shell.status = conditions.single(words, shell, place)
