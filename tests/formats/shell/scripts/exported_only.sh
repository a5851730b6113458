#!/bin/bash
HIDDEN=1024
export LAYERS=24
set -a
HEADS=16
set +a
srun -n 8 bash -c 'python pretrain_gpt.py --num-layers $LAYERS --hidden-size ${HIDDEN:-4096} --num-attention-heads $HEADS --rank $0 $1' zero one
