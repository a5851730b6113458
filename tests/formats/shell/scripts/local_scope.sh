#!/bin/bash
LAYERS=24
set_size() { local LAYERS=96 HIDDEN; HIDDEN=12288; SIZE="$LAYERS/$HIDDEN"; }
outer() { local NAME=$1; shift; inner "$@"; RESULT="$NAME:$RESULT"; }
inner() { RESULT="$#:$1"; return 0; echo never; }
set_size
outer run a "b c"
count() { if [ $1 -gt 0 ]; then COUNTED+="$1 "; count $(($1 - 1)); fi; }
count 3
python pretrain_gpt.py --num-layers $LAYERS --size $SIZE --hidden "${HIDDEN:-none}" --result "$RESULT" --counted $COUNTED
