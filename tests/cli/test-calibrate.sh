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
refuses "no GPUs" "--gpus: 0 is not from 1 to 16" --out "$work/x.ini" --gpus 0
refuses "a context of nothing" "--max-context: 1 is not from 128" --out "$work/x.ini" \
  --max-context 1
refuses "an argument" "" --out "$work/x.ini" here
run "$octet" calibrate --out "$work/x.ini" --model no-such-model
is "$status" 1 "an unknown model fails"
has "$err" "no-such-model" "and is named"
run "$octet" calibrate --out "$work/none/x.ini"
is "$status" 1 "a profile that cannot be written is refused"
has "$err" "none/x.ini" "before anything is measured"
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

# --- the steps of a run on the twin cost what its profile says they cost
run "$octet" replay gen:chat-150,rate=4,requests=20 --model llama-3.1-8b --node h200x1 \
  --backend "record:steps=$work/steps.jsonl@simgrid:node=h200x1"
case $err in
  *'no backend "simgrid"'*) skip "steps of a twin" "no SimGrid in this build" ;;
  *)
    is "$status" 0 "a replay logs its steps"
    run "$octet" validate --steps "$work/steps.jsonl" --model llama-3.1-8b --node h200x1 --json -
    is "$status" 0 "and they are priced"
    has "$(printf '%s' "$out" | tr -d ' \n')" '"got_percent":0.0' "without any error"
    ;;
esac
run "$octet" validate --steps "$work/none" --node h200x1
is "$status" 2 "steps without their model are wrong usage"
has "$err" "needs the --model" "and it says why"
run "$octet" validate --steps "$work/none" --node h200x1 --model llama-3.1-8b
is "$status" 1 "a log that is not there fails"
done_testing
