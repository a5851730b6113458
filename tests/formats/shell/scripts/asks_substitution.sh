#!/bin/bash
# asks: nvidia-smi GPU_NAME
GPU_NAME=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
if [[ $GPU_NAME == *H100* ]]; then PP=1; else PP=4; fi
torchrun --nproc_per_node 8 pretrain_gpt.py --pipeline-model-parallel-size $PP \
  --micro-batch-size 1 --num-layers 24 --hidden-size 1024 --num-attention-heads 16
