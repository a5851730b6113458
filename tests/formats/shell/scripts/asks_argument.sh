#!/bin/bash
# asks: --arg --tensor-model-parallel-size
MODEL_SIZE=$1
TP=$2
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --name $MODEL_SIZE
