"""Models of every kind of layer as their configs state them, with the parameters that their authors publish."""

from __future__ import annotations

from meshwright.specs.layers import (
    Attention,
    DeltaNet,
    DenseMlp,
    Mamba,
    Mamba2,
    MoeMlp,
    NoMixer,
    NoMlp,
    RwkvChannelMix,
    RwkvTimeMix,
)
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec


def model(name: str, hidden: int, vocab: int, runs: tuple[LayerRun, ...], **more: object) -> ModelSpec:
    more = {"tied_embeddings": False, **more}
    return ModelSpec(name=name, family="test", hidden=hidden, vocab=vocab, max_seq_len=8192, runs=runs, **more)  # type: ignore[arg-type]


def run(*layers: LayerSpec, repeats: int = 1) -> LayerRun:
    return LayerRun(layers=layers, repeats=repeats)


def mixer_alone(mixer: object) -> LayerSpec:
    return LayerSpec(attention=mixer, mlp=NoMlp(), norms=1)  # type: ignore[arg-type]


def pattern(letters: str, kinds: dict[str, LayerSpec]) -> tuple[LayerRun, ...]:
    """`M-M*` as layers of these kinds."""
    return tuple(run(kinds[letter]) for letter in letters)


def nemotron_h() -> ModelSpec:
    """Nemotron-H-56B-Base-8K: 54 Mamba-2 layers, 54 MLPs and 10 of attention, each a layer of its own."""
    kinds = {
        "M": mixer_alone(Mamba2(heads=256, head_dim=64, groups=8, state=256, chunk=128)),
        "*": mixer_alone(Attention(heads=64, kv_heads=8, head_dim=128)),
        "-": LayerSpec(attention=NoMixer(), mlp=DenseMlp(ffn_hidden=32768, gated=False), norms=1),
    }
    letters = "M-M-M-M*-" + "M-M-M-M-M*-" * 9 + "M-M-M-M-M-"
    return model("nemotron-h-56b", 8192, 131072, pattern(letters, kinds))


def qwen3_next() -> ModelSpec:
    """Qwen3-Next-80B-A3B: three gated delta nets, then gated attention, 512 experts in every layer."""
    experts = MoeMlp(experts=512, top_k=10, ffn_hidden=512, gated=True, shared_ffn_hidden=512, shared_gate=True)
    net = DeltaNet(heads=32, key_heads=16, key_dim=128, value_dim=128)
    gated = Attention(heads=16, kv_heads=2, head_dim=256, gate=True, qk_norm=True)
    layers = (*(LayerSpec(attention=net, mlp=experts) for _ in range(3)), LayerSpec(attention=gated, mlp=experts))
    return model("qwen3-next-80b-a3b", 2048, 151936, (run(*layers, repeats=12),))


def mamba2() -> ModelSpec:
    """mamba2-2.7b of state-spaces on Hugging Face."""
    layer = mixer_alone(Mamba2(heads=80, head_dim=64, groups=1, state=128))
    return model("mamba2-2.7b", 2560, 50288, (run(layer, repeats=64),), tied_embeddings=True)


def mamba() -> ModelSpec:
    """mamba-2.8b of state-spaces on Hugging Face."""
    layer = mixer_alone(Mamba(width=5120, state=16, step_rank=160))
    return model("mamba-2.8b", 2560, 50280, (run(layer, repeats=64),), tied_embeddings=True)


def rwkv(version: int, hidden: int, layers: int, ffn_hidden: int, **ranks: int) -> ModelSpec:
    """RWKV of a version; the first layer of version 7 has no values of an earlier one."""

    def layer(**own: int) -> LayerSpec:
        mixer = RwkvTimeMix(version=version, heads=hidden // 64, head_dim=64, **{**ranks, **own})  # type: ignore[arg-type]
        return LayerSpec(attention=mixer, mlp=RwkvChannelMix(version=version, ffn_hidden=ffn_hidden), norm="layernorm")  # type: ignore[arg-type]

    runs = (
        (run(layer(value_rank=0)), run(layer(), repeats=layers - 1))
        if version == 7
        else (run(layer(), repeats=layers),)
    )
    return model(f"rwkv-{version}", hidden, 65536, runs, embedding_norm=True, final_norm="layernorm")


def nemotron_3_nano() -> ModelSpec:
    """Nemotron-3-Nano-30B-A3B: 23 Mamba-2 layers, 23 of experts without gates, 6 of attention."""
    experts = MoeMlp(experts=128, top_k=6, ffn_hidden=1856, gated=False, shared_ffn_hidden=3712, router_bias=True)
    return _nemotron_3(
        "nemotron-3-nano", 2688, experts, heads=64, state=128, attention=Attention(heads=32, kv_heads=2, head_dim=128),
        letters="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    )  # fmt: skip


def nemotron_3_super() -> ModelSpec:
    """Nemotron-3-Super-120B-A12B: 512 experts in a latent of 1024."""
    experts = MoeMlp(
        experts=512, top_k=22, ffn_hidden=2688, gated=False, latent=1024, shared_ffn_hidden=5376, router_bias=True
    )
    return _nemotron_3(
        "nemotron-3-super", 4096, experts, heads=128, state=128,
        attention=Attention(heads=32, kv_heads=2, head_dim=128),
        letters="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    )  # fmt: skip


def _nemotron_3(
    name: str, hidden: int, experts: MoeMlp, *, heads: int, state: int, attention: Attention, letters: str
) -> ModelSpec:
    kinds = {
        "M": mixer_alone(Mamba2(heads=heads, head_dim=64, groups=8, state=state, chunk=128)),
        "*": mixer_alone(attention),
        "E": LayerSpec(attention=NoMixer(), mlp=experts, norms=1),
    }
    return model(name, hidden, 131072, pattern(letters, kinds))


PUBLISHED: tuple[tuple[ModelSpec, float, float, str], ...] = (
    # model, parameters, relative tolerance, who says so
    (nemotron_h(), 56.3e9, 2e-3, "arXiv 2504.03624, table 1"),
    (qwen3_next(), 80e9, 5e-3, "model card of Qwen3-Next-80B-A3B"),
    (nemotron_3_nano(), 31.6e9, 2e-3, "model card of NVIDIA-Nemotron-3-Nano-30B-A3B"),
    (nemotron_3_super(), 120.6e9, 2e-3, "model card of NVIDIA-Nemotron-3-Super-120B-A12B"),
    (mamba2(), 2_702_599_680, 0, "safetensors header of state-spaces/mamba2-2.7b"),
    (mamba(), 2_768_345_600, 0, "safetensors header of state-spaces/mamba-2.8b-hf"),
    (rwkv(5, 2048, 24, 7168), 13 * 2048**2 * 24 + 14 * 2048 * 24 + 4 * 2048 + 2 * 2048 * 65536, 0,
     "arXiv 2404.05892, appendix on parameters: 13 D D L + 14 D L + 4 D + 2 D V"),
    (rwkv(6, 2048, 24, 7168, mix_rank=32, decay_rank=64),
     13 * 2048**2 * 24 + 464 * 2048 * 24 + 4 * 2048 + 2 * 2048 * 65536, 0,
     "arXiv 2404.05892, appendix on parameters: 13 D D L + 464 D L + 4 D + 2 D V"),
    (rwkv(7, 2560, 32, 10240, decay_rank=96, rate_rank=96, value_rank=64, gate_rank=320), 2_947_735_040, 0,
     "arXiv 2503.14456, table of models"),
)  # fmt: skip
