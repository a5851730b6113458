#!/bin/bash
# args: 13b
declare -A LAYERS=([7b]=32 [13b]=40 ["70b"]=80)
declare -A HIDDEN
HIDDEN[7b]=4096; HIDDEN[13b]=5120
SIZE=$1
SIZES=(7b 13b 70b)
declare -i COUNT=${#SIZES[@]}*2
KEYS="${#LAYERS[@]}"
ARR=([2]=c [0]=a b)
ARR[5]=z
python pretrain_gpt.py --num-layers ${LAYERS[$SIZE]} --hidden-size "${HIDDEN[$SIZE]}" --count $COUNT --keys $KEYS \
  --last ${SIZES[-1]} --second ${SIZES[1]} --rest "${SIZES[@]:1}" --some ${SIZES[@]:0:2} --indices ${!ARR[@]} --arr "${ARR[@]}"
