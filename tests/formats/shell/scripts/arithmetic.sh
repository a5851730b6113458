#!/bin/bash
TP=8; PP=4; NODES=32; GPUS=8
let WORLD=NODES*GPUS
DP=$((WORLD / (TP * PP)))
(( GBS = DP * 64 ))
GBS=$(( GBS > 1024 ? 1024 : GBS ))
((MBS = 1 << 1, MBS--))
ACC=$[GBS / MBS / DP]
ITERS=`expr 3000000 / $GBS`
WARM=$(echo "$ITERS * 2 / 100" | bc)
i=5; ((i++)); ((i += 2)) || true
HEX=$((0x10 + 010)) NEG=$((-7 / 2)) MOD=$((-7 % 3)) POW=$((2**10))
X=3; Y=$((X == 3 && NODES != 4)); Z=$(( !Y )); B=$(( (X | 4) & ~1 ))
python pretrain_gpt.py --dp $DP --global-batch-size $GBS --micro-batch-size $MBS --acc $ACC --train-iters $ITERS \
  --warm $WARM --i $i $HEX $NEG $MOD $POW $Y $Z $B
