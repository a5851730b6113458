"""Values of a configuration of torchtitan by section and name: of a Python module, from its syntax tree, or of TOML.

A module's functions return a `Trainer.Config`, or that of another function with single values set. Nothing is run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import InputError
from meshwright.targets.key_texts import Keys
from meshwright.targets.python_values import UNKNOWN, constants, expression_value
from meshwright.targets.torchtitan.earlier import EVERY, RECOMPUTE, recomputed, toml_keys
from meshwright.targets.torchtitan.registries import model_module, registries

SECTIONS = {"TrainingConfig": "training", "ParallelismConfig": "parallelism", "CompileConfig": "compile"}
CONFIG = "config"
"""The function that is meant, as the option of that name says it."""
PART = "part"
"""What a call is given of which nobody knows the fields."""
_CLASSES = ("Trainer.Config", "TrainerConfig")
"""Ends of the names of the class: the second is a fork's."""
_OPTIONS = ("mode", "selective_ac_option")
"""Fields of `ActivationCheckpointConfig`, of releases before `FullAC`, that say what is computed again, in order."""
_NO_MATTER = ("early_stop", "preserve_rng_state", "determinism_check", "debug", "memory_budget")
"""Fields of it that change neither time nor memory of what those say."""
_DEEPEST = 16
"""Functions that call one another."""


def module_keys(text: str, wanted: str | None = None) -> tuple[Keys, dict[str, str]]:
    """Values of a configuration by section and name, and what stands where a value is not known.

    Args:
        text: a Python module, or TOML of versions before 0.2.
        wanted: the function of the module, where it has several.

    Raises:
        InputError: the text is neither Python nor TOML.
    """
    # TOML first: tables of numbers and words parse as Python too, as lists and assignments that say nothing.
    table, why = toml_keys(text)
    if table is not None:
        return table, {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _unread(f"it is neither Python nor TOML: {why}") from None
    if not any(_makes(node) for node in ast.walk(tree)):
        begun = any(isinstance(node, ast.FunctionDef) and _promises(node) for node in tree.body)
        why = "its functions change configurations of other files, which are not read"
        raise _unread(why if begun else "no function in it calls Trainer.Config")
    module = _Module.of(tree)
    names = [name for name in module.functions if not name.startswith("_")]
    if wanted is None and len(names) > 1:
        return {}, {CONFIG: ", ".join(names[:40])}
    if wanted is not None and wanted not in module.functions:
        return {}, {CONFIG: f"{wanted}, which is not among {', '.join(names[:40]) or 'its functions'}"}
    made = module.returned(wanted or names[0]) if names else _Made(keys={RECOMPUTE: "none"})
    if not names:
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _makes(node):
                made = module.of_call(node, {})
    return {**module.said, **made.keys}, made.unresolved


def _unread(why: str) -> InputError:
    return InputError(what="the torchtitan configuration cannot be read", why=why, code="MW202")


def _makes(node: ast.AST) -> bool:
    """Whether it calls `Trainer.Config`, or that of a trainer of another name."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
        return False
    return ast.unparse(node.func).endswith(_CLASSES)


def _promises(node: ast.FunctionDef) -> bool:
    """Whether a function says that it returns a configuration."""
    return node.returns is not None and ast.unparse(node.returns).endswith(_CLASSES)


@dataclass(slots=True, kw_only=True)
class _Made:
    """A configuration while it is made."""

    keys: Keys
    unresolved: dict[str, str] = field(default_factory=dict)
    again: dict[str, ast.expr] = field(default_factory=dict)
    """What its `ActivationCheckpointConfig` says."""


Locals = dict[str, ast.expr]
"""What a name stands for where a function has come to."""


@dataclass(slots=True, kw_only=True)
class _Module:
    """The functions of a module that make configurations."""

    functions: dict[str, ast.FunctionDef]
    constants: Mapping[str, Any]
    said: Keys
    """Which models of torchtitan it is about."""
    registries: Mapping[str, str]
    """Folders of torchtitan's models by the names of their registries, or of themselves, in the module."""
    known: dict[str, _Made | None] = field(default_factory=dict)
    """What functions return; None of those that are being looked at."""

    @classmethod
    def of(cls, tree: ast.Module) -> _Module:
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        calls = {name: [one for one in ast.walk(node) if isinstance(one, ast.Call)] for name, node in functions.items()}
        makers = {name for name, own in calls.items() if any(map(_makes, own))}
        called = {name: {_called(one) for one in own} for name, own in calls.items()}
        for _ in range(_DEEPEST):
            # Those that change what another one returns.
            more = {name for name, names in called.items() if not names.isdisjoint(makers)}
            if more <= makers:
                break
            makers |= more
        made = {name: node for name, node in functions.items() if name in makers}
        said, names = dict(model_module(tree, made)), dict(registries(tree))
        return cls(functions=made, constants=constants(tree), said=said, registries=names)

    def returned(self, name: str, depth: int = 0) -> _Made:
        """The configuration that a function returns."""
        function, values = self.functions[name], Locals()
        configs: dict[str, _Made] = {}
        for statement in function.body:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self._value(statement.value, configs, values, depth) or _unknown(statement)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], statement.value, configs, values, depth)
                continue
            if isinstance(statement, ast.AnnAssign) and statement.value is not None:
                self._assign(statement.target, statement.value, configs, values, depth)
                continue
            for one in ast.walk(statement):
                _forget(one, values)
            if any(_touches(one, configs) for one in ast.walk(statement)):
                for made in configs.values():
                    made.unresolved[CONFIG] = ast.unparse(statement)[:60]
        return _unknown(function)

    def _assign(self, target: ast.expr, value: ast.expr, configs: dict[str, _Made], values: Locals, depth: int) -> None:
        if isinstance(target, ast.Name):
            found = self._value(value, configs, values, depth)
            if found is not None:
                configs[target.id] = found
            else:
                values[target.id] = value
            return
        root, *path = _dotted(target)
        if root in configs and path:
            self._set(configs[root], path, value, values)
        elif len(path) == 1 and isinstance(values.get(root), ast.Call):
            call = values[root]
            assert isinstance(call, ast.Call)
            kept = [one for one in call.keywords if one.arg != path[0]]
            said = [*kept, ast.keyword(arg=path[0], value=_resolved(value, values))]
            values[root] = ast.Call(func=call.func, args=call.args, keywords=said)
        else:
            _forget(ast.Assign(targets=[target], value=value), values)

    def _value(self, node: ast.expr, configs: dict[str, _Made], values: Locals, depth: int) -> _Made | None:
        """The configuration that an expression makes; None where it makes none."""
        if isinstance(node, ast.Name):
            return configs.get(node.id)
        if not isinstance(node, ast.Call):
            return None
        if _makes(node):
            return self.of_call(node, values)
        called = _called(node)
        if called == "deepcopy" and node.args:
            return deepcopy(self._value(node.args[0], configs, values, depth))
        if called not in self.functions:
            return None
        if depth >= _DEEPEST or node.args or node.keywords:
            return _unknown(node)
        if called not in self.known:
            self.known[called] = None
            self.known[called] = self.returned(called, depth + 1)
        return deepcopy(self.known[called]) or _unknown(node)

    def of_call(self, node: ast.Call, values: Locals) -> _Made:
        """The configuration of a call of `Trainer.Config`."""
        made = _Made(keys={RECOMPUTE: "none"})
        for name, value in _given(node, values):
            if name is None:
                made.unresolved[PART] = ast.unparse(value)[:60]
            else:
                self._set(made, [name], value, values)
        return made

    def _set(self, made: _Made, path: list[str], value: ast.expr, values: Locals) -> None:
        """Set a field of a configuration, or a field of one of its sections."""
        value = _resolved(value, values)
        section, *inner = path
        if section == "model_spec" and not inner:
            self._model(made, value)
        elif section == RECOMPUTE and inner and inner[0] in _OPTIONS:
            self._recompute(made, {**made.again, inner[0]: value})
        elif section == RECOMPUTE and inner:
            if inner[0] not in _NO_MATTER:
                made.unresolved[RECOMPUTE] = f"{'.'.join(path)} = {ast.unparse(value)}"[:60]
        elif section == RECOMPUTE:
            made.unresolved.pop(RECOMPUTE, None)
            made.keys.pop(EVERY, None)
            made.again = {}
            if isinstance(value, ast.Call) and _called(value) == "ActivationCheckpointConfig":
                # Of `**options`, nothing is known but that they say it.
                named = {given.arg or "mode": _resolved(given.value, values) for given in value.keywords}
                placed = {name: _resolved(one, values) for name, one in zip(_OPTIONS, value.args, strict=False)}
                self._recompute(made, {name: one for name, one in (placed | named).items() if name in _OPTIONS})
            elif isinstance(value, ast.Call):
                made.keys[RECOMPUTE] = ast.unparse(value.func).removesuffix(".Config").rpartition(".")[2]
            elif isinstance(value, ast.Constant):
                made.keys[RECOMPUTE] = "none" if value.value is None else str(value.value)
            else:
                made.unresolved[RECOMPUTE] = ast.unparse(value)[:60]
        elif section in SECTIONS.values() and len(inner) == 1:
            self._field(made, section, inner[0], value, values)
        elif section in SECTIONS.values() and not inner:
            made.keys[section] = {}
            if not isinstance(value, ast.Call) or not _called(value).endswith("Config"):
                made.unresolved[PART] = f"{section}={ast.unparse(value)}"[:60]
                return
            for name, field_value in _given(value, values):
                if name is None:
                    made.unresolved[PART] = f"{section}={ast.unparse(value)}"[:60]
                else:
                    self._field(made, section, name, field_value, values)

    def _recompute(self, made: _Made, again: dict[str, ast.expr]) -> None:
        """Set what an `ActivationCheckpointConfig` says is computed again."""
        table: Keys = {}
        made.again = again
        made.unresolved.pop(RECOMPUTE, None)
        made.keys.pop(EVERY, None)
        for name, value in again.items():
            try:
                table[name] = expression_value(value, self.constants)
            except UNKNOWN:
                made.unresolved[RECOMPUTE] = ast.unparse(value)[:60]
        made.keys |= recomputed(table)

    def _field(self, made: _Made, section: str, name: str, value: ast.expr, values: Locals) -> None:
        value = _resolved(value, values)
        path = f"{section}.{name}"
        try:
            made.keys.setdefault(section, {})[name] = expression_value(value, self.constants)
            made.unresolved.pop(path, None)
        except UNKNOWN:
            made.unresolved[path] = ast.unparse(value)[:60]

    def _model(self, made: _Made, value: ast.expr) -> None:
        """Which model it is, and what converts its layers."""
        if not isinstance(value, ast.Call):
            return
        name = ast.unparse(value.func)
        folder = self.registries.get(name.removesuffix(".model_registry"))
        if folder is None and _called(value) != "model_registry":
            return
        if folder is not None:
            made.keys["module"] = folder
        first = [*value.args, *(given.value for given in value.keywords if given.arg == "flavor")][:1]
        if first and isinstance(first[0], ast.Constant):
            made.keys["flavor"] = str(first[0].value)
        made.keys.pop("converters", None)
        for given in value.keywords:
            if given.arg == "converters" and isinstance(given.value, ast.List):
                made.keys["converters"] = {
                    ast.unparse(one.func).removesuffix(".Config"): self._arguments(one)
                    for one in given.value.elts
                    if isinstance(one, ast.Call)
                }

    def _arguments(self, call: ast.Call) -> Keys:
        found: Keys = {}
        for given in call.keywords:
            try:
                found[str(given.arg)] = expression_value(given.value, self.constants)
            except UNKNOWN:
                found[str(given.arg)] = ast.unparse(given.value)[:60]
        return found


def _given(call: ast.Call, values: Locals) -> Iterator[tuple[str | None, ast.expr]]:
    """Arguments of a call by name; by None those whose names are not known, such as those by position."""
    yield from ((None, one) for one in call.args)
    for given in call.keywords:
        if given.arg is not None:
            yield given.arg, given.value
            continue
        table = _resolved(given.value, values)
        if isinstance(table, ast.Dict):
            for key, value in zip(table.keys, table.values, strict=True):
                yield (str(key.value), value) if isinstance(key, ast.Constant) else (None, value)
        elif isinstance(table, ast.Call) and _called(table) == "dict":
            yield from _given(table, values)
        else:
            yield None, given.value


def _forget(node: ast.AST, values: Locals) -> None:
    """What a statement sets that may not run, or sets a part of, is not known behind it."""
    if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For)):
        return
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        whole = target
        while isinstance(whole, (ast.Attribute, ast.Subscript)):
            whole = whole.value
        if isinstance(whole, ast.Name) and (whole.id in values or whole is target):
            values[whole.id] = ast.Name(id=f"{ast.unparse(target)}, which is set where it may not be", ctx=ast.Load())


def _resolved(node: ast.expr, values: Locals) -> ast.expr:
    """What a name stands for that a function assigns; other expressions as they are."""
    for _ in range(_DEEPEST):
        if not isinstance(node, ast.Name) or node.id not in values:
            break
        node = values[node.id]
    return node


def _called(node: ast.AST) -> str:
    """The last part of the name of what is called."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _dotted(node: ast.expr) -> list[str]:
    """Parts of `a.b.c`; one empty part for other targets."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else [""]


def _touches(node: ast.AST, configs: Mapping[str, _Made]) -> bool:
    """Whether it sets a field of a configuration, or returns one."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(_dotted(target)[0] in configs for target in targets)
    return isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and node.value.id in configs


def _unknown(node: ast.AST) -> _Made:
    return _Made(keys={RECOMPUTE: "none"}, unresolved={CONFIG: ast.unparse(node)[:60]})
