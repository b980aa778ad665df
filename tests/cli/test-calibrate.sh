#!/bin/sh
# octet calibrate: what it refuses, and what it says where there is nothing to measure.
. "$OCT_SRCDIR/tests/tap"

refuses() { # CLAIM PART ARGUMENTS…
  claim=$1 part=$2
  shift 2
  run "$octet" calibrate "$@"
  is "$status" 2 "$claim is wrong usage"
  has "$err" "$part" "$claim says why"
}
refuses "no file" "--out: the file"
refuses "too many GPUs" "--gpus: 17 is not from 1 to 16" --out "$work/x.ini" --gpus 17
refuses "a context of nothing" "--max-context: 1 is not from 128" --out "$work/x.ini" \
  --max-context 1
refuses "an argument" "" --out "$work/x.ini" here
run "$octet" calibrate --out "$work/x.ini" --model no-such-model
is "$status" 1 "an unknown model fails"
has "$err" "no-such-model" "and is named"
if [ -e /dev/nvidiactl ]; then
  skip "a machine without a GPU" "this one has"
else
  run "$octet" calibrate --out "$work/x.ini"
  is "$status" 1 "without a GPU it fails"
  case $err in
    *"built without CUDA"* | *"no GPU"*) ok 0 "and says what is missing" ;;
    *) ok 1 "and says what is missing" ;;
  esac
  ok "$([ ! -e "$work/x.ini" ]; echo $?)" "and writes nothing"
fi
done_testing
