layers_of() { if [ "$1" = deep ]; then echo 60; else echo 40; fi; }
MODEL=(--num-layers "$(layers_of $1)" --hidden-size 5120 --num-attention-heads 40)
