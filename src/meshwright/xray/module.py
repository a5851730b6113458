"""A model's class in Transformers, whole on one rank: weights, gradients, Adam, one forward and backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from meshwright.xray import substitutes
from meshwright.xray.tape import Missing, Tape

NOTES = (
    "weights, gradients and both states of Adam are in 16 bits, as the class has them without a trainer",
    "operators between products are those of the class, unfused",
)
_ATTENTION = "meshwright"
_STEPWISE = ("mamba", "falcon_mamba", "jamba", "zamba")
_MOST_STEPS = 256


def trace_module(
    tape: Tape,
    config: dict[str, Any],
    sequence: int,
    micro_batch: int,
    micro_batches: int | None = None,
    recompute: bool = False,
) -> dict[str, Any]:
    """Run the class of a config.json.

    Args:
        tape: what counts.
        config: the model's own; of several streams, that of the text is run.
        sequence: tokens of a sequence.
        micro_batch: sequences.
        micro_batches: the number of micro-batches to run; one by default.
        recompute: whether layers are made again in the backward pass.

    Returns:
        Fields of `Traced` that only this framework knows.
    """
    made = _configuration(config)
    if made.model_type in _STEPWISE and sequence > _MOST_STEPS:
        why = f"without CUDA kernels the class of {made.model_type} goes through the sequence token by token"
        raise Missing(f"{why}: use --seq {_MOST_STEPS} or less, or --framework megatron")
    tape.weights_only = True
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model, fused = _model(tape, made)
    finally:
        torch.set_default_dtype(usual)
    model.train()
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    tokens = torch.zeros(micro_batch, sequence, dtype=torch.int64)

    def loss() -> torch.Tensor:
        said: dict[str, Any] = {"decoder_input_ids": tokens} if made.is_encoder_decoder else {}
        found: torch.Tensor = model(input_ids=tokens, labels=tokens, use_cache=False, **said).loss
        return found

    try:
        found = trace_module_step(tape, model, loss, micro_batches or 1)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise Missing(f"the class of {made.model_type} looks at the contents of tensors ({error})") from None
    notes = [*NOTES, *(["experts get equally many tokens"] if "gate_up_proj" in _names(model) else [])]
    return {
        **found,
        "substitutes": ["core attention that keeps no scores (flash_attn)"] if fused else [],
        "notes": notes if fused else [*notes, "the class has attention of its own, which keeps its scores"],
    }


def _names(model: torch.nn.Module) -> set[str]:
    return {name.rpartition(".")[2] for name, _ in model.named_parameters()}


def _configuration(config: dict[str, Any]) -> Any:
    """The library's own configuration of a model, without compression; of a model of images, that of its text."""
    from transformers import AutoConfig

    said = {key: value for key, value in config.items() if key not in ("model_type", "quantization_config")}
    try:
        made = AutoConfig.for_model(config.get("model_type"), **said)
    except ValueError as error:
        raise Missing(str(error).partition(" Should contain")[0]) from None
    text = made.get_text_config(decoder=True) if not made.is_encoder_decoder else made
    text.use_cache = False
    return text


def _model(tape: Tape, made: Any) -> tuple[Any, bool]:
    """The model, and whether its attention is ours."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def attention(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> tuple[torch.Tensor, None]:
        turned = (one.transpose(1, 2).contiguous() for one in (query, key, value))
        return substitutes.fused_attention(tape, *turned), None

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attention)
    # An indexer adds the mask to its own scores, where kernels of attention need none.
    masks = hasattr(made, "index_topk")
    mask = ALL_MASK_ATTENTION_FUNCTIONS["eager"] if masks else lambda *_, **__: None
    ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, mask)
    kinds = (AutoModelForSeq2SeqLM,) if made.is_encoder_decoder else (AutoModelForCausalLM, AutoModelForMaskedLM)
    kind = next((one for one in kinds if type(made) in one._model_mapping), None)
    if kind is None:
        raise Missing(f"transformers has no language model of {made.model_type}")
    try:
        return kind.from_config(made, attn_implementation=_ATTENTION), True
    except (KeyError, ValueError):  # the class names its kinds of attention itself
        return kind.from_config(made, attn_implementation="eager"), False


def adam_states(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The two states of Adam, in the format of the parameters, as torch.optim has them."""
    return [torch.zeros_like(one) for one in parameters for _ in range(2)]


def trace_module_step(tape: Tape, model: torch.nn.Module, loss: Any, micro_batches: int = 1) -> dict[str, Any]:
    """Gradients of a module and Adam's states, then its forward and backward pass.

    Args:
        tape: what counts.
        model: made under it.
        loss: makes the loss of a micro-batch.
        micro_batches: the number of micro-batches to run.
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
