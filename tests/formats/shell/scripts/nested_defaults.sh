#!/bin/bash
# env: B=7 EMPTY=
A=${A:-${B:-3}}
C=${EMPTY:-${A}0}
D=${EMPTY-unset}
E=${Z:="${C}1"}
F=${E:?must be there}
G="${B:+--seven $B}"
H="${NOPE:+--nope}"
python pretrain_gpt.py --a $A --c $C "--d=$D" --e $E $Z --f $F $G $H --q "${UNSET_X:-a  b}" --u ${UNSET_Y:-c  d}
