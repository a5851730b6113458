#!/bin/bash
# args: 13b
TABLE="7b 32 4096
13b 40 5120
70b 80 8192"
while read -r name layers hidden; do
  if [ "$name" = "$1" ]; then LAYERS=$layers; HIDDEN=$hidden; fi
done <<< "$TABLE"
python pretrain_gpt.py --num-layers $LAYERS --hidden-size $HIDDEN --micro-batch-size 1
