"""What stands in for packages that need a GPU: the same inputs, outputs and saved tensors, one operator each."""

from __future__ import annotations

import sys
import types
from typing import Any

import torch

from meshwright.xray.tape import Tape

GEMM_NAMES = ("wgrad_gemm_accum_fp32", "wgrad_gemm_accum_fp16")


def fused_weight_gradients(tape: Tape) -> str:
    """Apex's product that adds a weight's gradient to the buffer of gradients."""
    module = types.ModuleType("fused_weight_gradient_mlp_cuda")

    def accumulate(inputs: torch.Tensor, gradient: torch.Tensor, _: torch.Tensor) -> None:
        rows = inputs.reshape(-1, inputs.shape[-1])
        tape.note("mm", tape.phase, (gradient.reshape(-1, gradient.shape[-1]).t(), rows), None)

    for name in GEMM_NAMES:
        setattr(module, name, accumulate)
    sys.modules[module.__name__] = module
    return "products that add to main gradients (apex fused_weight_gradient_mlp_cuda)"


def fused_norm(tape: Tape, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A norm as fused kernels have it: keeps its input and one number per row and statistic.

    Of a part of a tensor, as keys are of what one product made, it keeps a copy.

    Source: op_forward in transformer_engine/pytorch/ops/basic/rmsnorm.py.
    """

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
            x = x.contiguous()
            rows = x.numel() // x.shape[-1]
            made, one = tape.fused(
                lambda x: (torch.empty_like(x), _floats(x, rows * (1 if bias is None else 2))), "norm"
            )(x)
            ctx.save_for_backward(x, weight, one)
            ctx.shifts = bias is not None
            return made

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            x, weight, _ = ctx.saved_tensors
            made = tape.fused(lambda _: (torch.empty_like(x), torch.empty_like(weight)), "norm")(gradient)
            return (*made, torch.empty_like(weight) if ctx.shifts else None)

    return Norm.apply(x, weight, bias)


def fused_attention(tape: Tape, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention that keeps its inputs, its output and one number per query and head; layout s b h d."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            size = (*query.shape[:-1], value.shape[-1])
            rows = query.numel() // query.shape[-1]
            out, sums = tape.fused(lambda q, *_: (q.new_empty(size), _floats(q, rows)), "attention")(query, key, value)
            ctx.save_for_backward(query, key, value, out, sums)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            inputs = ctx.saved_tensors[:3]
            return tape.fused(lambda *_: tuple(torch.empty(one.shape, dtype=one.dtype) for one in inputs), "attention")(
                *inputs
            )

    return Attention.apply(query, key, value)


def softmax(tape: Tape, scores: torch.Tensor) -> torch.Tensor:
    """Scale, mask and softmax in one kernel, which keeps its result alone."""

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, scores: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = tape.fused(torch.empty_like, "softmax")(scores)
            ctx.save_for_backward(made)
            return made

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return tape.fused(torch.empty_like, "softmax")(gradient)

    found: torch.Tensor = Softmax.apply(scores)
    return found


def rotary(tape: Tape, x: torch.Tensor) -> torch.Tensor:
    """Rotary positions in one pass: a new tensor, nothing kept but the angles."""

    class Rotary(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return tape.fused(lambda x: torch.empty(x.shape, dtype=x.dtype), "rotary")(x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            return tape.fused(lambda x: torch.empty(x.shape, dtype=x.dtype), "rotary")(gradient)

    return Rotary.apply(x)


def grouped_products(tape: Tape, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Products of local experts, as many tokens for each; keeps its input."""

    def made(one: torch.Tensor, groups: int, n: int, k: int) -> None:
        rows = one.shape[0] // groups
        shape = (torch.empty(groups, rows, k, device="meta"), torch.empty(groups, k, n, device="meta"))
        tape.note("bmm", tape.phase, shape, None)

    class Grouped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(inputs, weights)
            groups, k, n = weights.shape
            made(inputs, groups, n, k)
            return inputs.new_empty(inputs.shape[0], n)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            inputs, weights = ctx.saved_tensors
            groups, k, n = weights.shape
            made(gradient, groups, k, n)
            rows = inputs.shape[0] // groups
            shape = (torch.empty(groups, k, rows, device="meta"), torch.empty(groups, rows, n, device="meta"))
            tape.note("bmm", tape.phase, shape, None)
            return inputs.new_empty(inputs.shape), weights.new_empty(weights.shape)

    return Grouped.apply(inputs, weights)


class FusedAdam(torch.optim.AdamW):
    """Adam whose update makes nothing but its two states, in 32 bits."""

    def __init__(self, params: Any, lr: float = 1e-3, **_: Any) -> None:
        super().__init__(params, lr=lr)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make the states where they are not."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = state.get(name, torch.zeros(parameter.shape, dtype=torch.float32))


def _floats(like: torch.Tensor, count: int) -> torch.Tensor:
    return like.new_empty(count, dtype=torch.float32)
