#!/bin/bash
# asks: different
for TP in 1 2 4; do
  torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16
done
