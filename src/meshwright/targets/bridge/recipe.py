"""Recipes of Megatron-Bridge: Python functions that set the fields of a configuration, read and never run.

Source: megatron/bridge/recipes of Megatron-Bridge, commit 067f987d (2026-08); what the functions of common.py set,
whose names are in `_COMMON`, is said here.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.targets.bridge.as_options import without_effect
from meshwright.targets.python_values import UNKNOWN, constants, expression_value

_ADAM = {"optimizer.use_distributed_optimizer": True}
_BEGUN = {
    "mixed_precision": "bf16_mixed",
    "model.context_parallel_size": 1,
    "model.tensor_model_parallel_size": 1,
    "model.pipeline_model_parallel_size": 1,
}
_COMMON: dict[str, dict[str, Any]] = {
    "_pretrain_common": {
        **_BEGUN,
        **_ADAM,
        "train.global_batch_size": 32,
        "train.micro_batch_size": 2,
        "ddp.use_distributed_optimizer": True,
        "ddp.overlap_grad_reduce": True,
        "ddp.overlap_param_gather": True,
        "dataset.seq_length": 4096,
    },
    "_sft_common": {**_BEGUN, **_ADAM, "train.global_batch_size": 128, "train.micro_batch_size": 1},
    "_peft_common": {
        **_BEGUN,
        **_ADAM,
        "train.global_batch_size": 128,
        "train.micro_batch_size": 1,
        "peft.dim": 32,
        "peft.target_modules": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"],
    },
}
"""What the functions that recipes start from set of a plan."""
_PARTS = (
    *("model", "train", "optimizer", "ddp", "scheduler", "dataset", "logger", "tokenizer", "checkpoint", "rng", "dist"),
    *("ft", "straggler", "nvrx_straggler", "profiling", "peft", "comm_overlap", "mixed_precision", "tensor_inspect"),
    *("rerun_state_machine", "inprocess_restart", "validation"),
)
"""Fields of ConfigContainer: others that a program sets reach nothing."""
_HARMLESS = ("set_cuda_graph_modules", "clear_cuda_graph_modules")
"""Calls that change no plan: which modules a graph holds, where there is one."""
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8"}
_KEY = "recipe"
"""Names the function where a file holds several."""


@dataclass(slots=True, kw_only=True)
class BridgeRecipe:
    """What a function sets."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Values by key of the configuration."""
    lines: dict[str, int] = field(default_factory=dict)
    """Where each is set."""
    model: str = ""
    """The Hugging Face id of the model."""
    problems: list[Problem] = field(default_factory=list)
    """What was not read."""


def recognised(name: str, text: str) -> bool:
    """Whether a file holds such functions."""
    if not name.endswith(".py") or PurePath(name).name.startswith("test_"):
        return False
    begun = "ConfigContainer" in text or any(f"{one}(" in text for one in _COMMON)
    return begun and "megatron.bridge" in text and _SETS.search(text) is not None


_SETS = re.compile(r"^[ \t]+\w+\.model\.\w+[ \t]*=[^=]", re.MULTILINE)
"""A line that sets a field of a model."""


def recipe_named(name: str, text: str, wanted: str) -> tuple[BridgeRecipe | None, Problem | None]:
    """A function of a file, or the question for which.

    Args:
        name: the name of the file.
        text: the text of the file.
        wanted: name of the function; empty where nobody says it.

    Raises:
        InputError: the text is no Python.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InputError(
            Problem(what=f"{name} is no Python", why=str(error)[:200], fix="correct its syntax", field="source")
        ) from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    offered = [one for one in functions if one.endswith("_config") and not one.startswith("_")]
    chosen = wanted or (offered[0] if len(offered) == 1 else "")
    if chosen not in functions:
        shown = ", ".join(offered[:8]) + (f" and {len(offered) - 8} more" if len(offered) > 8 else "")
        what = f"{_KEY} is {chosen[:60]!r}" if chosen else f"which recipe of {name} is meant is not known"
        fix = f"give --set {_KEY}=NAME"
        return None, Problem(what=what, why=f"it holds {shown or 'none'}", fix=fix, field=_KEY)
    found = BridgeRecipe()
    _Reader(functions=functions, names=constants(tree), found=found).run(functions[chosen], 0)
    return found, None


_DEEPEST = 6


@dataclass(slots=True, kw_only=True)
class _Reader:
    """The statements of functions, in their order."""

    functions: dict[str, ast.FunctionDef]
    names: dict[str, Any]
    found: BridgeRecipe

    def run(self, function: ast.FunctionDef, depth: int, call: ast.Call | None = None) -> None:
        """Take what a function sets of `cfg`, and of names that stand for a part of it.

        Args:
            function: the function whose statements are read.
            depth: the depth of calls above it.
            call: the call of it, whose arguments that stand in the file it is given.
        """
        local = dict(self.names)
        with contextlib.suppress(*UNKNOWN):
            pairs = zip(reversed(function.args.args), reversed(function.args.defaults), strict=False)
            local |= {one.arg: expression_value(value, self.names) for one, value in pairs}
        for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=False):
            with contextlib.suppress(*UNKNOWN):
                if value is not None:
                    local[one.arg] = expression_value(value, self.names)
        if call is not None:
            named = [*zip((one.arg for one in function.args.args), call.args, strict=False)]
            for name, value in [*named, *((str(one.arg), one.value) for one in call.keywords)]:
                with contextlib.suppress(*UNKNOWN):
                    local[name] = expression_value(value, self.names)
        parts: dict[str, str] = {}
        for node in _named_cfg(function).body:
            self.statement(node, local, parts, depth)

    def statement(self, node: ast.stmt, local: dict[str, Any], parts: dict[str, str], depth: int) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assigned(node.targets[0], node.value, local, parts, depth)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.called(node.value, depth)
        elif isinstance(node, ast.If):
            self.either(node, local, parts, depth)
        elif isinstance(node, (ast.For, ast.While, ast.With, ast.Try)) and "cfg" in ast.unparse(node):
            self.unread(node, "a loop or block sets fields")

    def assigned(
        self, target: ast.expr, value: ast.expr, local: dict[str, Any], parts: dict[str, str], depth: int
    ) -> None:
        path = ast.unparse(target)
        made = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        if made.startswith("distributed_") and "adam" not in made:
            self.unread(value, f"the optimizer of {made} is not read")
        head, _, rest = path.partition(".")
        if head in parts and rest:
            path = f"cfg.{parts[head]}.{rest}"
        if path == "cfg" and isinstance(value, ast.Call):
            self.begun(value, depth)
        elif path.startswith("cfg."):
            if isinstance(value, ast.Name) and value.id in parts:
                return
            self.field(path.removeprefix("cfg."), value, local)
        elif isinstance(target, ast.Name):
            text = ast.unparse(value)
            if text.startswith("default_peft_config("):
                parts[target.id] = "peft"
                self.tuned(value, local)
            else:
                with contextlib.suppress(*UNKNOWN):
                    local[target.id] = expression_value(value, local)

    def begun(self, call: ast.Call, depth: int) -> None:
        """The function that a recipe starts from."""
        name = ast.unparse(call.func)
        if name in _COMMON:
            self.found.keys |= _COMMON[name]
        elif name in self.functions and depth < _DEEPEST:
            self.run(self.functions[name], depth + 1, call)
        elif name.endswith("_vlm"):
            self.unread(call, "images go through a tower before the text, which a plan of its decoder leaves out")
        else:
            self.unread(call, f"{name} of another file sets the rest")

    def field(self, key: str, value: ast.expr, local: dict[str, Any]) -> None:
        text = ast.unparse(value)
        if key == "model":
            self.named(value, local)
        elif key == "peft":
            self.tuned(value, local)
        elif key == "mixed_precision":
            self.precision(value, local)
        elif key == "comm_overlap" and isinstance(value, ast.Call):
            for one in value.keywords:
                if one.arg in ("tp_comm_overlap", "overlap_moe_expert_parallel_comm", "delay_wgrad_compute"):
                    self.field(f"comm_overlap.{one.arg}", one.value, local)
        elif key in ("env_vars", "dataset", "scheduler", "tokenizer", "logger", "optimizer", "comm_overlap", "rng"):
            return
        else:
            self.put(key, _DTYPES.get(text, self.value(value, local)), value)

    def put(self, key: str, value: Any, node: ast.AST) -> None:
        if isinstance(value, _Unread) and not without_effect(key, value):
            if key.startswith(("model.", "ddp.", "optimizer.", "train.", "mixed_precision", "peft.", "comm_overlap.")):
                self.unread(node, f"{key} is {value[:60]}, whose value is not in the file")
            self.found.keys.pop(key, None)
            return
        self.found.keys[key] = value
        self.found.lines[key] = getattr(node, "lineno", 0)

    def value(self, node: ast.expr, local: dict[str, Any]) -> Any:
        """A value; one of another field where that was set, and an unknown one by its text."""
        text = ast.unparse(node)
        if text.startswith("AttnBackend."):
            return text.removeprefix("AttnBackend.")
        if text.startswith("cfg.") and text.removeprefix("cfg.") in self.found.keys:
            return self.found.keys[text.removeprefix("cfg.")]
        with contextlib.suppress(*UNKNOWN):
            return expression_value(node, local)
        return _Unread(text)

    def named(self, value: ast.expr, local: dict[str, Any]) -> None:
        """The model of `AutoBridge.from_hf_pretrained(ID)`."""
        for node in ast.walk(value):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("from_hf_pretrained") and node.args:
                name = self.value(node.args[0], local)
                if isinstance(name, _Unread):
                    self.unread(node, f"the model is {name[:60]}, whose value is not in the file")
                elif isinstance(name, str):
                    self.found.model = name
                    self.found.lines["model"] = node.lineno
                return
        self.unread(value, "the model is made by a function or class that is not read")

    def tuned(self, value: ast.expr, local: dict[str, Any]) -> None:
        """Adapters by default, or of `LoRA(...)`."""
        if not isinstance(value, ast.Call):
            return
        name = ast.unparse(value.func)
        if name == "default_peft_config":
            scheme = self.value(value.args[0], local) if value.args else "lora"
            if scheme not in ("lora", "dora"):
                self.unread(value, f"adapters of {scheme} are not read")
            self.found.keys |= {key: one for key, one in _COMMON["_peft_common"].items() if key.startswith("peft.")}
            if scheme == "dora":
                self.put("peft.dora", True, value)
        elif name != "LoRA":
            self.unread(value, f"adapters of {name} are not read")
        for one in value.keywords:
            if one.arg in ("dim", "target_modules", "dropout"):
                self.put(f"peft.{one.arg}", self.value(one.value, local), one.value)

    def precision(self, value: ast.expr, local: dict[str, Any]) -> None:
        """Number formats by the name of what makes them."""
        if isinstance(value, ast.Call) and not value.args and not value.keywords:
            self.put("mixed_precision", ast.unparse(value.func), value)
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == "get_mixed_precision_config" and value.args:
            self.put("mixed_precision", self.value(value.args[0], local), value)
        elif isinstance(value, ast.Call) and ast.unparse(value.func) == "MixedPrecisionConfig":
            given = {str(one.arg): self.value(one.value, local) for one in value.keywords}
            if given.get("bf16") is not True or any(name.startswith(("fp8", "fp4")) for name in given):
                self.unread(value, "bf16 without products in fewer bits is read of MixedPrecisionConfig")
            self.put("mixed_precision", "bf16_mixed", value)
            self.put("mixed_precision.grad_reduce_in_fp32", given.get("grad_reduce_in_fp32", True), value)
        elif isinstance(value, ast.Call):
            self.unread(value, "number formats are made by a call that is not read")
        else:
            self.put("mixed_precision", self.value(value, local), value)

    def called(self, call: ast.Call, depth: int) -> None:
        """A call that changes the configuration."""
        name, words = ast.unparse(call.func), [ast.unparse(one) for one in call.args]
        if name == "apply_flex_dispatcher_backend":
            given = [*call.args[1:], *(one.value for one in call.keywords if one.arg == "moe_flex_dispatcher_backend")]
            said = self.value(given[0], self.names) if given else None
            if said is not None:
                self.put("model.moe_token_dispatcher_type", "flex", call)
                self.put("model.moe_flex_dispatcher_backend", said, call)
        elif name in _HARMLESS or not any(word == "cfg" or word.startswith("cfg.") for word in words):
            return
        elif name in self.functions and words[:1] == ["cfg"] and depth < _DEEPEST:
            self.run(self.functions[name], depth + 1, call)
        else:
            self.unread(call, f"{name} changes the configuration, and is not read")

    def either(self, node: ast.If, local: dict[str, Any], parts: dict[str, str], depth: int) -> None:
        """The branch that default arguments take; both where neither sets a field."""
        holds = _holds(node.test, local)
        if holds is None:
            holds = self.compared(node.test)
        if holds is None:
            if any(isinstance(one, ast.Assign) and "cfg." in ast.unparse(one) for one in ast.walk(node)):
                self.unread(node, "which of its branches is taken is not known")
            return
        for one in node.body if holds else node.orelse:
            self.statement(one, local, parts, depth)

    def compared(self, test: ast.expr) -> bool | None:
        """`cfg.model.context_parallel_size > 1`, of a field that was set."""
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Gt):
            return None
        left, right = self.value(test.left, {}), self.value(test.comparators[0], {})
        return left > right if isinstance(left, int) and isinstance(right, int) else None

    def unread(self, node: ast.AST, why: str) -> None:
        """Note a statement that was not read."""
        what = f"line {getattr(node, 'lineno', 0)} is not read"
        fix = "check the configuration that the run prints, or give its values with --set KEY=VALUE"
        self.found.problems.append(Problem(what=what, why=why, fix=fix, field=f"line {getattr(node, 'lineno', 0)}"))


def _named_cfg(function: ast.FunctionDef) -> ast.FunctionDef:
    """A function whose configuration, which it returns, has the name that recipes of the package give it."""
    last = function.body[-1]
    own = last.value.id if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) else "cfg"
    if own == "cfg":
        return function
    renamed = deepcopy(function)
    for node in ast.walk(renamed):
        if isinstance(node, ast.Name) and node.id == own:
            node.id = "cfg"
    return renamed


class _Unread(str):
    """The text of an expression whose value is not in the file."""

    __slots__ = ()


def _holds(test: ast.expr, local: dict[str, Any]) -> bool | None:
    """Whether a condition on arguments holds for their defaults: `isinstance(x, str) and x.lower() in [...]`."""
    if isinstance(test, ast.BoolOp):
        parts = [_holds(one, local) for one in test.values]
        if None in parts:
            return None
        return all(parts) if isinstance(test.op, ast.And) else any(parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _holds(test.operand, local)
        return None if inner is None else not inner
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "hasattr" and len(test.args) == 2:
        whose, part = ast.unparse(test.args[0]), _plain(test.args[1], local)
        return part in _PARTS if whose == "cfg" and isinstance(part, str) else None
    if isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance" and len(test.args) == 2:
        name, kind = (ast.unparse(one) for one in test.args)
        return isinstance(local[name], str) if name in local and kind == "str" else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = _plain(test.left, local), _plain(test.comparators[0], local)
        if left is None or right is None:
            return None
        if isinstance(test.ops[0], ast.In):
            return left in right
        if isinstance(test.ops[0], ast.Eq):
            return bool(left == right)
    return None


def _plain(node: ast.expr, local: dict[str, Any]) -> Any:
    """A literal, a name, or a name in lower case."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "lower":
        inner = _plain(node.func.value, local)
        return inner.lower() if isinstance(inner, str) else None
    with contextlib.suppress(*UNKNOWN):
        return expression_value(node, local)
    return None


def words_of(found: BridgeRecipe) -> Iterator[tuple[str, str, int]]:
    """Keys with their values as overrides have them, and the line of each."""
    for key, value in found.keys.items():
        if isinstance(value, _Unread):
            continue
        shown = f"[{','.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)
        yield key, "null" if value is None else shown, found.lines.get(key, 0)
