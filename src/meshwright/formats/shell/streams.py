"""What commands read and where they print: heredocs, here-strings, files that the script writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.formats.shell.control import chain
from meshwright.formats.shell.interpreter import Interpreter
from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import Shell
from meshwright.formats.shell.syntax import file_name, redirects_of, text_at
from meshwright.formats.shell.values import Fragment, ScriptLine, Unknown, Value, known_text, literal, unknown_of
from meshwright.formats.shell.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node


def redirected_body(evaluator: Interpreter, node: Node, source: Source, shell: Shell) -> None:
    """Run a command or block with redirects behind it."""
    body = node.child_by_field_name("body")
    redirects = [child for child in node.children if child.type.endswith("_redirect")]
    if body is None:
        return
    if body.type == "command":
        evaluator.command(body, source, shell, redirects)
        return
    redirected(evaluator, redirects, source, shell, partial(evaluator.run, body, source, shell))


def redirected(
    evaluator: Interpreter, redirects: list[Node], source: Source, shell: Shell, act: Callable[[], None]
) -> None:
    """Act with what redirects give to read and where they print; then run what stands behind a heredoc's mark."""
    stdin, target, append, rest = streams(evaluator, redirects, source, shell)
    outer_in, outer_out = shell.stdin, shell.output
    if stdin is not None:
        shell.stdin = stdin
    if target is not None:
        shell.output = []
    try:
        act()
    finally:
        printed, shell.output = shell.output, outer_out
        if stdin is not None:
            shell.stdin = outer_in
    if target is not None:
        write_stream(evaluator, target, tuple(p for value in printed or () for p in value), append)
    piped = next((child for one in redirects for child in one.children if child.type == "pipeline"), None)
    if piped is not None:
        evaluator.run(piped, source, shell)
    for mark, right in rest:
        chain(evaluator, mark, right, source, shell)


def streams(
    evaluator: Interpreter, redirects: list[Node], source: Source, shell: Shell
) -> tuple[Value | None, Value | None, bool, list[tuple[str, Node]]]:
    """What a command reads, the file it prints to, whether it appends, and statements behind a heredoc's mark."""
    expander = evaluator.expander(source, shell)
    stdin: Value | None = None
    target: Value | None = None
    append = False
    rest: list[tuple[str, Node]] = []
    for node in redirects_of(redirects):
        if node.type == "herestring_redirect":
            word = node.children[-1]
            stdin = (*expander.string(word.start_byte, word.end_byte), Fragment("\n", source.place(node.start_byte)))
        elif node.type == "heredoc_redirect":
            stdin = heredoc(evaluator, node, source, expander)
            marks = [child for child in node.children if child.type in ("&&", "||")]
            right = node.child_by_field_name("right")
            if marks and right is not None:
                rest.append((marks[0].type, right))
        elif node.type == "file_redirect":
            mark = next((child.type for child in node.children if child.type[0] in "<>&"), "")
            number = node.child_by_field_name("descriptor")
            where = node.child_by_field_name("destination")
            if where is None or mark in ("<&", ">&", ">&-", "<&-"):
                continue
            if mark == "<":
                stdin = _read_from(evaluator, where, source, shell)
                continue
            name = expander.string(where.start_byte, where.end_byte)
            if known_text(name).startswith("--"):  # as behind `--save <a path>`, a place left to fill in
                why = f"{known_text(name)[:60]} is the file that is printed to: bash takes < and > for redirects"
                shell.record.break_off(why, source.place(where.start_byte))
            if number is None or text_at(number, source) == "1":
                target, append = name, mark == ">>"
    return stdin, target, append, rest


def _read_from(evaluator: Interpreter, where: Node, source: Source, shell: Shell) -> Value:
    """What `< FILE` and `< <(command)` give to read."""
    place, text = source.place(where.start_byte), text_at(where, source)
    if text.startswith("<(") and text.endswith(")"):
        inner = Source.of_value(source.pieces(text[2:-1], where.start_byte + 2), place)
        return (*evaluator.printed(inner, shell, place, text), Fragment("\n", place))
    name = evaluator.expander(source, shell).string(where.start_byte, where.end_byte)
    return held_in(evaluator, name, place, shell) or (
        Fragment("", place, Unknown(why=f"what {known_text(name)[-40:]} holds", place=place)),
    )


def held_in(evaluator: Interpreter, name: Value, place: ScriptLine, shell: Shell) -> Value | None:
    """What a file holds that the script writes, or that lies beside it; None of another."""
    written = evaluator.record.files.get(file_name(known_text(name)))
    if written is not None or unknown_of(name) is not None:
        return written
    source = evaluator.file(name, place, shell)
    return None if source is None else literal(source.text, place)


def heredoc(evaluator: Interpreter, node: Node, source: Source, expander: Expander) -> Value:
    start = next((child for child in node.children if child.type == "heredoc_start"), None)
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if start is None or body is None:
        return ()
    text = source.text
    first, last = body.start_byte, body.end_byte
    # The grammar leaves out blanks in front of an expansion.
    line = text.find("\n", start.end_byte) + 1
    if 0 < line < first and not text[line:first].strip():
        first = line
    first = text.rfind("\n", 0, first) + 1
    tabs = any(child.type == "<<-" for child in node.children)
    if any(char in "'\"\\" for char in text_at(start, source)):
        found = source.pieces(text[first:last], first)
    else:
        found = expander.heredoc(first, last)
    if not tabs:
        return found
    stripped = []
    fresh = True
    for piece in found:
        stripped.append(replace(piece, text=piece.text.lstrip("\t") if fresh else piece.text))
        fresh = piece.text.endswith("\n") if piece.text else fresh and piece.unknown is None
    return tuple(stripped)


def write_stream(evaluator: Interpreter, target: Value, printed: Value, append: bool) -> None:
    """Keep what a command prints to a file."""
    name = file_name(known_text(target))
    if unknown_of(target) is not None and "/" not in known_text(target).strip("/") and not name:
        return
    held = evaluator.record.files.get(name, ()) if append else ()
    evaluator.record.files[name] = (*held, *printed)
