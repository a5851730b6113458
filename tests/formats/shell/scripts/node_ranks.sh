#!/bin/bash
# The same job once a node.
HOSTS="n0 n1"
RANK_=0
for host in $HOSTS; do
  ssh $host "cd run; torchrun --nnodes 2 --node_rank $RANK_ --nproc_per_node 8 pretrain_gpt.py --micro-batch-size 1 --seed 7" &
  RANK_=$((RANK_ + 1))
done
wait
