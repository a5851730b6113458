"""Options that Megatron-LM had before, and those of Megatron-DeepSpeed and MindSpeed, with what says the same today.

Source of MindSpeed's: mindspeed_llm/training/arguments.py of https://gitcode.com/Ascend/MindSpeed-LLM (2025).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An option under its earlier name."""

    meaning: str
    """What it was taken for, behind "is"."""
    gives: tuple[tuple[str, str | None], ...] = ()
    """Today's options, each with its value; None for the value that was given, empty for a switch."""
    takes: bool = False
    """Whether it has a value."""
    values: tuple[tuple[str, str], ...] = ()
    """Values of the earlier option, each with today's; those not listed are the same."""


_FULL = (
    ("--recompute-granularity", "full"),
    ("--recompute-method", "uniform"),
    ("--recompute-num-layers", "1"),
)


def _renamed(name: str, *, takes: bool = True) -> Earlier:
    return Earlier(meaning=f"today's {name}", gives=((name, None if takes else ""),), takes=takes)


def _gone(why: str, *, takes: bool = False) -> Earlier:
    return Earlier(meaning=why, takes=takes)


def _own(name: str, meaning: str, *, takes: bool = True) -> Earlier:
    """An option that is kept under its own name, for who reads the fork."""
    return Earlier(meaning=f"of MindSpeed, {meaning}", gives=((name, None if takes else ""),), takes=takes)


MINDSPEED = {
    **dict.fromkeys(
        (
            *("--use-fused-rmsnorm", "--use-fused-swiglu", "--use-fused-rotary-pos-emb", "--lora-fusion"),
            *("--use-fused-moe-token-permute-and-unpermute", "--gemm-gradient-accumulation-fusion", "--mla-mm-split"),
            *("--use-fused-mlp", "--use-fused-ring-attention-update"),
        ),
        _gone("of MindSpeed, a kernel that does at once what others do in turn"),
    ),
    **dict.fromkeys(
        (
            *("--tokenizer-not-use-fast", "--is-instruction-dataset", "--use-deter-comp", "--no-shared-storage"),
            *("--norm-topk-prob", "--seq-aux", "--router-gating-in-fp32", "--mtp-mem-efficient-logits"),
            *("--mla-fa-without-pad", "--jit-compile", "--enable-hf2mg-convert", "--enable-mg2hf-convert"),
            *("--no-chat-template", "--hf-chat-template", "--padded-samples", "--npu-deterministic", "--no-shuffle"),
            *("--topk-softmax-in-fp32", "--init-norm-weight-in-fp32", "--rmsnorm-weight-in-fp32"),
            *("--add-rmsnorm-offset", "--input-layernorm-in-fp32", "--disable-gloo-group", "--use-glm-rope"),
            *("--use-kv-cache", "--lora-ckpt-filter", "--no-enable-linear-qkv", "--neat-pack", "--pack"),
        ),
        _gone("of MindSpeed, without effect on a plan"),
    ),
    **dict.fromkeys(
        (
            *("--prompt-type", "--lora-alpha", "--rope-scaling-beta-fast"),
            *("--rope-scaling-beta-slow", "--rope-scaling-mscale", "--rope-scaling-mscale-all-dim"),
            *("--rope-scaling-original-max-position-embeddings", "--swap-optimizer-times", "--lora-load"),
            *("--handler-name", "--model-type-hf", "--ai-framework", "--max-new-tokens", "--beta-fast", "--beta-slow"),
            *("--shape-order", "--low-freq-factor", "--high-freq-factor", "--original-max-position-embeddings"),
            *("--long-factor", "--short-factor", "--longrope-freqs-type", "--long-mscale", "--short-mscale"),
            *("--tokenizer-padding-side", "--pad-to-multiple-of", "--hf-cfg-dir", "--evaluation-batch-size"),
            *("--partial-rotary-factor", "--coc-parallel-num", "--coc-mode", "--enable-thinking"),
        ),
        _gone("of MindSpeed, without effect on a plan", takes=True),
    ),
    **dict.fromkeys(
        ("--variable-seq-lengths", "--no-pad-to-seq-lengths"),
        _gone("of MindSpeed, shorter batches where samples are: those of full length are planned"),
    ),
    **dict.fromkeys(
        ("--use-ascend-coc", "--coc-fused-kernel", "--use-ascend-mc2"),
        _gone("of MindSpeed, sums over tensor ranks beside the products that make them, which is priced without"),
    ),
    "--use-cp-send-recv-overlap": _gone("of MindSpeed, exchanges of the ring both ways at once, priced as any ring"),
    "--reuse-fp32-param": _gone(
        "of MindSpeed, main copies that hold the 16-bit weights too: 2 bytes a parameter less than is priced"
    ),
    "--num-layer-list": _own("--num-layer-list", "layers of each stage"),
    **dict.fromkeys(
        ("--moe-permutation-async-comm", "--moe-alltoall-overlap-comm"),
        _gone("of MindSpeed, exchanges of tokens beside other work, which is priced without"),
    ),
    "--context-parallel-algo": Earlier(
        meaning="of MindSpeed, today's --cp-comm-type",
        gives=(("--cp-comm-type", None),),
        takes=True,
        values=(("ulysses_cp_algo", "a2a"), ("megatron_cp_algo", "p2p")),
    ),
    "--multi-head-latent-attention": Earlier(
        meaning="of MindSpeed, today's --multi-latent-attention", gives=(("--multi-latent-attention", ""),)
    ),
    "--rope-scaling-type": Earlier(
        meaning="of MindSpeed, today's --rope-type", gives=(("--rope-type", None),), takes=True
    ),
    "--moe-fb-overlap": _own("--moe-fb-overlap", "exchanges of tokens beside another micro-batch", takes=False),
    "--shared-expert-gate": Earlier(
        meaning="of MindSpeed, today's --moe-shared-expert-gate", gives=(("--moe-shared-expert-gate", ""),)
    ),
    **{
        f"--{own}": Earlier(meaning=f"of MindSpeed, today's --{name}", gives=((f"--{name}", None),), takes=True)
        for own, name in (
            ("qk-rope-head-dim", "qk-pos-emb-head-dim"),
            ("qk-nope-head-dim", "qk-head-dim"),
            ("moe-intermediate-size", "moe-ffn-hidden-size"),
            ("n-group", "moe-router-num-groups"),
            ("topk-group", "moe-router-group-topk"),
            ("routed-scaling-factor", "moe-router-topk-scaling-factor"),
        )
    },
    "--first-k-dense-replace": _own("--first-k-dense-replace", "layers before those with experts"),
    "--n-shared-experts": _own("--n-shared-experts", "experts of every token, each as wide as the others"),
    "--moe-tp-extend-ep": _own("--moe-tp-extend-ep", "experts spread over tensor ranks too", takes=False),
    "--noop-layers": _own("--noop-layers", "layers that pass on what they get"),
    "--schedules-method": _own("--schedules-method", "the schedule of the pipeline"),
    "--swap-optimizer": _own("--swap-optimizer", "states of the optimizer in the host's memory", takes=False),
    "--lora-r": _own("--lora-r", "the rank of adapters"),
    "--stage": _gone("of MindSpeed, what samples are: one pass over each sequence", takes=True),
}
"""Options of MindSpeed-LLM alone; `mindspeed.py` reads those that are kept under their own name."""


EXPERTS_OVER_DATA = "--moe-expert-model-parallelism"
EARLIER = {
    "--checkpoint-activations": Earlier(meaning="full recompute, today's --recompute-granularity full", gives=_FULL),
    "--checkpoint-num-layers": _renamed("--recompute-num-layers"),
    "--activations-checkpoint-method": _renamed("--recompute-method"),
    "--activations-checkpoint-num-layers": _renamed("--recompute-num-layers"),
    "--distribute-checkpointed-activations": _renamed("--distribute-saved-activations", takes=False),
    "--model-parallel-size": _renamed("--tensor-model-parallel-size"),
    "--batch-size": _renamed("--micro-batch-size"),
    "--use-rotary-emb": Earlier(
        meaning="today's --position-embedding-type rope", gives=(("--position-embedding-type", "rope"),)
    ),
    "--deepspeed-activation-checkpointing": _gone("how DeepSpeed recomputes, beside --checkpoint-activations"),
    "--deepspeed": Earlier(meaning="of Megatron-DeepSpeed, whose script is read", gives=(("--deepspeed", ""),)),
    "--deepspeed_config": Earlier(
        meaning="the file of DeepSpeed, of which --zero-stage is read here",
        gives=(("--deepspeed_config", None),),
        takes=True,
    ),
    "--zero-stage": Earlier(
        meaning="of DeepSpeed, read as the stage of ZeRO", gives=(("--zero-stage", None),), takes=True
    ),
    "--num-key-value-heads": Earlier(
        meaning="today's --num-query-groups",
        gives=(("--group-query-attention", ""), ("--num-query-groups", None)),
        takes=True,
    ),
    "--attention-head-type": Earlier(
        meaning="of BigCode's fork, heads that share keys and values or have their own",
        gives=(("--attention-head-type", None),),
        takes=True,
    ),
    "--layernorm-epsilon": _renamed("--norm-epsilon"),
    "--rotary-position-embeddings-theta": _renamed("--rotary-base"),
    "--topk": _renamed("--moe-router-topk"),
    "--moe-num-experts": _renamed("--num-experts"),
    "--moe-top-k": _renamed("--moe-router-topk"),
    "--moe-loss-weight": _gone("without effect on a plan here", takes=True),
    "--moe-capacity-factor": _renamed("--moe-expert-capacity-factor"),
    EXPERTS_OVER_DATA: Earlier(
        meaning="of MegaBlocks' fork, experts spread over the data ranks", gives=((EXPERTS_OVER_DATA, ""),)
    ),
    "--local_rank": _gone("set by the launcher", takes=True),
    "--local-rank": _gone("set by the launcher", takes=True),
    "--cpu-optimizer": _renamed("--optimizer-cpu-offload", takes=False),
    "--no-pipeline-parallel": Earlier(
        meaning="of Megatron-DeepSpeed, no pipeline: without it there is one of a single stage",
        gives=(("--no-pipeline-parallel", ""),),
    ),
    "--enable-zbh1-pipeline": Earlier(
        meaning="of Megatron-DeepSpeed, the zero-bubble schedule zb-h1", gives=(("--enable-zbh1-pipeline", ""),)
    ),
    "--expert-interval": Earlier(
        meaning="of Megatron-DeepSpeed, layers of which one has experts",
        gives=(("--expert-interval", None),),
        takes=True,
    ),
    "--enable-expert-tensor-parallelism": Earlier(
        meaning="of Megatron-DeepSpeed, experts cut over tensor ranks",
        gives=(("--enable-expert-tensor-parallelism", ""),),
    ),
    "--moe-expert-parallel-size": _renamed("--expert-model-parallel-size"),
    "--ds-sequence-parallel-size": Earlier(
        meaning="Ulysses, today's --context-parallel-size with --cp-comm-type a2a",
        gives=(("--context-parallel-size", None), ("--cp-comm-type", "a2a")),
        takes=True,
    ),
    "--moe-loss-coeff": _gone("without effect on a plan here", takes=True),
    "--train-tokens": _gone("without effect on a plan here", takes=True),
    "--lr-decay-tokens": _gone("without effect on a plan here", takes=True),
    "--lr-warmup-tokens": _gone("without effect on a plan here", takes=True),
    "--log-optimizer-states-to-tensorboard": _gone("without effect on a plan here"),
    "--data-impl": _gone("gone: there is one kind of data", takes=True),
    "--log-batch-size-to-tensorboard": _gone("gone"),
    "--DDP-impl": _gone("gone: there is one implementation", takes=True),
    "--use-flash-attn-v2": _renamed("--use-flash-attn", takes=False),
    "--use-flash-attn-triton": _renamed("--use-flash-attn", takes=False),
    "--no-scaled-masked-softmax-fusion": _gone("gone"),
    "--scaled-upper-triang-masked-softmax-fusion": _gone("gone"),
    "--no-async-tensor-model-parallel-allreduce": _gone("without effect on a plan here"),
    "--no-query-key-layer-scaling": _gone("today's default"),
    "--no-scatter-gather-tensors-in-pipeline": _gone("today's default: each tensor rank sends its whole tensor"),
    "--use-legacy-models": _gone("gone: its layers are those of Megatron-Core"),
    "--hybrid-attention-ratio": Earlier(
        meaning="of earlier hybrids of Mamba, today's --hybrid-layer-pattern",
        gives=(("--is-hybrid-model", ""),),
        takes=True,
    ),
    "--hybrid-mlp-ratio": Earlier(
        meaning="of earlier hybrids of Mamba, today's --hybrid-layer-pattern",
        gives=(("--is-hybrid-model", ""),),
        takes=True,
    ),
    **MINDSPEED,
    "--tokenizer-name-or-path": _gone("of forks, whose vocabulary the options say", takes=True),
    "--use-mpi": _gone("of forks, whose processes MPI starts"),
}
