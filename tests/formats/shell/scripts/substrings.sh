#!/bin/bash
# args: llama-3.1-70b node01:29500,node02:29500
NAME=$1
SIZE=${NAME##*-}
FAMILY=${NAME%%-*}
VERSION=${NAME#*-}; VERSION=${VERSION%-*}
NUM=${SIZE%b}
FIRST=${2%%,*}
HOST=${FIRST%:*} PORT=${FIRST#*:}
UPPER=${FAMILY^^} 
CUT=${NAME:6:3} LAST=${NAME: -3} TAIL=${NAME:$((6+0))}
DOTS=${NAME//./_} ONE=${NAME/l/L} PRE=${NAME/#llama/gpt} POST=${NAME/%70b/8b} GONE=${NAME//[0-9.]/}
torchrun --master_addr $HOST --master_port ${PORT} pretrain_gpt.py --size $NUM --name ${UPPER,,} $UPPER "$VERSION" \
  $CUT $LAST $TAIL $DOTS $ONE $PRE $POST $GONE --len ${#NAME} --micro-batch-size 1
