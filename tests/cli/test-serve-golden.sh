#!/bin/sh
# octet serve of golden checkpoints, asked over HTTP: the tokens are the reference's, whole and
# streamed, on the backends that this machine has. OCT_GOLDEN_MODELS chooses the checkpoints.
. "$OCT_SRCDIR/tests/tap"

pids=
trap 'for p in $pids; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
golden="$OCT_SRCDIR/tests/golden/hf"

if ! command -v curl >/dev/null; then
  skip "golden checkpoints are served" "no curl"
  done_testing
fi

# numbers FILE NAME: the 32-bit integers of a tensor, separated by commas.
numbers() {
  head_bytes=$(od -An -tu8 -N8 "$1" | tr -d ' ')
  range=$(dd if="$1" bs=1 skip=8 count="$head_bytes" 2>/dev/null |
    sed -n "s/.*\"$2\":{[^}]*\"data_offsets\":\[\([0-9]*\),\([0-9]*\)\].*/\1 \2/p")
  first=${range% *} end=${range#* }
  dd if="$1" bs=1 skip=$((8 + head_bytes + first)) count=$((end - first)) 2>/dev/null |
    od -An -v -td4 | tr -s ' \n' ',' | sed 's/^,//; s/,$//'
}

pages="--num-gpu-blocks-override 64"

# begin MODEL WORLD FLAGS: a server in the background, its log in $work/MODEL.out and .err.
begin() {
  model=$1 backend=$2
  shift 2
  : >"$work/$model.out" # before it is looked at: the last server's says "serving" too
  : >"$work/$model.err"
  "$octet" serve "$golden/$model" --backend "$backend" --skip-tokenizer-init --port 0 \
    --max-num-seqs 4 $pages "$@" >"$work/$model.out" 2>"$work/$model.err" &
  pids="$pids $!"
  eval "pid_$(echo "$model" | tr '-' '_')=$!"
}

# listen MODEL: waits for its server; $pid, and $url or nothing.
listen() {
  eval "pid=\$pid_$(echo "$1" | tr '-' '_')"
  until_true "grep -q serving '$work/$1.out' || ! kill -0 $pid 2>/dev/null"
  url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/$1.out")
}

# ask MODEL KIND: a prompt of token ids, greedily: the ids of the answer, separated by commas.
ask() {
  prompt=$(numbers "$golden/$1/golden.safetensors" input_ids)
  curl -s -m 60 "$url/v1/completions" -H 'Content-Type: application/json' -d \
    "{\"prompt\":[$prompt],\"max_tokens\":24,\"temperature\":0,\"ignore_eos\":true,
      \"return_token_ids\":true,\"stream\":$2}" |
    grep -o '"token_ids":\[[0-9][0-9,]*\]' | sed 's/.*\[//; s/\]//' | paste -sd, -
}

# check MODEL NAME: what its server answers, which is then ended.
check() {
  listen "$1"
  if [ -z "$url" ] && grep -q 'no GPU\|without CUDA' "$work/$1.err"; then
    skip "$2: $1 gives the reference's tokens" "$(sed -n 's/^octet serve: //p' "$work/$1.err")"
    return
  fi
  wanted=$(numbers "$golden/$1/golden.safetensors" generated)
  is "$(ask "$1" false)" "$wanted" "$2: $1 gives the reference's tokens"
  is "$(ask "$1" true)" "$wanted" "$2: $1 streams the reference's tokens"
  kill -TERM "$pid"
  wait "$pid"
  is $? 0 "$2: $1 ends well"
}

models=${OCT_GOLDEN_MODELS:-$(cd "$golden" && for m in */; do echo "${m%/}"; done)}
# All at once: a server takes seconds to find its GPU.
for world in cpu cuda:dtype=float32; do
  for model in $models; do
    begin "$model" $world
  done
  for model in $models; do
    check "$model" $world
  done
done

# --- a checkpoint behind other worlds, and in a process that is lost
one=$(echo "$models" | head -n 1)
one=${one%% *}
# The processes that PID's first thread has made.
children() { cat "/proc/$1/task/$1/children" 2>/dev/null; }

# lose WORLD FLAGS: kills the worker while its server computes; the answer comes all the same.
lose() {
  world=$1
  shift
  begin "$one" "$world" "$@"
  listen "$one"
  if [ -z "$url" ] && grep -q 'no GPU\|without CUDA' "$work/$one.err"; then
    skip "$world: a worker that is killed costs no answer" \
      "$(sed -n 's/^octet serve: //p' "$work/$one.err")"
    return
  fi
  keeper=$(children "$pid")
  worker=$(children "${keeper%% *}")
  ok "$([ -n "$worker" ]; echo $?)" "$world: a process of its own computes"
  ask "$one" false >"$work/answer" &
  client=$!
  sleep 0.5
  kill -9 $worker
  wait $client
  is "$(cat "$work/answer")" "$(numbers "$golden/$one/golden.safetensors" generated)" \
    "$world: a worker that is killed costs no answer"
  has "$(curl -s -m 60 "$url/metrics" | grep '^octet:instance_lost_total')" ' 1' \
    "$world: its loss is counted"
  until_true 'grep -q "open again" "$work/$one.err"'
  has "$(cat "$work/$one.err")" "engine 0: lost what it computes with: worker died: Killed" \
    "$world: the log says what happened"
  has "$(cat "$work/$one.err")" "engine 0: open again" "$world: and that it goes on"
  kill -TERM "$pid"
  wait "$pid"
  is $? 0 "$world: and the server ends well"
}
# The fifth step is late: by then the worker is dead.
late=fault:script=delay/5,delay_ns=1500000000
lose "remote@$late@cpu:threads=1"
lose "remote@$late@cuda:dtype=float32,exit_on_loss=1"

begin "$one" cpu:threads=1
check "$one" cpu:threads=1
begin "$one" cuda:dtype=float32 --batch-invariant
check "$one" "cuda:dtype=float32 --batch-invariant"
if grep -q serving "$work/$one.out"; then
  has "$(cat "$work/$one.err")" "remote@cuda:dtype=float32,fixed_order=1,exit_on_loss=1" \
    "cuda has a process of its own, and its sums an order where that is asked for"
  for line in "NUMA node" "GB of weights in" "pages and states: " "graphs: " "the driver had"; do
    has "$(cat "$work/$one.err")" "$line" "a start tells: $line"
  done
  grep -q 'now; [0-9]* MHz, [0-9]* C, held back by ' "$work/$one.err"
  ok $? "and, from the process that uses it, how the GPU is"
  bus=$(sed -n 's/.*rank 0 on GPU [0-9]* (\([^)]*\)), NUMA.*/\1/p' "$work/$one.err" | tr A-F a-f)
  node=$(cat "/sys/bus/pci/devices/$bus/numa_node" 2>/dev/null || echo -1)
  online=$(cat /sys/devices/system/node/online 2>/dev/null)
  case $node,$online in -1,*[!0-9]* | -1,) ;; -1,*) node=$online ;; esac # of one node
  has "$(cat "$work/$one.err")" "($bus), NUMA node $node" "the node is the machine's"
  if [ "$node" -ge 0 ]; then
    ! grep -q "not bound" "$work/$one.err"
    ok $? "and the rank is bound to it"
  else
    skip "the rank is bound to its NUMA node" "the machine does not say which it is"
  fi
else
  skip "cuda has a process of its own" "no GPU"
fi
begin "$one" cuda:dtype=float32 --in-process
check "$one" "cuda:dtype=float32 --in-process"

# --- made-up weights are those of the seed, however the backend is named
# made WORLD SEED: what a server of such weights answers, which is then ended.
made() {
  begin "$one" "$1" --load-format dummy --seed "$2"
  listen "$one"
  [ -z "$url" ] || ask "$one" false
  kill -TERM "$pid"
  wait "$pid"
}
of_seven=$(made cpu 7)
has "$of_seven" , "made-up weights answer"
is "$(made cpu:threads=1 7)" "$of_seven" "those of a seed are the same on cpu:threads=1"
is "$(made fault:rate=0@cpu:threads=1 7)" "$of_seven" "and behind another world"
ok "$([ "$(made cpu:threads=1 8)" != "$of_seven" ]; echo $?)" "those of another seed are not"

# Without a number of pages they are what fits into a share of the GPU that the rank is on.
pages=
begin "$one" cuda --gpu-memory-utilization 0.5
listen "$one"
if [ -z "$url" ] && grep -q 'no GPU\|without CUDA' "$work/$one.err"; then
  skip "a share of the GPU" "$(sed -n 's/^octet serve: //p' "$work/$one.err")"
else
  until_true "grep -q 'the driver had' '$work/$one.err' || ! kill -0 $pid 2>/dev/null"
  share=$(sed -n 's/.*rank 0: \([0-9.]*\) GiB asked for, the driver had \([0-9.]*\) .*/\1 \2/p' \
    "$work/$one.err" | awk '{ print ($1 / $2 > 0.4 && $1 / $2 < 0.51) ? "half" : $0 }')
  is "$share" half "a start with --gpu-memory-utilization 0.5 asks for half of what is free"
  kill -TERM "$pid"
  wait "$pid"
  is $? 0 "and ends well"
fi

done_testing
