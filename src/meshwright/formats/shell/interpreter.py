"""What the parts of the evaluator ask of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from meshwright.formats.shell.source import Source
from meshwright.formats.shell.state import ScriptState, Shell
from meshwright.formats.shell.values import ScriptLine, Unknown, Value
from meshwright.formats.shell.words import Expander

if TYPE_CHECKING:
    from tree_sitter import Node


class Interpreter(Protocol):
    """Runs nodes of a syntax tree; `evaluate.Evaluator` is the one."""

    record: ScriptState

    def script(self, source: Source, shell: Shell) -> None:
        """Run a whole text in a shell."""

    def file(self, path: Value, place: ScriptLine, shell: Shell) -> Source | None:
        """A script that another one runs."""

    def expander(self, source: Source, shell: Shell) -> Expander:
        """Expands words with this shell's variables."""

    def printed(self, source: Source, shell: Shell, place: ScriptLine, shown: str) -> Value:
        """What `$(...)` gives where the shell alone prints it."""

    def all(self, node: Node, source: Source, shell: Shell) -> None:
        """Run the statements below a node."""

    def run(self, node: Node, source: Source, shell: Shell) -> None:
        """Run one statement."""

    def status(self, nodes: list[Node], source: Source, shell: Shell) -> bool | Unknown:
        """Run statements; the status of the last."""

    def fork(self, shell: Shell, cause: Unknown, ways: Sequence[Callable[[Shell], object]]) -> None:
        """Take every way, and go on with what they share."""

    def forget(self, node: Node, source: Source, shell: Shell, cause: Unknown) -> None:
        """Variables that statements below a node set are unknown."""

    def command(self, node: Node, source: Source, shell: Shell, redirects: list[Node] | None = None) -> None:
        """Run a simple command."""

    def program(self, words: list[Value], place: ScriptLine, shell: Shell) -> None:
        """A program that is started."""

    def call(self, words: list[Value], prefix: list[Node], place: ScriptLine, source: Source, shell: Shell) -> None:
        """Run a command whose words are known."""
