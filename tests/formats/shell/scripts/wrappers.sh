#!/bin/bash
export OMP_NUM_THREADS=1
CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_DEBUG=WARN nohup env WANDB_MODE=offline \
  python3 -m torch.distributed.run --nproc-per-node 4 --standalone pretrain_gpt.py --micro-batch-size 1 \
  --num-layers 12 > log.txt 2> err.txt < /dev/null &
wait
