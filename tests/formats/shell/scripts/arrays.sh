#!/usr/bin/env bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
NODES=4
WORLD=$(($GPUS*$NODES))
DIST=(
    --nproc_per_node $GPUS
    --nnodes $NODES   # all of them
)
MODEL_ARGS=(
    --num-layers 32
    # a comment between
    --hidden-size 4096
    --num-attention-heads 32
    --moe-layer-freq '([0]*1+[1]*31)'
)
TRAIN=(--micro-batch-size 1 --global-batch-size $((WORLD * 16)) --lr 3.0e-4)
[[ $WORLD -gt 16 ]] && TRAIN+=(--use-distributed-optimizer --overlap-grad-reduce)
TRAIN+=("--save" "out dir/$NODES nodes")
torchrun ${DIST[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    "${TRAIN[@]}" "${NOTHING[@]}" \
    --split 949,50,1
