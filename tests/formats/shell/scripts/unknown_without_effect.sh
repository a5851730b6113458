#!/bin/bash
# What nobody knows here changes no word that matters.
STAMP=$(date +%s)
HOST=$(hostname)
if [ -f ckpt/latest.txt ]; then LOAD="--load ckpt"; else LOAD=""; fi
mkdir -p logs/$STAMP && echo "starting on $HOST"
torchrun --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --tensorboard-dir logs/$STAMP --exit-signal-handler
