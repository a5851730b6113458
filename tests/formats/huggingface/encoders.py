"""Configs of encoders and encoder-decoders with their parameters, which tests and the page of models count."""

from __future__ import annotations

from typing import Any


def _t5(model: int, heads: int, layers: int, width: int, head_dim: int = 64, **more: Any) -> dict[str, Any]:
    sizes = {"d_model": model, "d_kv": head_dim, "d_ff": width, "num_layers": layers, "num_heads": heads}
    return {"model_type": "t5", "vocab_size": 32128, **sizes, **more}


def _sides(model_type: str, hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    sizes = {f"{side}_{key}": value for side in sides for key, value in (("layers", layers), ("ffn_dim", 4 * hidden))}
    sizes |= {f"{side}_attention_heads": heads for side in sides}
    return {"model_type": model_type, "d_model": hidden, **sizes, **more}


def _encoder(model_type: str, hidden: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {"model_type": model_type, **sizes, "intermediate_size": 4 * hidden, **more}


CLIP_TEXT = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
CLIP_IMAGE = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
CLIP = {
    "model_type": "clip",
    "projection_dim": 768,
    "text_config": CLIP_TEXT,
    "vision_config": {**CLIP_IMAGE, "patch_size": 14},
}
GATED: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
RELATIVE: dict[str, Any] = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "type_vocab_size": 0,
    "position_biased_input": False,
}


def _gemma_side(hidden: int, layers: int, heads: int, width: int) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {
        **sizes,
        "num_key_value_heads": heads // 2,
        "head_dim": 256,
        "intermediate_size": width,
        "vocab_size": 256000,
    }


T5GEMMA_2B = _gemma_side(2304, 26, 8, 9216)
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "t5-small": (_t5(512, 8, 6, 2048), 60_506_624),
    "t5-base": (_t5(768, 12, 12, 3072), 222_903_552),
    "t5-large": (_t5(1024, 16, 24, 4096), 737_668_096),
    "t5-3b": (_t5(1024, 32, 24, 16384, 128), 2_851_598_336),
    "t5-11b": (_t5(1024, 128, 24, 65536, 128), 11_307_321_344),
    "flan-t5-xl": (_t5(2048, 32, 24, 5120, **GATED), 2_849_757_184),
    "bart-large": (_sides("bart", 1024, 12, 16, vocab_size=50265), 406_291_456),
    "whisper-large-v3": (_sides("whisper", 1280, 32, 20, vocab_size=51866, num_mel_bins=128), 1_543_490_560),
    "bert-base": (_encoder("bert", 768, 12, 12, vocab_size=30522), 109_514_298),
    "t5gemma-2b-2b": ({"model_type": "t5gemma", "encoder": T5GEMMA_2B, "decoder": T5GEMMA_2B}, 5_596_853_760),
    "t5gemma-9b-2b": (
        {"model_type": "t5gemma", "encoder": _gemma_side(3584, 42, 16, 14336), "decoder": T5GEMMA_2B},
        12_292_375_296,
    ),
    "esm2-650m": (
        {
            **_encoder("esm", 1280, 33, 20, vocab_size=33, max_position_embeddings=1026),
            "position_embedding_type": "rotary",
        },
        651_043_254,
    ),
    "bert-large": (_encoder("bert", 1024, 24, 16, vocab_size=30522), 335_174_458),
    "roberta-base": (
        _encoder("roberta", 768, 12, 12, vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
        124_697_433,
    ),
    "umt5-small": (
        {**_t5(512, 6, 8, 1024, **GATED), "model_type": "umt5", "vocab_size": 256384},
        306_601_984,
    ),
    "mbart-large": (_sides("mbart", 1024, 12, 16, vocab_size=250027), 610_851_840),
    "pegasus-large": (_sides("pegasus", 1024, 16, 16, vocab_size=96103), 570_797_056),
    "opus-mt": (_sides("marian", 512, 6, 8, vocab_size=58101, max_position_embeddings=512), 74_410_496),
    "nllb-600m": (_sides("m2m_100", 1024, 12, 16, vocab_size=256206), 615_073_792),
    "distilbert": ({"model_type": "distilbert"}, 66_985_530),
    "modernbert-base": ({"model_type": "modernbert"}, 149_655_232),
    "deberta-v3-base": (_encoder("deberta-v2", 768, 12, 12, vocab_size=128100, **RELATIVE), 184_551_780),
    "deberta-v2-xlarge": (
        _encoder("deberta-v2", 1536, 24, 24, vocab_size=128100, conv_kernel_size=3, conv_act="gelu", **RELATIVE),
        887_085_156,
    ),
    "electra-base": (_encoder("electra", 768, 12, 12, vocab_size=30522, embedding_size=768), 109_514_298),
    "ernie-2": (_encoder("ernie", 768, 12, 12, vocab_size=30522, use_task_id=True), 109_516_602),
    "megatron-bert": (_encoder("megatron-bert", 1024, 24, 16, vocab_size=29056), 333_671_808),
    "xlm-roberta-xl": (
        _encoder("xlm-roberta-xl", 2560, 36, 32, vocab_size=250880, max_position_embeddings=514, type_vocab_size=1),
        3_482_741_760,
    ),
    "mpnet-base": (
        _encoder("mpnet", 768, 12, 12, vocab_size=30527, max_position_embeddings=514),
        109_518_527,
    ),
    "roformer": (
        _encoder("roformer", 768, 12, 12, vocab_size=50000, max_position_embeddings=1536),
        124_197_968,
    ),
    "roberta-prelayernorm": (_encoder("roberta-prelayernorm", 768, 12, 12, vocab_size=50265), 124_698_201),
    "bert-generation": (_encoder("bert-generation", 1024, 24, 16, vocab_size=50358), 354_452_662),
    "layoutlm": (_encoder("layoutlm", 768, 12, 12, vocab_size=30522), 113_250_618),
    "nomic-bert": (_encoder("nomic_bert", 768, 12, 12, vocab_size=30528), 137_354_304),
    "gte-multilingual-base": (_encoder("gte", 768, 12, 12, vocab_size=250048), 306_210_496),
    "jina-embeddings-v3": (
        _encoder("jina_embeddings_v3", 1024, 24, 16, vocab_size=250002, max_position_embeddings=8194),
        559_616_146,
    ),
    "eurobert-210m": (
        _encoder("eurobert", 768, 12, 12, vocab_size=128256, num_key_value_heads=12, tie_word_embeddings=False),
        310_266_624,
    ),
    "ettin-150m": ({"model_type": "modernbert-decoder"}, 149_655_232),
    "long-t5-tglobal-base": (
        {
            **_t5(768, 12, 12, 2048, feed_forward_proj="gated-gelu"),
            "model_type": "longt5",
            "encoder_attention_type": "transient-global",
        },
        222_913_152,
    ),
    "plbart-base": (_sides("plbart", 768, 6, 12, vocab_size=50005), 139_220_736),
    "mvp": (_sides("mvp", 1024, 12, 16, vocab_size=50267), 406_293_504),
    "blenderbot": (_sides("blenderbot", 1280, 2, 32, vocab_size=8008, max_position_embeddings=128), 102_415_360),
    "vit-l-16": (_encoder("vit", 1024, 24, 16, image_size=224, patch_size=16), 304_326_632),
    "clip-vit-l-14": (CLIP, 427_616_513),
    "siglip-base": ({"model_type": "siglip", "text_config": {}, "vision_config": {}}, 203_155_970),
}
"""Source: modelling classes of transformers 5.23.0 with the published configs."""
