#!/bin/bash
A=one\
two
B="three\
four" C='five\
six'
torchrun \
  --nproc_per_node 8 \
  pretrain_gpt.py --a $A --b $B --c "$C" \
  `# a comment in a substitution` --micro-batch-size 1 \
  --last
