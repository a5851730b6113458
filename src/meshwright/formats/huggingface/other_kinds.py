"""Configs of an unknown family that describe no text model: what their keys say they are, in place of missing sizes."""

from __future__ import annotations

from collections.abc import Mapping

from meshwright.errors import Problem, UnsupportedError
from meshwright.formats.huggingface.nested import SHAPE, TextPart
from meshwright.formats.huggingface.spellings import SPELLINGS

_VOCAB = ("vocab_size", *SPELLINGS["vocab_size"], "embedding_size")
_SIDES = ("encoder_layers", "num_encoder_layers", "decoder_layers", "num_decoder_layers")
_BERT = (
    'write "model_type": "bert" if its layers are those of BERT, and "roberta" if its positions are counted as there'
)

EVIDENCE: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "two encoders side by side, trained to agree on pairs",
        ("logit_scale_init_value", "logit_scale_init", "logit_scale_initial_value"),
    ),
    (
        "a forecaster of series of numbers",
        (
            *("prediction_length", "horizon_lengths", "horizon_length", "forecast_horizon", "patch_length"),
            *("distribution_output", "lags_sequence", "num_time_features", "quantiles", "input_token_len"),
        ),
    ),
    (
        "a model of sound",
        (
            *("num_mel_bins", "n_mels", "mel_bins", "sampling_rate", "sample_rate", "audio_channels", "hop_length"),
            *("upsample_rates", "num_codebooks", "n_codebooks", "n_vq", "codebook_dim", "speaker_embedding_dim"),
            *("num_quantizers", "feat_extract_norm", "spectrogram_length", "encodec_config", "frame_rate"),
        ),
    ),
    (
        "a model of images",
        (
            *("image_size", "img_size", "input_size", "patch_size", "num_channels", "in_channels", "in_chans"),
            *("backbone", "backbone_config", "depths", "width_coefficient", "depth_multiplier", "hidden_sizes"),
            *("vq_config", "num_queries", "window_size", "mask_ratio", "embed_dims"),
        ),
    ),
)
"""What a config describes, and the keys that only configs of that kind have; the first kind with one of them counts.
Source: configuration classes of transformers 5.23.0."""


def refuse_other_kind(text: TextPart, name: str) -> None:
    """Refuse what describes no text model, by what its keys say it is.

    Args:
        text: the part that would be read as a decoder of an unknown family.
        name: what the model is called.

    Raises:
        UnsupportedError: it has no vocabulary, or is an encoder, or stands beside one.
    """
    config, said, path = text.config, text.said, text.path
    pair = next((key for key in EVIDENCE[0][1] if text.outer is not None and text.outer.get(key) is not None), None)
    if pair is not None:
        fix = "plan its text alone if that is a decoder: pass that part as a config of its own"
        raise _refused(said, name, path, f"it is one of {EVIDENCE[0][0]} ({pair})", fix)
    joined = [key for key in ("is_encoder_decoder", *_SIDES) if config.get(key)]
    if joined:
        why = f"an encoder stands beside its decoder ({', '.join(joined[:2])}), and how they are joined is unknown"
        raise _refused(said, name, path, why, 'write "model_type": "bart" or "t5" if its layers are those of one')
    if config.get("type_vocab_size"):
        why = "a table of token types (type_vocab_size) means an encoder as BERT is, and of which layers is unknown"
        raise _refused(said, name, path, why, _BERT)
    if any(config.get(key) is not None for key in _VOCAB):
        return
    seen = evidence(config)
    parts = [
        f"{key} ({value.get('model_type')})"
        for key, value in config.items()
        if isinstance(value, Mapping) and isinstance(value.get("model_type"), str)
    ]
    if len(parts) > 1:
        why = f"it joins models in a way of its own: {', '.join(parts[:4])}"
        raise _refused(said, name, path, why, "plan them one by one: pass each of these parts as a config of its own")
    if seen:
        fix = "pass the config.json of a model with text in it; what it sees or hears may stand beside that"
        raise _refused(said, name, path, f"it has no vocabulary, and {seen}", fix)
    if not any(key in config for size in SHAPE for key in (size, *SPELLINGS[size])):
        why = f"it states none of {', '.join(sorted(SHAPE))}, under these or any known names"
        fix = "write the sizes under these names; those of code beside the weights are not known here"
        raise _refused(said, name, path, why, fix)


def evidence(config: Mapping[str, object]) -> str:
    """What the keys of a config say that it describes, such as "image_size, patch_size are those of a model of images".

    Args:
        config: a config of any family.

    Returns:
        The clause, empty where no key says it.
    """
    for kind, keys in EVIDENCE:
        found = [key for key in keys if config.get(key) is not None]
        if found:
            shown = ", ".join(found[:3])
            return f"{shown} {'are keys' if len(found) > 1 else 'is a key'} of {kind}"
    return ""


def _refused(said: str, name: str, path: str, why: str, fix: str) -> UnsupportedError:
    field = f"{path}model_type"
    what = f"model {name}: {field} {f'{said!r} is unknown' if said else 'is missing'}"
    return UnsupportedError(Problem(what=what, why=why, fix=fix, field=field), code="MW401")
