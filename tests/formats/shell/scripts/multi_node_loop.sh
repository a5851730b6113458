#!/bin/bash
NODES=(node1 node2 node3)
NNODES=${#NODES[@]}
for i in "${!NODES[@]}"; do
  node=${NODES[$i]}
  ARGS="--nnodes=$NNODES --node_rank=$i --nproc_per_node=8"
  ssh $node "torchrun $ARGS pretrain_gpt.py --micro-batch-size 1 --global-batch-size $((NNODES*8))"
done
