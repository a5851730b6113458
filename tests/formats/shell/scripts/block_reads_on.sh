#!/bin/bash
# A block that prints to a file takes its line from what is given around it: the next `read` takes the next line.
sizes() {
  { read -r LAYERS; echo "$LAYERS"; } > layers.txt
  read -r HIDDEN
  python pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --micro-batch-size $(cat layers.txt) > log.txt
}
sizes <<EOF
32
4096
EOF
