"""Number formats as Megatron-LM options, role by role, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from meshwright.errors import Problem
from meshwright.specs.precision import EIGHT_BIT, PRECISIONS, ROLES, Precision, stated

if TYPE_CHECKING:
    from meshwright.formats.megatron.options import Flags, Values

_LOW = {
    "fp8": (("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    "fp8-block": (("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "fp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
    "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
"""Formats of GEMM inputs below the 16-bit formats."""
_SAID = {"compute": "products"}
"""What roles are called that are no option of their own."""
_MOMENTS = ("fp8", "bf16", "fp16", "fp32")
"""Formats of an optimizer's moments, the narrowest first."""
_RECIPES = {"mxfp8": "mxfp8", "blockwise": "fp8-block"}
"""Recipes of PRECISIONS by Megatron-LM's name, where it is not the one with one scale per tensor."""
_DISPATCH = ("--moe-dispatch-fwd-dtype", "--moe-combine-bwd-dtype")


def precision_flags(precision: Precision, *, sharded: bool) -> tuple[Flags, list[Problem]]:
    """Options for the formats of all roles, and the roles whose format no option says.

    Args:
        precision: the recipe.
        sharded: whether optimizer states are spread over data ranks.
    """
    said = _Said(precision)
    said.products()
    said.weights()
    said.dispatch()
    said.gradients()
    said.states(sharded)
    return said.flags, said.problems


class _Said:
    """Options of one recipe, role by role."""

    def __init__(self, precision: Precision) -> None:
        self.precision, self.base = precision, precision.activations
        self.standard = PRECISIONS.get(self.base, PRECISIONS["bf16"])
        self.flags: Flags = [(f"--{self.base}", "")] if self.base in ("bf16", "fp16") else []
        self.problems: list[Problem] = []
        if self.base not in ("bf16", "fp16", "fp32"):
            self.refuse("activations", "activations are kept in bf16, fp16 or fp32", "use bf16")

    def refuse(self, role: str, rule: str, fix: str = "") -> None:
        said = next((one.says for one in ROLES.values() if one.attribute == role), _SAID.get(role, role))
        kept = getattr(self.precision, role)
        what = f"precision: no {said}" if kept is None else f"precision: {said} in {kept}"
        self.problems.append(Problem(what=what, why=rule, fix=fix, field=f"workload.precision.{role}"))

    def products(self) -> None:
        compute = self.precision.compute
        if compute in _LOW:
            self.flags += _LOW[compute]
            if self.base == "fp32":
                self.refuse("compute", "8- and 4-bit recipes need bf16 or fp16")
        elif compute == "tf32":
            self.refuse("compute", "no option says it: PyTorch multiplies fp32 in fp32 by default", "use fp32")
        elif compute != self.base:
            self.refuse("compute", f"GEMMs compute in the format of the activations, {self.base}, or below it")

    def weights(self) -> None:
        weights = self.precision.weights
        if weights in EIGHT_BIT and weights == self.precision.compute:
            self.flags.append(("--fp8-param-gather", ""))
        elif weights != self.base:
            rule = f"weights are kept in the format of the activations, {self.base}"
            self.refuse("weights", rule, f"use {self.base}")
        if self.precision.gathered not in (None, weights):
            rule = "weights are gathered in the format they are kept in"
            self.refuse("gathered", rule, "leave --gather-dtype out")

    def dispatch(self) -> None:
        sent = self.precision.dispatched
        if sent == "mxfp8":
            self.flags += [(flag, sent) for flag in _DISPATCH]
        elif sent not in (None, self.base):
            self.refuse(
                "dispatched", f"tokens are sent to experts in {self.base} or mxfp8", f"use {self.base} or mxfp8"
            )

    def gradients(self) -> None:
        summed, standard = (self.precision.gradients, self.precision.reduce), self.standard
        if summed == ("bf16", "bf16") and self.base == "bf16":
            self.flags.append(("--grad-reduce-in-bf16", ""))
        elif summed == ("fp32", "fp32") and self.base == "fp16":
            self.flags.append(("--accumulate-allreduce-grads-in-fp32", ""))
        elif summed != (standard.gradients, standard.reduce):
            fix = f"use {standard.gradients} for both" + (", or bf16 for both" if self.base == "bf16" else "")
            self.refuse("gradients", f"gradients are summed and sent in one format, here {summed}", fix)

    def states(self, sharded: bool) -> None:
        moments, aware = self.precision.moments, []
        if self.precision.master == "fp16" and self.base != "fp32":
            aware.append(("--main-params-dtype", "fp16"))
        elif self.precision.master != self.standard.master:
            rule = "the main copy is fp32 or fp16 beside 16-bit weights, and the weights themselves in fp32"
            self.refuse("master", rule, f"use --main-copy {self.standard.master}")
        if moments not in _MOMENTS:
            self.refuse("moments", f"moments are kept in {', '.join(reversed(_MOMENTS))}")
        elif moments != "fp32":
            aware += [("--exp-avg-dtype", moments), ("--exp-avg-sq-dtype", moments)]
        if aware and not sharded:
            rule = "optimizer states below fp32 need the distributed optimizer"
            self.refuse("moments" if moments != "fp32" else "master", rule, "shard them with z1")
        self.flags += [("--use-precision-aware-optimizer", ""), *aware] if aware else []


def read_precision(values: Values) -> tuple[Precision, list[Problem]]:
    """The formats that options ask for."""
    problems: list[Problem] = []
    given = [name for name in ("bf16", "fp16") if values.has(f"--{name}")]
    if len(given) > 1:
        problems.append(Problem(what="--bf16 and --fp16 are both given", why="there is one format", field="--fp16"))
    base = given[0] if given else "fp32"
    recipe = PRECISIONS[base]
    if values.has("--fp8-format") or values.has("--fp4-format"):
        if not given:
            problems.append(Problem(what="--fp8-format without --bf16", why="8-bit recipes need 16-bit weights"))
        recipe = _of_few_bits(values, base)
    if values.has("--grad-reduce-in-bf16"):
        recipe = replace(recipe, gradients="bf16", reduce="bf16")
    elif values.has("--accumulate-allreduce-grads-in-fp32") and base == "fp16":
        recipe = replace(recipe, gradients="fp32", reduce="fp32")
    if values.has("--use-precision-aware-optimizer"):
        recipe = _with_states(values, recipe, problems)
    return _with_dispatch(values, recipe, base, problems), problems


def _of_few_bits(values: Values, base: str) -> Precision:
    """Products in 8 or 4 bits over weights in 16."""
    recipe = replace(PRECISIONS[base], compute="fp8", weight_cache_bytes=2.0)
    block = _RECIPES.get(values.text("--fp8-recipe"))
    if base == "bf16":
        recipe = PRECISIONS[block or "fp8"]
    if values.has("--fp4-format"):
        recipe = replace(PRECISIONS["fp8"], name="nvfp4", compute="nvfp4")
    if values.has("--fp8-param-gather") and recipe.compute in EIGHT_BIT:
        recipe = stated(recipe, {"weight_dtype": "fp8"})
    return recipe


def _with_states(values: Values, recipe: Precision, problems: list[Problem]) -> Precision:
    """Formats of moments, main copies and gradients, as the optimizer that knows of them takes them."""
    first, second = (values.text(flag, "fp32") for flag in ("--exp-avg-dtype", "--exp-avg-sq-dtype"))
    if first != second:
        why = "one format for both moments can be planned; the larger is taken"
        problems.append(Problem(what=f"--exp-avg-dtype {first}, --exp-avg-sq-dtype {second}", why=why))
    # A format that Megatron-LM does not take is a problem of its options already.
    widest = max((_MOMENTS.index(name) for name in (first, second) if name in _MOMENTS), default=-1)
    recipe = replace(recipe, moments=_MOMENTS[widest])
    if values.text("--main-params-dtype", "fp32") == "fp16" and recipe.master is not None:
        recipe = replace(recipe, master="fp16")
    if values.text("--main-grads-dtype", "fp32") == "bf16":
        recipe = replace(recipe, gradients="bf16", reduce="bf16")
    return recipe


def _with_dispatch(values: Values, recipe: Precision, base: str, problems: list[Problem]) -> Precision:
    """The format in which tokens travel to experts, both ways."""
    sent = {values.text(flag, base) for flag in _DISPATCH}
    if sent == {"mxfp8"}:
        return replace(recipe, dispatched="mxfp8")
    if "mxfp8" in sent:
        what, why = "expert dispatch in mxfp8 in one direction only", "both directions are planned in one format"
        fix = f"give {' and '.join(_DISPATCH)} alike"
        problems.append(Problem(what=what, why=why, fix=fix, field=_DISPATCH[0]))
    return recipe
