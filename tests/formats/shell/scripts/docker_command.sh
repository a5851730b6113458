#!/bin/bash
TP=4
LAUNCH="torchrun --nproc_per_node=8"
ARGS="--tensor-model-parallel-size ${TP} --micro-batch-size 1"
docker run --gpus all --rm image:24.05 bash -c "cd . && export X=1 && ${LAUNCH} pretrain_gpt.py ${ARGS} --x \$X"
