"""Models of every kind of layer as their configs state them, with the parameters that their authors publish."""

from __future__ import annotations

from meshwright.specs.layers.absent import NoMixer, NoMlp
from meshwright.specs.layers.attention import Attention
from meshwright.specs.layers.compressed_attention import CompressedAttention
from meshwright.specs.layers.delta_net import DeltaNet
from meshwright.specs.layers.dense_mlp import DenseMlp
from meshwright.specs.layers.indexer import Indexer
from meshwright.specs.layers.kimi_delta import KimiDelta
from meshwright.specs.layers.latent_attention import LatentAttention
from meshwright.specs.layers.linear_attention import LinearAttention
from meshwright.specs.layers.mamba import Mamba
from meshwright.specs.layers.mamba2 import Mamba2
from meshwright.specs.layers.moe import MoeMlp
from meshwright.specs.layers.rwkv import RwkvChannelMix, RwkvTimeMix
from meshwright.specs.layers.short_convolution import ShortConvolution
from meshwright.specs.layers.side_by_side import SideBySide
from meshwright.specs.model import LayerRun, LayerSpec, ModelSpec


def model(name: str, hidden: int, vocab: int, runs: tuple[LayerRun, ...], **more: object) -> ModelSpec:
    more = {"tied_embeddings": False, **more}
    return ModelSpec(name=name, family="test", hidden=hidden, vocab=vocab, max_seq_len=8192, runs=runs, **more)


def run(*layers: LayerSpec, repeats: int = 1) -> LayerRun:
    return LayerRun(layers=layers, repeats=repeats)


def mixer_alone(mixer: object) -> LayerSpec:
    return LayerSpec(attention=mixer, mlp=NoMlp(), norms=1)


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
        mixer = RwkvTimeMix(version=version, heads=hidden // 64, head_dim=64, **{**ranks, **own})
        return LayerSpec(attention=mixer, mlp=RwkvChannelMix(version=version, ffn_hidden=ffn_hidden), norm="layernorm")

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
        "nemotron-3-nano",
        2688,
        experts,
        heads=64,
        state=128,
        attention=Attention(heads=32, kv_heads=2, head_dim=128),
        letters="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    )


def nemotron_3_super() -> ModelSpec:
    """Nemotron-3-Super-120B-A12B: 512 experts in a latent of 1024."""
    experts = MoeMlp(
        experts=512, top_k=22, ffn_hidden=2688, gated=False, latent=1024, shared_ffn_hidden=5376, router_bias=True
    )
    return _nemotron_3(
        "nemotron-3-super",
        4096,
        experts,
        heads=128,
        state=128,
        attention=Attention(heads=32, kv_heads=2, head_dim=128),
        letters="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
    )


def _nemotron_3(
    name: str, hidden: int, experts: MoeMlp, *, heads: int, state: int, attention: Attention, letters: str
) -> ModelSpec:
    kinds = {
        "M": mixer_alone(Mamba2(heads=heads, head_dim=64, groups=8, state=state, chunk=128)),
        "*": mixer_alone(attention),
        "E": LayerSpec(attention=NoMixer(), mlp=experts, norms=1),
    }
    return model(name, hidden, 131072, pattern(letters, kinds))


def kimi_linear() -> ModelSpec:
    """Kimi-Linear-48B-A3B: every fourth layer and the last latent attention, the others delta attention."""
    latent = LatentAttention(heads=32, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    experts = MoeMlp(experts=256, top_k=8, ffn_hidden=1024, gated=True, shared_ffn_hidden=1024, router_bias=True)
    delta = KimiDelta(heads=32, head_dim=128)
    rest = LayerSpec(attention=delta, mlp=experts), LayerSpec(attention=latent, mlp=experts)
    first = LayerSpec(attention=delta, mlp=DenseMlp(ffn_hidden=9216, gated=True))
    runs = (run(first, rest[0], rest[0], rest[1]), run(*rest[:1] * 3, rest[1], repeats=5), run(*rest[:1] * 2, rest[1]))
    return model("kimi-linear-48b-a3b", 2304, 163840, runs)


def lfm2() -> ModelSpec:
    """LFM2-1.2B: ten short convolutions and six layers of attention."""
    mlp = DenseMlp(ffn_hidden=8192, gated=True)
    kinds = {
        "c": LayerSpec(attention=ShortConvolution(width=2048), mlp=mlp),
        "a": LayerSpec(attention=Attention(heads=32, kv_heads=8, head_dim=64, qk_norm=True), mlp=mlp),
    }
    return model("lfm2-1.2b", 2048, 65536, pattern("ccaccaccacacacac", kinds), tied_embeddings=True)


def jamba() -> ModelSpec:
    """Jamba-v0.1: one layer of attention in eight, experts in every second."""
    mixers = [Mamba(width=8192, state=16, step_rank=256, norms=True)] * 8
    mixers[4] = Attention(heads=32, kv_heads=8, head_dim=128)
    mlps = DenseMlp(ffn_hidden=14336, gated=True), MoeMlp(experts=16, top_k=2, ffn_hidden=14336, gated=True)
    layers = (LayerSpec(attention=mixer, mlp=mlps[place % 2]) for place, mixer in enumerate(mixers))
    return model("jamba-v0.1", 4096, 65536, (run(*layers, repeats=4),))


def minimax_01() -> ModelSpec:
    """MiniMax-Text-01: seven layers of lightning attention, then one with softmax."""
    experts = MoeMlp(experts=32, top_k=2, ffn_hidden=9216, gated=True)
    lightning = LayerSpec(attention=LinearAttention(heads=64, head_dim=128), mlp=experts)
    softmax = LayerSpec(attention=Attention(heads=64, kv_heads=8, head_dim=128), mlp=experts)
    return model("minimax-text-01", 6144, 200064, (run(*(lightning,) * 7, softmax, repeats=10),))


def falcon_h1() -> ModelSpec:
    """Falcon-H1-34B: attention and Mamba-2 side by side in every layer."""
    both = SideBySide(
        mixers=(
            Attention(heads=20, kv_heads=4, head_dim=128),
            Mamba2(heads=32, head_dim=128, groups=2, state=256, norm=False),
        )
    )
    layer = LayerSpec(attention=both, mlp=DenseMlp(ffn_hidden=21504, gated=True))
    return model("falcon-h1-34b", 5120, 261120, (run(layer, repeats=72),))


def longcat() -> ModelSpec:
    """LongCat-Flash: two attentions and two MLPs a layer, experts beside the first MLP, a third of choices empty."""
    latent = LatentAttention(heads=64, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    experts = MoeMlp(
        experts=512, null_experts=256, top_k=12, ffn_hidden=2048, gated=True, shared_ffn_hidden=12288, router_bias=True
    )
    dense = DenseMlp(ffn_hidden=12288, gated=True)
    layers = LayerSpec(attention=latent, mlp=experts), LayerSpec(attention=latent, mlp=dense)
    return model("longcat-flash", 6144, 131072, (run(*layers, repeats=28),))


def deepseek_v4_flash() -> ModelSpec:
    """DeepSeek-V4-Flash: two layers see a window, the others entries of 4 or 128 tokens, too; 4 residuals."""
    experts = MoeMlp(experts=256, top_k=6, ffn_hidden=2048, gated=True, shared_ffn_hidden=2048)

    def layer(rate: int) -> LayerSpec:
        attention = CompressedAttention(
            heads=64,
            head_dim=512,
            q_rank=1024,
            output_groups=8,
            output_rank=1024,
            window=128,
            rate=rate,
            indexer=Indexer(heads=64, dim=128, top_k=512) if rate == 4 else None,
        )
        return LayerSpec(attention=attention, mlp=experts, residuals=4)

    runs = (run(layer(0), repeats=2), run(layer(4), layer(128), repeats=20), run(layer(4)))
    return model("deepseek-v4-flash", 4096, 129280, runs)


PUBLISHED: tuple[tuple[ModelSpec, float, float, str], ...] = (
    # model, parameters, relative tolerance, who says so
    (nemotron_h(), 56.3e9, 2e-3, "arXiv 2504.03624, table 1"),
    (qwen3_next(), 80e9, 5e-3, "model card of Qwen3-Next-80B-A3B"),
    (nemotron_3_nano(), 31.6e9, 2e-3, "model card of NVIDIA-Nemotron-3-Nano-30B-A3B"),
    (nemotron_3_super(), 120.6e9, 2e-3, "model card of NVIDIA-Nemotron-3-Super-120B-A12B"),
    (kimi_linear(), 49_122_681_728, 0, "safetensors header of moonshotai/Kimi-Linear-48B-A3B-Instruct"),
    (lfm2(), 1_170_340_608, 0, "safetensors header of LiquidAI/LFM2-1.2B"),
    (jamba(), 51_570_323_328, 0, "safetensors header of ai21labs/Jamba-v0.1"),
    (minimax_01(), 456e9, 1e-3, "arXiv 2501.08313, abstract"),
    (falcon_h1(), 33.6e9, 2e-3, "model card of Falcon-H1-34B"),
    (deepseek_v4_flash(), 284_332_230_231, 0, "DeepseekV4ForCausalLM of transformers 5.23.0"),
    (longcat(), 560e9, 2e-3, "arXiv 2509.01322, abstract"),
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
