"""Values of a Python script of OLMo-core by section and name, from its syntax tree; nothing is run."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.targets.key_texts import Keys
from meshwright.targets.python_values import UNKNOWN, constants, expression_value

SAME = ("attn_backend", "use_flash", "fused_ops", "dtype", "init_method", "init_seed", "layer_norm_eps", "rope_theta")
"""Names of what leaves a plan as it is."""
WINDOW = "sliding_window"
MODEL, TRAINS, LOADS = "model", "train_module", "data_loader"
LENGTH = f"{TRAINS}.max_sequence_length"
FACTORY, CLASS = "made_by", "class"
"""Stand among the arguments of a call for what is called."""
_MODELS, _MODULES, _LOADERS = "TransformerConfig.", "TrainModuleConfig", "DataLoaderConfig"
_VOCABULARIES = {"dolma2": 100_352, "dolma2_sigdig": 100_352, "gpt2": 50_304, "gpt_neox_olmo_dolma_v1_5": 50_304}
"""Tokens by the name of the tokenizer's config, up to the next multiple of 128."""
_POSITIONAL = {
    "TransformerActivationCheckpointingConfig": ("mode",),
    "TransformerDataParallelConfig": ("name", "param_dtype", "reduce_dtype"),
}
_COMPARED: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.GtE: operator.ge,
    ast.Gt: operator.gt,
    ast.LtE: operator.le,
    ast.Lt: operator.lt,
}


@dataclass(slots=True, kw_only=True)
class OlmoCoreModule:
    """What a script says."""

    keys: Keys = field(default_factory=dict)
    """Values by section and name."""
    open: dict[str, str] = field(default_factory=dict)
    """What stands where a value is not in the file, by dotted path."""
    problems: list[Problem] = field(default_factory=list)
    """Statements that change what was read, and are not read."""


def script_keys(name: str, text: str, devices: int | None) -> OlmoCoreModule:
    """The configuration that a script makes.

    Args:
        name: the name of the file.
        text: the text of the file.
        devices: the number of devices of the job, on which branches may depend.

    Raises:
        InputError: the text is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why, fix = str(error)[:200], "correct its syntax"
        raise InputError(Problem(what=f"{name} is no Python", why=why, fix=fix, field="source")) from None
    reader = _Reader(tree=tree, devices=devices, found=OlmoCoreModule())
    reader.run()
    return reader.found


@dataclass(slots=True, kw_only=True)
class _Reader:
    tree: ast.Module
    devices: int | None
    found: OlmoCoreModule
    names: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        self.names = constants(self.tree)
        around = [one for one in calls if {"global_batch_size", "max_sequence_length"} <= _given(one).keys()]
        for one in around[:1]:
            for key in ("global_batch_size", "max_sequence_length"):
                self._named(f"common.{key}", _given(one)[key])
        for target, value in _assigned_once(self.tree):
            self._named(target, value)
        models = [one for one in calls if ast.unparse(one.func).startswith(_MODELS)]
        self._section(MODEL, models)
        self._section(TRAINS, [one for one in calls if ast.unparse(one.func).endswith(_MODULES)])
        loaders = [one for one in calls if ast.unparse(one.func).endswith(_LOADERS)]
        loaders = [one for one in loaders if "global_batch_size" in _given(one)]
        self._section(LOADS, loaders)
        if not loaders and around:  # what builds the configuration makes its own
            batch = self._value(_given(around[0])["global_batch_size"])
            self.found.open.pop(LOADS)
            self.found.keys[LOADS] = {"global_batch_size": self._settled(batch, f"{LOADS}.global_batch_size")}
        always = {id(one) for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) for one in node.body}
        for statement in self._changing(self.tree.body):
            if not self._taken(statement, always=id(statement) in always):
                self._unread(statement.lineno, f"{ast.unparse(statement)[:60]} changes what is configured above it")

    def _taken(self, statement: ast.stmt, *, always: bool) -> bool:
        """Whether a statement changes no plan, or the windows of all attention, which then stand with the model."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        parts = ast.unparse(statement.targets[0]).split(".")
        model = self.found.keys.get(MODEL)
        if parts[-1] in SAME:
            return True
        if parts[-3:] != ["block", "attention", WINDOW] or not always or not isinstance(model, dict):
            return False
        model[WINDOW] = self._settled(self._value(statement.value), f"{MODEL}.{WINDOW}")
        return True

    def _named(self, name: str, value: ast.expr) -> None:
        found = self._value(value)
        if not isinstance(found, _Open):
            self.names[name] = found

    def _section(self, name: str, calls: list[ast.Call]) -> None:
        """The arguments of a call; of several that differ, none."""
        different = {ast.unparse(one): one for one in calls}
        if len(different) != 1:
            made = ", ".join(dict.fromkeys(ast.unparse(one.func) for one in different.values())) or "none"
            self.found.open[name] = f"{len(different)} calls ({made})"[:120]
            return
        made = self._value(next(iter(different.values())))
        self.found.keys[name] = self._settled(made, name)

    def _settled(self, value: Any, path: str) -> Any:
        """A value without what is not known of it, which is noted by its path."""
        if isinstance(value, _Open):
            self.found.open[path] = str(value)
            return None
        if isinstance(value, Mapping):
            return {key: self._settled(inner, f"{path}.{key}") for key, inner in value.items()}
        return value

    def _value(self, node: ast.expr) -> Any:
        """The value of an expression: of a call its arguments, of a member of an enumeration its name."""
        written = ast.unparse(node)
        if written in self.names:
            return self.names[written]
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Attribute) and written[:1].isupper():
            return node.attr
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self._value(node.values[-1])  # an option that is not given
        if isinstance(node, ast.BinOp):
            return self._product(node, written)
        if isinstance(node, ast.List):
            made = [self._value(one) for one in node.elts]
            return _Open(written[:80]) if any(isinstance(one, _Open) for one in made) else made
        try:
            return expression_value(node, self.names)
        except UNKNOWN:
            return _Open(written[:80])

    def _product(self, node: ast.BinOp, written: str) -> Any:
        left, right = self._value(node.left), self._value(node.right)
        try:
            if isinstance(node.op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
                return left**right if 0 <= right <= 64 and abs(left) <= 1024 else _Open(written[:80])
            return expression_value(ast.BinOp(ast.Constant(left), node.op, ast.Constant(right)), {})
        except UNKNOWN:
            return _Open(written[:80])

    def _call(self, node: ast.Call) -> Any:
        called = ast.unparse(node.func)
        last = called.rpartition(".")[2]
        if last == "padded_vocab_size" and not node.args:
            return self._vocabulary(called)
        if called == "get_world_size" and self.devices is not None:
            return self.devices
        if called == "int" and len(node.args) == 1:
            whole = self._value(node.args[0])
            return int(whole) if isinstance(whole, float) and abs(whole) < 2**53 else whole
        if not called[:1].isupper():
            return _Open(ast.unparse(node)[:80])
        made = dict(zip(_POSITIONAL.get(called, ()), map(self._value, node.args), strict=False))
        made |= {name: self._value(value) for name, value in _given(node).items()}
        return {**made, FACTORY if "." in called else CLASS: last if "." in called else called}

    def _vocabulary(self, called: str) -> Any:
        named = {
            ast.unparse(node.func).partition(".")[2]
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("TokenizerConfig.")
        }
        only = next(iter(named)) if len(named) == 1 else "dolma2" if not named and called.startswith("common.") else ""
        return _VOCABULARIES.get(only, _Open(f"{called}()"))

    def _changing(self, body: list[ast.stmt]) -> Iterator[ast.stmt]:
        """Assignments to parts of what was made, but for those under conditions that do not hold."""
        for statement in body:
            if isinstance(statement, ast.If):
                holds = self._holds(statement.test)
                yield from self._changing(statement.body if holds in (True, None) else [])
                yield from self._changing(statement.orelse if holds in (False, None) else [])
            elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                if any(_PARTS & set(ast.unparse(one).split(".")) and "." in ast.unparse(one) for one in targets):
                    yield statement
            else:
                for inner in ("body", "orelse", "finalbody"):
                    yield from self._changing(
                        [one for one in getattr(statement, inner, ()) if isinstance(one, ast.stmt)]
                    )

    def _holds(self, test: ast.expr) -> bool | None:
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _COMPARED:
            left, right = self._value(test.left), self._value(test.comparators[0])
            if isinstance(left, int) and isinstance(right, int):
                return _COMPARED[type(test.ops[0])](left, right)
        return None

    def _unread(self, line: int, why: str) -> None:
        fix = "check the configuration that the run prints (dry_run), or price its plan: check MODEL --plan PLAN"
        self.found.problems.append(Problem(what=f"line {line} is not read", why=why, fix=fix, field=f"line {line}"))


class _Open(str):
    """The text of an expression whose value is not in the file."""

    __slots__ = ()


_PARTS = {"model", "model_config", "train_module", "train_module_config", "data_loader", "data_loader_config", "block"}
"""Names of what is configured, as scripts call it."""


def _given(call: ast.Call) -> dict[str, ast.expr]:
    return {one.arg: one.value for one in call.keywords if one.arg is not None}


def _assigned_once(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Names inside functions that are set once in the file, with what they are set to."""
    stored = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    for node in ast.walk(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        target = node.target if isinstance(node, ast.AnnAssign) else target
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        if isinstance(target, ast.Name) and value is not None and stored[target.id] == 1:
            yield target.id, value
