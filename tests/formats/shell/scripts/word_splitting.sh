#!/bin/bash
OPTS="--a 1   --b 'two words'
--c"
EMPTY=
ARR=("x y" z)
SPACES="  lead trail  "
python pretrain_gpt.py $OPTS "$OPTS" $EMPTY "$EMPTY" ${ARR[@]} "${ARR[@]}" "${ARR[*]}" ${ARR[*]} pre$SPACES"post" "pre${ARR[@]}post" --n=$EMPTY
