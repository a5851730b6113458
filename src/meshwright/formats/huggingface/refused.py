"""Families that are refused by name, and what they have that cannot be planned here."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.errors import Problem, UnsupportedError

_BLOCKS = "attention to random or neighbouring blocks"
_CODEBOOKS = "several codebooks of sound, embedded and predicted at once"
_LINEAR = "linear attention of flash-linear-attention's own kind in every layer"
_OF_FLA = "layers of a kind that flash-linear-attention alone has"
_TOWER = "an encoder of images and no text beside it"
_NARROW = "embeddings of another width than its layers, and a matrix between them"
_SHARED = "a block shared by several layers"
_INNER = "norms inside attention and MLP, and a resampler of images"
_CONVOLVED = "convolutions in its layers (a Conformer or an encoder of its own kind)"

_WAVES = "an encoder of sound waves behind convolutions, and no text beside it"
_PICTURES = "an encoder of images of another kind than ViT"
_PLAIN = "convolutions, and is no transformer"
_BOXES = "boxes or masks of objects for its output"

REFUSED: dict[str, str] = {
    **dict.fromkeys(("data2vec-audio", "hubert", "sew", "unispeech", "unispeech-sat", "wav2vec2", "wavlm"), _WAVES),
    **dict.fromkeys(("wav2vec2-bert", "wav2vec2-conformer"), _CONVOLVED),
    **dict.fromkeys(("beit", "deit", "dinov2", "dinov3_vit", "hiera", "ijepa", "swin", "swinv2"), _PICTURES),
    **dict.fromkeys(("timesformer", "videomae", "vit_mae", "vit_msn", "vivit"), _PICTURES),
    **dict.fromkeys(("bit", "convnext", "convnextv2", "efficientnet", "mobilenet_v2", "regnet", "resnet"), _PLAIN),
    **dict.fromkeys(("conditional_detr", "deformable_detr", "detr", "mask2former", "owlvit", "rt_detr"), _BOXES),
    **dict.fromkeys(("abc", "comba", "deltaformer", "forgetting_transformer", "gated_deltaproduct", "gsa"), _OF_FLA),
    **dict.fromkeys(
        ("kda", "lightnet", "linear_attn", "log_linear_mamba2", "mamba3", "mesa_net", "moba", "mom"), _OF_FLA
    ),
    **dict.fromkeys(("nsa", "parallax", "path_attn", "precond_gated_deltanet", "precond_kda", "raven"), _OF_FLA),
    **dict.fromkeys(("rodimus", "samba", "sba", "wall_transformer", "yoco"), _OF_FLA),
    **dict.fromkeys(("sam", "segformer", "table-transformer", "yolos"), _BOXES),
    "albert": "one layer whose weights all layers share",
    "big_bird": _BLOCKS,
    "bigbird_pegasus": _BLOCKS,
    "blip": "an encoder of text that reads an encoder of images",
    "blt": "bytes in patches of unequal length, with an encoder and a decoder of their own",
    "canary": _CONVOLVED,
    "clip_text_model": "one side of a pair of encoders alone",
    "clip_vision_model": _TOWER,
    "cohere_asr": _CONVOLVED,
    "convbert": "convolutions beside its attention",
    "deberta": "attention that mixes content and positions by matrices of its own",
    "delta_net": _LINEAR,
    "dia": _CODEBOOKS,
    "diffllama": "two attention maps subtracted from each other",
    "encoder-decoder": "two models of other families, joined by cross attention",
    "florence2": "an encoder of images whose width and length change from stage to stage (DaViT)",
    "fnet": "Fourier transforms in place of attention",
    "funnel": "a stack that shortens its sequence",
    "gla": _LINEAR,
    "hgrn": _LINEAR,
    "hgrn2": _LINEAR,
    "hrm_text": "layers that run several times in a step",
    "ibert": "weights in whole numbers",
    "idefics": "gated cross attention beside the layers of its text, and a resampler",
    "inkling2_text": "learned relative positions and short convolutions on keys and values",
    "inkling_text": "learned relative positions and short convolutions on keys and values",
    "jetmoe": "experts in its attention",
    "kosmos-2": _INNER,
    "kosmos-2.5": _INNER,
    "kyutai_speech_to_text": _CODEBOOKS,
    "led": _BLOCKS,
    "longformer": _BLOCKS,
    "luke": "embeddings of entities and attention of its own to them",
    "mobilebert": _NARROW,
    "moshi": _CODEBOOKS,
    "mra": _BLOCKS,
    "musicgen": _CODEBOOKS,
    "musicgen_melody": _CODEBOOKS,
    "nllb-moe": "experts in an encoder and a decoder",
    "nystromformer": "attention to landmarks in place of all tokens",
    "perceiver": "latents that read their input by cross attention",
    "pi0": "actions denoised beside its text",
    "prophetnet": "several streams of predictions",
    "recurrent_gemma": "recurrent layers",
    "reformer": "layers that can be reversed, and attention by hashes",
    "rembert": _NARROW,
    "retnet": _LINEAR,
    "roc_bert": "embeddings of shapes and sounds beside those of words",
    "rwkv": "layers of RWKV-4",
    "seamless_m4t": _CONVOLVED,
    "seamless_m4t_v2": _CONVOLVED,
    "siglip_vision_model": _TOWER,
    "speech-encoder-decoder": "two models of other families, joined by cross attention",
    "speecht5": _CODEBOOKS,
    "squeezebert": "grouped convolutions in place of matrices",
    "switch_transformers": "experts in an encoder and a decoder",
    "tapas": "embeddings of rows and columns of tables",
    "vision-encoder-decoder": "two models of other families, joined by cross attention",
    "xlnet": "two streams of attention over permuted tokens",
    "xlstm": "xLSTM layers",
    "yoso": "attention by hashes",
    "zamba": _SHARED,
    "zamba2": _SHARED,
}
"""`model_type` to what it has. Source: modelling classes of transformers 5.23.0, read 2026-11-29, and models of
github.com/fla-org/flash-linear-attention, read 2026-11-30."""


def refuse_by_name(config: Mapping[str, object], name: str) -> None:
    """Refuse a family that no reader understands, whatever else its config says.

    Args:
        config: the whole config; the part of its text counts, too.
        name: the name of the model.

    Raises:
        UnsupportedError: it is in the table.
    """
    text = config.get("text_config")
    for part in (config, text if isinstance(text, Mapping) else {}):
        family = part.get("model_type")
        if isinstance(family, str) and family in REFUSED:
            problem = Problem(
                what=f"model {name}: model_type is {family!r}",
                why=f"it has {REFUSED[family]}, which cannot be planned here",
                field="model_type",
            )
            raise UnsupportedError(problem, code="MW401")
