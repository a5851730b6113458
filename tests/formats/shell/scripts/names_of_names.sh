#!/bin/bash
# Variables that stand for others, groups of an expression, entries that are unset, branches that go on.
SIZE=llama-70b
[[ $SIZE =~ ([0-9]+)b$ ]] && BILLIONS=${BASH_REMATCH[1]}
case $SIZE in llama*) FAMILY=llama ;;& *70b) LAYERS=80 ;; *) LAYERS=1 ;; esac
add() { local -n into=$1; shift; into+=("$@"); }
declare -n depth=LAYERS
ARGS=(first)
add ARGS --num-layers "$depth" --name "a b"
unset 'ARGS[0]'
OPT_A=1 OPT_B=2
SIZES=(10 20 30)
torchrun pretrain_gpt.py "${ARGS[@]}" $BILLIONS $FAMILY "${SIZES[@]/#/--s=}" "${SIZES[@]/%/k}" ${!OPT_@} \
  "${SIZES[${#SIZES[@]}-1]}" $(printf -- '--%s=%d ' tp 2 pp 4) node{01..03} {a..e..2} ${SIZE@Q} ${SIZE@U}
