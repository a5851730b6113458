#!/bin/bash
# args: -t 8 -p4 -v -n run1 extra
TP=1; PP=1; VERBOSE=0
while getopts "t:p:n:vh" opt; do
  case ${opt} in
    t) TP=$OPTARG ;;
    p) PP=${OPTARG} ;;
    n) NAME=$OPTARG ;;
    v) VERBOSE=1 ;;
    h|\?) echo usage; exit 1 ;;
  esac
done
shift $((OPTIND - 1))
python pretrain_gpt.py --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --name $NAME --v $VERBOSE --left "$@"
