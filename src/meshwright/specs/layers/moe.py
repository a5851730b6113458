"""Mixture of experts (Shazeer et al. 2017; GShard, arXiv 2006.16668; DeepSeekMoE, arXiv 2401.06066)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check
from meshwright.specs.layers.base import FeedForward, LayerContext, PartWork
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.operators import Exchange, Kept, Linear, Op, Vector, activation_pass, norm_pass, whole_product

# Kernels around the products of an expert layer: scores, top-k, balance loss, counts and their copy to the host; masks,
# offsets, gather or scatter of tokens and probabilities. Source: counted in megatron/core/transformer/moe of
# NVIDIA/Megatron-LM 0.12 (router.py, token_dispatcher.py, moe_utils.py).
ROUTER_KERNELS = 20.0
PERMUTE_KERNELS = 10.0
# What frameworks move, in elements of 16 bits, where experts have biases, which no kernel of theirs fuses. An output is
# added to its bias times the router's weight, in fp32: product, sum, concatenation and cast take 28 bytes an element
# forward; casts, gradients of bias and of weight and the concatenation of experts 40 backward. The halves of gated
# functions are clamped one by one and joined: 4 of their elements forward, 5 backward. Source: counted on 2026-11-27 in
# NVIDIA/Megatron-LM, megatron/core/transformer/moe/experts.py (_apply_bias) and fusions/fused_bias_geglu.py
# (weighted_bias_quick_geglu_impl), commit d98e8a6 of 2026-08-22.
BIASED_OUTPUT = 14.0, 20.0
CLAMPED_GATE = 4.0, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp(FeedForward):
    """Mixture of experts: a router, routed experts of which a token visits `top_k`, and an optional shared expert."""

    kind: Literal["moe"] = "moe"
    experts: int
    top_k: int
    ffn_hidden: int
    """Width of one routed expert."""
    gated: bool
    shared_ffn_hidden: int = 0
    """Width of all shared experts together; 0 for none."""
    shared_gate: bool = False
    """A learned scalar gate on the shared expert (Qwen2-MoE)."""
    residual: bool = False
    """A learned softmax of two weighs routed experts and the shared one, an MLP of its own in every layer (residual
    MoE; Rajbhandari et al. 2022, DeepSpeed-MoE, arXiv 2201.05596, section 4.1.2)."""
    router_bias: bool = False
    bias: bool = False
    latent: int = 0
    """Width in which routed experts work, between a product down to it and one up from it; 0 for that of the stream
    (Nemotron-3 Super)."""
    latent_norm: bool = False
    """A norm on what the experts made together, before the product up from their width (Kimi K3)."""
    groups: int = 0
    """Equal groups of experts of which the router first chooses some; 0 for none (DeepSeek-V2 and V3)."""
    groups_per_token: int = 0
    """Groups that the experts of a token lie in."""
    null_experts: int = 0
    """Choices of the router that compute nothing (LongCat-Flash, arXiv 2509.01322, section 2.1)."""

    def __post_init__(self) -> None:
        check = Check("MoE")
        good = check.all_whole(self, "experts", "top_k", "ffn_hidden")
        optional = ("shared_ffn_hidden", "latent", "null_experts", "groups", "groups_per_token")
        good &= check.all_whole(self, *optional, low=0)
        if good:
            check.that(self.top_k <= self.choices, "top_k", self.top_k, f"must not exceed experts = {self.choices}")
        if self.residual:
            check.that(self.shared_ffn_hidden != 0, "residual", True, "weighs a shared expert, of which there is none")
            check.that(not self.shared_gate, "residual", True, "and shared_gate both weigh the shared expert")
        if good and (self.groups or self.groups_per_token):
            check.that(self.experts % max(self.groups, 1) == 0, "groups", self.groups, f"must divide {self.experts}")
            why = f"is from 1 to groups = {self.groups}"
            if check.that(1 <= self.groups_per_token <= self.groups, "groups_per_token", self.groups_per_token, why):
                reached = self.experts // self.groups * self.groups_per_token
                why = f"reaches {reached} experts of which a token visits {self.top_k}"
                check.that(reached >= self.top_k, "groups_per_token", self.groups_per_token, why)
        check.that(not self.latent_norm or self.latent > 0, "latent_norm", True, "there is no width of experts' own")
        check.done()

    @property
    def matrices(self) -> int:
        """3 matrices per expert when gated, else 2."""
        return 3 if self.gated else 2

    @property
    def shared(self) -> DenseMlp:
        """The shared experts as one MLP; beside residual experts it is one of their own kind, with their biases."""
        return DenseMlp(ffn_hidden=self.shared_ffn_hidden, gated=self.gated, bias=self.bias and self.residual)

    @property
    def choices(self) -> int:
        """Outputs of the router."""
        return self.experts + self.null_experts

    def expert_parameters(self, hidden: int) -> int:
        """Weights and biases of one routed expert."""
        width = self.latent or hidden
        bias = (self.ffn_hidden * (self.matrices - 1) + width) if self.bias else 0
        return self.matrices * width * self.ffn_hidden + bias

    def unrouted_parameters(self, hidden: int) -> int:
        """Router, products to and from the experts' width, shared expert."""
        router = hidden * self.choices + (self.choices if self.router_bias else 0) + 2 * hidden * self.latent
        router += self.latent if self.latent_norm else 0
        shared = self.shared.parameters(hidden) if self.shared_ffn_hidden else 0
        mixed = hidden if self.shared_gate else 2 * hidden + 2 if self.residual else 0
        return router + shared + mixed

    def parameters(self, hidden: int) -> int:
        """All experts, router and shared expert."""
        return self.experts * self.expert_parameters(hidden) + self.unrouted_parameters(hidden)

    def active_parameters(self, hidden: int) -> int:
        """What one token visits."""
        return round(self.visited_experts * self.expert_parameters(hidden)) + self.unrouted_parameters(hidden)

    @property
    def tensor_width(self) -> int:
        """Hidden width of the shared experts."""
        return self.shared_ffn_hidden

    @property
    def routed_experts(self) -> int:
        """All experts but the shared ones."""
        return self.experts

    @property
    def visited_experts(self) -> float:
        """The top k, less those that compute nothing: their share of all, as the balance loss asks."""
        return self.top_k * self.experts / self.choices if self.null_experts else self.top_k

    @property
    def router_groups(self) -> tuple[int, int]:
        """Groups of experts, and those of them in which a token has any."""
        return self.groups, self.groups_per_token

    @property
    def expert_width(self) -> int:
        """Hidden width of one expert."""
        return self.ffn_hidden

    def describe(self) -> dict[str, object]:
        """Experts, how many a token visits, and their widths."""
        width = {"ffn_hidden": self.ffn_hidden, "gated": self.gated}
        if self.latent:
            width["latent"] = self.latent
        if self.null_experts:
            width["null_experts"] = self.null_experts
        if self.residual:
            width["residual"] = True
        if self.groups:
            width |= {"groups": self.groups, "groups_per_token": self.groups_per_token}
        return {**width, "experts": self.experts, "top_k": self.top_k, "shared_ffn_hidden": self.shared_ffn_hidden}

    def work(self, context: LayerContext) -> PartWork:
        """Router, dispatch, experts, combine, and the shared expert beside them."""
        hidden, width = context.hidden, self.latent or context.hidden
        columns, visited = 2 if self.gated else 1, self.visited_experts
        bias_up, bias_down = (columns * self.ffn_hidden, width) if self.bias else (0, 0)
        ops: list[Op] = [
            whole_product("router", hidden, self.choices, module="moe", bias=self.choices if self.router_bias else 0),
            Vector(
                name="top-k",
                module="moe",
                region="sequence",
                forward_elements=4 * self.choices,
                backward_elements=4 * self.choices,
                fp32=True,
                kernels=ROUTER_KERNELS,
                parameters=hidden if self.shared_gate else 0,
            ),
            Vector(
                name="permute",
                module="moe",
                region="sequence",
                forward_elements=2 * visited * width,
                backward_elements=2 * visited * width,
                kernels=PERMUTE_KERNELS,
            ),
            Exchange(name="dispatch", module="moe", width=width, direction="dispatch"),
            Linear(
                name="experts up",
                module="moe",
                inputs=((1, width),),
                outputs=((self.ffn_hidden, columns),),
                split="expert-column",
                bias=bias_up,
                experts=self.experts,
            ),
            activation_pass("experts activation", self.ffn_hidden, module="moe_act", region="expert", columns=columns),
            Linear(
                name="experts down",
                module="moe",
                inputs=((self.ffn_hidden, 1),),
                outputs=((1, width),),
                split="expert-row",
                bias=bias_down,
                experts=self.experts,
            ),
            *self._biased(width),
            Exchange(name="combine", module="moe", width=width, direction="combine"),
            Vector(
                name="unpermute",
                module="moe",
                region="sequence",
                forward_elements=(visited + 1) * width,
                backward_elements=(visited + 1) * width,
                kernels=PERMUTE_KERNELS,
            ),
        ]
        # Routing weights are applied inside the activation, as current frameworks do, so expert outputs are not kept.
        kept = [
            Kept(name="router input", elements=hidden, role="activation", region="sequence", freed_by=("layernorm",)),
            Kept(name="router logits", elements=self.choices, role="fp32", region="sequence", freed_by=("moe",)),
            Kept(name="routing map", elements=3 * self.top_k, role="fp32", region="sequence", freed_by=("moe",)),
            Kept(
                name="dispatched tokens",
                elements=width,
                role="input",
                region="expert-in",
                freed_by=("moe",),
                weights_of=("experts up",),
            ),
            Kept(
                name="experts up output",
                elements=columns * self.ffn_hidden,
                role="function",
                region="expert",
                freed_by=("moe",),
            ),
            Kept(
                name="experts down input",
                elements=self.ffn_hidden,
                role="input",
                region="expert",
                freed_by=("moe", "moe_act"),
                weights_of=("experts down",),
            ),
            Kept(name="combined tokens", elements=width, role="activation", region="sequence", freed_by=("moe",)),
        ]
        if self.clamped:
            at = next(index for index, op in enumerate(ops) if op.name == "experts activation")
            ops.insert(at, self._clamp())
            kept.append(
                Kept(
                    name="clamped experts up output",
                    elements=columns * self.ffn_hidden,
                    role="function",
                    region="expert",
                    freed_by=("moe", "moe_act"),
                )
            )
        if self.latent:
            ops[2:2] = [whole_product("experts down to their width", hidden, width, module="moe")]
            if self.latent_norm:
                ops.append(norm_pass("experts norm", width, parameters=width, module="moe"))
                kept.append(Kept(name="experts norm input", elements=width, role="input", region="sequence"))
            ops.append(whole_product("experts up to the stream", width, hidden, module="moe"))
            kept.append(Kept(name="expert inputs", elements=width, role="input", region="sequence", freed_by=("moe",)))
        if self.shared_ffn_hidden:
            beside = self.shared.named_work(hidden, "shared expert", "shared_experts")
            ops += beside.ops
            kept += beside.kept[1:]  # its input is the router's
        if self.residual:
            ops += self._weighed(hidden)
            # What the softmax weighs; what the experts made of a token is kept as combined tokens.
            kept.append(
                Kept(
                    name="shared expert output",
                    elements=hidden,
                    role="activation",
                    region="sequence",
                    freed_by=("shared_experts",),
                )
            )
        return PartWork(ops=tuple(ops), kept=tuple(kept))

    def _weighed(self, hidden: int) -> tuple[Op, ...]:
        """Two numbers a token, their softmax, and the sum of both outputs that it weighs.

        Both outputs are read and the sum written, 3 hidden; backward slope and both are read, two slopes written.
        """
        weighed = Vector(
            name="shared expert sum",
            module="moe",
            region="sequence",
            forward_elements=3 * hidden,
            backward_elements=5 * hidden,
            kernels=4.0,
        )
        return whole_product("shared expert weights", hidden, 2, module="moe", bias=2), weighed

    @property
    def clamped(self) -> bool:
        """Whether both factors of a gated function are clamped: in gpt-oss, whose gated experts alone have biases."""
        return self.bias and self.gated

    def _clamp(self) -> Vector:
        """Both factors of the gated function, each clamped and the two joined again."""
        forward, backward = CLAMPED_GATE
        return Vector(
            name="experts clamp",
            module="moe_act",
            region="expert",
            forward_elements=forward * 2 * self.ffn_hidden,
            backward_elements=backward * 2 * self.ffn_hidden,
            kernels=3.0,
            exact=True,
        )

    def _biased(self, width: int) -> tuple[Vector, ...]:
        """The bias of an expert's output, weighted as the output is; none for experts without."""
        if not self.bias:
            return ()
        forward, backward = BIASED_OUTPUT
        added = Vector(
            name="experts bias",
            module="moe",
            region="expert-in",
            forward_elements=forward * width,
            backward_elements=backward * width,
            kernels=4.0,
            exact=True,
        )
        return (added,)
