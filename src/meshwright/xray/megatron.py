"""One rank of Megatron-Core: its GPT model, data parallelism and pipeline schedule, under the options of a script."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from meshwright.xray import substitutes
from meshwright.xray.megatron_options import (
    Options,
    chunks_of_rank,
    configuration,
    padded_vocab,
    position_embedding,
    whole_option,
)
from meshwright.xray.tape import Missing, Tape

_MAMBA = "layers of Mamba need kernels of a GPU; --framework module runs the class in Transformers, one rank of one"
_REFUSED = {
    **dict.fromkeys(("--hybrid-layer-pattern", "--hybrid-override-pattern", "--is-hybrid-model"), _MAMBA),
    "--use-megatron-fsdp": "Megatron-FSDP moves weights by hooks on a GPU's streams",
    "--use-torch-fsdp2": "FSDP2 needs a mesh of devices that Megatron-Core makes on GPUs",
    "--overlap-moe-expert-parallel-comm": "the combined schedule runs on two streams of a GPU",
}


def trace_megatron(tape: Tape, options: Options, vocab: int, micro_batches: int | None) -> dict[str, Any]:
    """Run one step of this rank.

    Args:
        tape: what counts.
        options: the options of the launch script.
        vocab: entries of the vocabulary.
        micro_batches: the number of micro-batches to run; as many as fill the pipeline by default.

    Returns:
        Fields of `Traced` that only this framework knows.
    """
    for name, why in _REFUSED.items():
        if name in options:
            raise Missing(f"{name}: {why}")
    if "mamba" in options.get("--spec", ""):
        raise Missing(f"--spec {options['--spec']}: {_MAMBA}")
    named = [substitutes.fused_weight_gradients(tape)]
    compile_, torch.compile = torch.compile, tape.fused
    try:
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    finally:
        torch.compile = compile_
    tape.kind = "weights"
    parallel_state.initialize_model_parallel(
        whole_option(options, "--tensor-model-parallel-size", 1),
        whole_option(options, "--pipeline-model-parallel-size", 1),
        chunks_of_rank(options),
        context_parallel_size=whole_option(options, "--context-parallel-size", 1),
        expert_model_parallel_size=whole_option(options, "--expert-model-parallel-size", 1),
        expert_tensor_parallel_size=whole_option(options, "--expert-tensor-parallel-size", 0) or None,
        create_gloo_process_groups=False,
    )
    model_parallel_cuda_manual_seed(1)
    config, notes = configuration(options)
    named += _replace(tape, config)
    chunks = []
    spec = _spec(tape, config)
    padded = padded_vocab(vocab, options)
    seq_len = whole_option(options, "--seq-length", 0)
    virtual = config.virtual_pipeline_model_parallel_size
    for stage in range(virtual or 1):
        place = {} if virtual is None else {"vp_stage": stage}
        model = GPTModel(
            config,
            spec,
            vocab_size=padded,
            max_sequence_length=whole_option(options, "--max-position-embeddings", seq_len),
            pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, **place),
            post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, **place),
            share_embeddings_and_output_weights="--untie-embeddings-and-output-weights" not in options,
            position_embedding_type=position_embedding(options),
            rotary_percent=float(options.get("--rotary-percent", 1.0)),
            rotary_base=whole_option(options, "--rotary-base", 10000),
            **place,
        )
        for one in model.parameters():
            one.data = one.data.to(config.params_dtype)
        chunks.append(model)
    return _step(tape, config, options, chunks, micro_batches) | {"substitutes": named, "notes": notes}


def _replace(tape: Tape, config: Any) -> list[str]:
    """What part of Megatron-Core calls kernels of Transformer Engine or apex calls stand-ins."""
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.tensor_parallel import layers, random

    random.CudaRNGStatesTracker.fork = lambda *_, **__: nullcontext()
    layers.fused_weight_gradient_mlp_cuda = __import__("fused_weight_gradient_mlp_cuda")
    layers._grad_accum_fusion_available = True
    rope_utils.fused_apply_rotary_pos_emb = lambda x, *_, **__: substitutes.rotary(tape, x)
    if not config.multi_latent_attention:
        config.apply_rope_fusion = True
    experts = []
    if config.num_moe_experts:
        from megatron.core.transformer.moe import grouped_gemm_util, moe_utils

        moe_utils.te_general_gemm = None

        grouped_gemm_util.assert_grouped_gemm_is_available = lambda: None
        grouped_gemm_util.ops = SimpleNamespace(gmm=lambda x, w, *_, **__: substitutes.grouped_products(tape, x, w))
        experts = ["products of experts in groups (grouped_gemm)"]
    kernel = "core attention that keeps no scores (transformer_engine)"
    if config.attention_backend.name == "unfused":
        from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax

        FusedScaleMaskSoftmax.forward = lambda self, scores, *_, **__: substitutes.softmax(tape, scores)
        kernel = "scale, mask and softmax in one kernel (transformer_engine)"
    return [
        *experts,
        "norms (transformer_engine)",
        kernel,
        "rotary positions in one pass (transformer_engine)",
        "fused Adam (transformer_engine)",
    ]


def _spec(tape: Tape, config: Any) -> Any:
    """The layers of Megatron-Core itself, with norms and core attention as its usual kernels have them."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class Norm(torch.nn.Module):
        def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
            shifts = config.normalization == "LayerNorm"
            self.bias = torch.nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype)) if shifts else None
            for one in self.parameters():
                one.sequence_parallel = config.sequence_parallel

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return substitutes.fused_norm(tape, x, self.weight, self.bias)

    class CoreAttention(torch.nn.Module):
        def __init__(self, config: Any, *_: Any, **__: Any) -> None:
            super().__init__()

        def forward(self, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> torch.Tensor:
            # Transformer Engine copies inputs whose keys and values lie differently: values are a view of the product.
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
            out = substitutes.fused_attention(tape, query, key, value)
            return out.reshape(*out.shape[:2], -1)

    class Provider(gpt_layer_specs.LocalSpecProvider):
        def layer_norm(self, *_: Any, **__: Any) -> type:
            return Norm

        def core_attention(self) -> type:
            return CoreAttention if config.attention_backend.name != "unfused" else DotProductAttention

    gpt_layer_specs.LocalSpecProvider = Provider
    gpt_layer_specs.LNImpl = Norm
    from megatron.core.transformer import transformer_block

    transformer_block.LayerNormImpl = Norm
    if config.num_moe_experts:
        return gpt_layer_specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return gpt_layer_specs.get_gpt_layer_local_spec(
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        normalization=config.normalization,
    )


def _step(tape: Tape, config: Any, options: Options, chunks: list[Any], asked: int | None) -> dict[str, Any]:
    """Gradients, optimizer states, then one forward and backward pass of the schedule, then the update."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.pipeline_parallel import get_forward_backward_func

    parameters = sum(one.numel() for chunk in chunks for one in chunk.parameters())
    sharded = "--use-distributed-optimizer" in options
    wide = "--grad-reduce-in-bf16" not in options
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=wide,
        use_distributed_optimizer=sharded,
        overlap_grad_reduce="--overlap-grad-reduce" in options,
        overlap_param_gather="--overlap-param-gather" in options,
    )
    with tape.during("gradients are allocated", "gradients"):
        models = [
            DistributedDataParallel(config, ddp, chunk, disable_bucketing=number > 0)
            for number, chunk in enumerate(chunks)
        ]
    tape.rename((one for chunk in chunks for one in chunk.parameters()), "weights")
    with tape.during("optimizer is made", "optimizer"):
        optimizer = _optimizer(models, options)
        for one in _inner(optimizer):
            one.step()
    config.finalize_model_grads_func = finalize_model_grads
    if sharded and ddp.overlap_grad_reduce:
        config.no_sync_func = [one.no_sync for one in models] if len(models) > 1 else models[0].no_sync
    micro = whole_option(options, "--micro-batch-size", 1)
    sequence = whole_option(options, "--seq-length", 0)
    of_step = _micro_batches(options, micro)
    run = _to_run(config, of_step) if asked is None else min(asked, of_step)
    tokens = torch.zeros(micro, sequence // config.context_parallel_size, dtype=torch.int64)

    def forward(_: Any, model: Any) -> Any:
        out = model(tokens, tokens, None, labels=tokens)

        def loss(losses: torch.Tensor) -> Any:
            found = losses.float().mean()
            return found, {"lm loss": found.detach()}

        return out, loss

    with tape.during("forward and backward", "activations"):
        tape.collectives.clear()
        tape.operators.clear()
        for one in models:
            one.zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=[iter(()) for _ in models] if len(models) > 1 else iter(()),
            model=models if len(models) > 1 else models[0],
            num_microbatches=run,
            seq_length=sequence,
            micro_batch_size=micro,
        )
    with tape.during("update", "optimizer"):
        for one in _inner(optimizer):
            one.step()
        if sharded and not ddp.overlap_param_gather:
            for one in models:
                one.start_param_sync(force_sync=True)
    parallel_state.destroy_model_parallel()
    return {"parameters": parameters, "micro_batches": run, "of_micro_batches": of_step}


def _optimizer(models: list[Any], options: Options) -> Any:
    from megatron.core import optimizer

    optimizer.Adam, optimizer.USING_PYTORCH_OPTIMIZER = substitutes.FusedAdam, False
    made = optimizer.OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        bf16="--bf16" in options,
        fp16="--fp16" in options,
        params_dtype=torch.bfloat16 if "--bf16" in options else torch.float16 if "--fp16" in options else torch.float32,
        use_distributed_optimizer="--use-distributed-optimizer" in options,
    )
    return optimizer.get_megatron_optimizer(made, models, use_gloo_process_groups=False)


def _inner(made: Any) -> Iterator[Any]:
    for one in getattr(made, "chained_optimizers", [made]):
        if getattr(one, "optimizer", None) is not None:
            yield one.optimizer


def _micro_batches(options: Options, micro: int) -> int:
    from megatron.core import parallel_state

    replicas = parallel_state.get_data_parallel_world_size()
    return max(1, whole_option(options, "--global-batch-size", micro * replicas) // (micro * replicas))


def _to_run(config: Any, of_step: int) -> int:
    """Micro-batches to run: those that fill the pipeline and one group more; every further one is like the last."""
    stages = config.pipeline_model_parallel_size
    if config.virtual_pipeline_model_parallel_size:
        return min(of_step, 2 * stages)
    return min(of_step, stages + 1 if stages > 1 else 2)
