#!/bin/bash
# A launcher that starts bash once a rank, with the command in a string.
CMD="FLAG=1 python3 -u pretrain_gpt.py --deepspeed --tensor-model-parallel-size ${TP:-2}"
CMD="${CMD} --micro-batch-size 1 --num-layers 24 --hidden-size 1024 --num-attention-heads 16"
deepspeed --num_nodes 1 --num_gpus 8 --no_python /usr/bin/bash -c "$CMD"
