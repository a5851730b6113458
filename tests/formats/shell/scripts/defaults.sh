#!/bin/bash
# env: SEQ=8192
# Sizes with defaults that the environment may set.
: "${MODEL:=8b}"
: "${MBS:=1}"
: "${GBS:=256}"
SEQ=${SEQ:=4096}
TP=${TP:-2}
PP=${PP-1}
EXTRA=${EXTRA:+--log-throughput}
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
torchrun --nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES:-2} \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --micro-batch-size "$MBS" --global-batch-size "${GBS}" \
    --seq-length $SEQ --save "ckpt/${MODEL}" $EXTRA --bf16
