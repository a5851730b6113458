"""A model's class in Transformers, whole on one rank: weights, gradients, Adam, one forward and backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from meshwright.xray.tape import Tape

NOTES = [
    "weights, gradients and both states of Adam are in 16 bits, as the class has them without a trainer",
    "attention is the CPU's flash kernel, which keeps what the GPU's keeps",
]


def trace_module(
    tape: Tape, config: dict[str, Any], sequence: int, micro_batch: int, micro_batches: int | None = None
) -> dict[str, Any]:
    """Run a causal model of Transformers.

    Args:
        tape: what counts.
        config: sizes, under the keys of Llama's configuration.
        sequence: tokens of a sequence.
        micro_batch: sequences.
        micro_batches: to run; one by default.

    Returns:
        Fields of `Traced` that only this framework knows.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    made = LlamaConfig(**config)
    made._attn_implementation = "sdpa"
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(made)
    torch.set_default_dtype(usual)
    run = micro_batches or 1
    tokens = torch.zeros(micro_batch, sequence, dtype=torch.int64)
    found = trace_step(tape, model, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss, run)
    return {
        **found,
        "substitutes": [],
        "notes": NOTES,
    }


def adam_states(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The two states of Adam, in the format of the parameters, as torch.optim has them."""
    return [torch.zeros_like(one) for one in parameters for _ in range(2)]


def trace_step(tape: Tape, model: torch.nn.Module, loss: Any, micro_batches: int = 1) -> dict[str, Any]:
    """Gradients of a module and Adam's states, then its forward and backward pass.

    Args:
        tape: what counts.
        model: made under it.
        loss: makes the loss of a micro-batch.
        micro_batches: to run.
    """
    parameters = [one for one in model.parameters() if one.requires_grad]
    tape.rename(model.parameters(), "weights")
    with tape.during("gradients are allocated", "gradients"):
        for one in parameters:
            one.grad = torch.zeros_like(one)
    with tape.during("optimizer is made", "optimizer"):
        states = adam_states(parameters)
    with tape.during("forward and backward", "activations"):
        tape.operators.clear()
        tape.flop.clear()
        for _ in range(micro_batches):
            loss().backward()
    del states
    return {
        "parameters": sum(one.numel() for one in parameters),
        "micro_batches": micro_batches,
        "of_micro_batches": micro_batches,
    }
