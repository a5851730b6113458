#!/bin/bash
# args: 70 yes
S=$1
if test $S -gt 65 && test "$2" = yes; then A=big; fi
if [ ! "$2" == "no" ] && [[ ! ( $S -lt 10 ) ]]; then B=1; fi
if [[ $S -ge 7 && $S -le 70 || $2 == no ]]; then C=mid; fi
if (( S % 8 == 6 )) && (( S > 1 )); then D=six; fi
if [[ "$2" != n* && "$2" == ye? ]]; then E=glob; fi
if [[ $2 = "y*" ]]; then F=never; else F=quoted; fi
if [ -z "${3}" ] && [ $# -eq 2 ]; then G=two; fi
if [[ abc =~ b ]] && ! [[ abc =~ ^b ]]; then H=re; fi
python pretrain_gpt.py $A $B $C $D $E $F $G $H --micro-batch-size 1
