#!/bin/bash
# One script a size calls the common one with arguments and exports.
export TP=4 PP=2
MBS=1 GBS=512
export MBS
DIR=$(cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd)
GBS=$GBS bash "$DIR/_common_launch.sh" 40 5120 "$@"
