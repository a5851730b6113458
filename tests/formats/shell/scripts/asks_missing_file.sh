#!/bin/bash
# asks: cluster_sizes.sh
source ./cluster_sizes.sh
torchrun --nproc_per_node 8 --nnodes $NODES pretrain_gpt.py --tensor-model-parallel-size $TP --micro-batch-size 1 \
  --num-layers 24 --hidden-size 1024 --num-attention-heads 16
