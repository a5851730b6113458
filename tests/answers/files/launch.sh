#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \
  --seq-length 4096 --max-position-embeddings 131072 --vocab-size 128256 --untie-embeddings-and-output-weights \
  --disable-bias-linear --position-embedding-type rope --bf16 \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --sequence-parallel \
  --use-distributed-optimizer --micro-batch-size 1 --global-batch-size 128
