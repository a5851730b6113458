#!/bin/bash
# args: 7B 2 16 2048 fp8 true
# One positional argument a setting, model sizes by case.
set -e
SIZE=$1
MBS=$2
GBS=$3
SEQ=$4
PR=$5
FL=${6:-false}
case $SIZE in
  1.8B)
    LAYERS=24; HIDDEN=2048; HEADS=16; FFN=5504
    ;;
  7B|7b)
    LAYERS=32
    HIDDEN=4096
    HEADS=32
    FFN=11008
    gqa_options=""
    ;;
  72B)
    LAYERS=80; HIDDEN=8192; HEADS=64; FFN=24576
    gqa_options=" --group-query-attention --num-query-groups 8"
    ;;
  *) echo "unknown size $SIZE"; exit 1 ;;
esac
if [ $PR = fp16 ]; then
  pr_options=" --fp16 --apply-query-key-layer-scaling"
elif [ $PR = bf16 ]; then
  pr_options=" --bf16"
elif [ "$PR" == "fp8" ]; then
  pr_options=" --bf16 --fp8-format hybrid --fp8-amax-history-len 1024"
fi
if [ "$FL" = true ]; then flash=" --use-flash-attn"; elif [ $FL = false ]; then flash=" "; fi
ITERS=$(( 1000 / ${GBS} * 2 ))
megatron_options=" \
        --num-layers ${LAYERS} \
        --hidden-size ${HIDDEN} \
        --num-attention-heads ${HEADS} \
        --ffn-hidden-size ${FFN} \
        --micro-batch-size ${MBS} \
        --global-batch-size ${GBS} \
        --seq-length ${SEQ} --train-iters ${ITERS} \
        "
run_cmd="torchrun --nproc_per_node 8 --nnodes 1 pretrain_qwen.py
 ${megatron_options} ${pr_options} ${flash} ${gqa_options}"
echo ${run_cmd}
eval ${run_cmd}
set +x
