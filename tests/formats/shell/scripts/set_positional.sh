#!/bin/bash
# args: a b
set -- "$@" --micro-batch-size 1
set -e -o pipefail
FIRST=$1; shift
python pretrain_gpt.py --first $FIRST --count $# --all "$*" "$@" ${2} ${10:-none} "${@:2}" "${@:1:1}"
