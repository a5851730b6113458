"""What decides which function a model is and changes neither its sizes nor its work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Constants of a model that a framework must be told; None where its config does not state them."""

    rope_base: float | None = None
    rope_kind: str | None = None
    """Kind of the rope's scaling, as config.json calls it: default, linear, llama3, yarn, longrope."""
    rope_numbers: tuple[tuple[str, float], ...] = ()
    """Numbers of the rope's scaling, by their names in config.json."""
    rope_share: float | None = None
    """Share of a head's width that is rotated; None for all of it."""
    norm_epsilon: float | None = None
    activation: str | None = None
    """Activation of the MLP, as config.json calls it: silu, gelu, gelu_pytorch_tanh, relu2."""
    router_score: str | None = None
    """softmax or sigmoid."""
    router_bias: bool = False
    """Whether a bias that no gradient trains balances the experts (DeepSeek-V3)."""
    router_scale: float | None = None
    """Factor on the weights of the experts that are picked."""
    router_normalised: bool | None = None
    """Whether the weights of the experts that are picked are made to sum to 1."""
    score_softcap: float | None = None
    """Bound of attention scores before the softmax."""
    logit_softcap: float | None = None
    factors: tuple[tuple[str, float], ...] = ()
    """Constants on embeddings, residuals, attention scores and logits, by their names in config.json."""
    seen_by: str | None = None
    """`model_type` of the config around the text's, whose class has towers of images or sound; None for text alone."""

    @property
    def rope_number(self) -> dict[str, float]:
        """Numbers of the scaling by name."""
        return dict(self.rope_numbers)


UNSTATED = ModelSettings()
"""Settings of a model whose config states none."""
