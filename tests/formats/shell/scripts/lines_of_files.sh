#!/bin/bash
# Lines of files and of what commands print become words.
mapfile -t FLAGS < <(grep -v '^#' _flags.txt)
readarray -t LINES < _flags.txt
while IFS== read -r name value; do
  [ -z "$name" ] && continue
  export "$name=$value"
done < _sizes.env
export $(grep -v '^#' _more.env | xargs)
[ -f _flags.txt ] && SEEN=1
torchrun pretrain_gpt.py ${FLAGS[@]} "${#LINES[@]}" $(<_flags.txt) $(head -n 1 _flags.txt) $(sed -n '2p' _flags.txt) \
  --num-layers $LAYERS --hidden-size $HIDDEN --seq-length $LENGTH --seen $SEEN $(seq -s, 3) $(seq 3 | paste -sd+)
