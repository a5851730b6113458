#!/bin/bash
ARGS=""
for i in 1 2 3; do
  [ $i -eq 2 ] && continue
  ARGS="$ARGS --stage $i"
done
for kind in {a..c}x{1,2}; do ARGS+=" $kind"; done
n=0
while [ $n -lt 10 ]; do n=$((n+1)); if (( n == 4 )); then break; fi; done
until [ $n -ge 6 ]; do ((n++)); done
for x in $(seq 2 2 6); do S="$S,$x"; done
for ((i=0, j=8; i<j; i+=2, j--)); do :; done
IFS=',' read -ra PARTS <<< "q,r,s"
IFS=: read -r one two <<< "u:v:w"
python pretrain_gpt.py $ARGS --n $n --s ${S#,} --i $i --j $j --parts "${PARTS[1]}" ${#PARTS[@]} --one $one --two $two
