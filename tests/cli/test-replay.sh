#!/bin/sh
# octet replay: the report, the files, several configurations, capacity, and what is refused.
. "$OCT_SRCDIR/tests/tap"

case $("$octet" --version) in *"SimGrid: not built in"*) simgrid= ;; *) simgrid=yes ;; esac
chat="$OCT_SRCDIR/traces/samples/chat.jsonl"

# columns TEXT: the longest line, in characters.
columns() {
  printf '%s\n' "$1" | LC_ALL=C.UTF-8 awk '{ if (length > n) n = length } END { print n }'
}

# --- on mock: everything but the machine
run "$octet" replay "$chat" --model llama-3.1-8b --backend mock --json "$work/a.json" \
  --requests "$work/a.jsonl" --timeline "$work/a.csv" --log "$work/a.log" \
  --slo ttft_p99=2s,tpot_p99=50ms
is "$status" 0 "a replay on mock succeeds"
is "$err" "" "it leaves stderr empty"
has "$out" "llama-3.1-8b on mock" "the report says what ran"
for word in verdict window TTFT TPOT ITL E2E queue "longest gap" throughput slo steps memory \
  assumed; do
  has "$out" "$word" "the report has $word"
done
has "$out" "prefix hits: not modelled" "lengths alone have no prefix hits"
[ "$(columns "$out")" -le 100 ]
ok $? "the report is at most 100 columns wide"
n=$(grep -c input_tokens "$chat")
is "$(wc -l <"$work/a.jsonl")" "$n" "--requests has a line per request"
is "$(head -n 1 "$work/a.csv" | cut -c 1-23)" "time_s,running,waiting," "--timeline has a heading"
has "$(head -n 1 "$work/a.log")" " arrive 1 prompt " "--log has the event log"
has "$(cat "$work/a.json")" '"schema": "octet-replay-1"' "--json names its schema"

run "$octet" replay "$chat" --model llama-3.1-8b --backend mock --log "$work/b.log" --json -
cmp -s "$work/a.log" "$work/b.log"
ok $? "a second run writes the same event log"
is "$(printf '%s\n' "$out" | head -n 1)" "{" "--json - prints JSON alone"
# Every field of the report is described.
printf '%s\n' "$out" | sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' | LC_ALL=C sort -u |
  while read -r field; do
    grep -q "\`$field\`" "$OCT_SRCDIR/doc/replay.md" || echo "$field"
  done >"$work/undescribed"
is "$(cat "$work/undescribed")" "" "doc/replay.md describes every field"

run "$octet" replay chat-150 --limit 300 --seed 5 --model llama-3.1-8b --backend mock \
  --policy decode-first,stage-aware,vllm-v1 --json "$work/c.json"
is "$status" 0 "several values run side by side"
has "$out" "3 configurations of: llama-3.1-8b on mock" "the comparison says what ran"
has "$out" "stage-aware" "it names each"
has "$out" "longest decode gap p99" "it shows the decode gaps"
[ "$(columns "$out")" -le 100 ]
ok $? "the comparison is at most 100 columns wide"
has "$(cat "$work/c.json")" '"schema": "octet-comparison-1"' "its JSON has its own schema"
is "$(grep -c '"schema": "octet-replay-1"' "$work/c.json")" 3 "and the report of each"
run "$octet" replay chat-150 --limit 100 --model llama-3.1-8b --backend mock -tp 1 \
  --compare "--policy stage-aware --max-num-seqs 32" --compare "-tp 2"
is "$status" 0 "--compare runs the base and others"
has "$out" "--policy stage-aware --max-num-seqs 32" "a long name stands below"

run "$octet" replay chat-150 --duration 4s --model llama-3.1-8b --backend mock --find-capacity
is "$status" 0 "a capacity is found"
has "$out" "capacity: " "it is told"
has "$out" "the trace's own 150 sessions/s are " "with the ratio of the trace's own rate"
has "$out" "at 70 % of it:" "and the run at 70 %"

run "$octet" replay "$OCT_SRCDIR/traces/samples/closed.jsonl" --model llama-3.1-8b --backend mock
is "$status" 0 "a closed loop succeeds"
has "$out" "CLOSED LOOP" "its verdict says so"
run "$octet" replay - --model llama-3.1-8b --backend mock <"$chat"
is "$status" 0 "standard input is a trace"
run "$octet" replay "$OCT_SRCDIR/traces/samples/sessions.jsonl" --model llama-3.1-8b --backend mock
has "$out" "prefix hits: " "sessions are replayed"
run "$octet" replay "$chat" --model llama-3.1-8b --backend mock --concurrency 4 --sim-exact \
  --nic-latency 9us --router round-robin
has "$out" "concurrency 4: not used" "a flag that the trace has no use for is told"
has "$out" "sim-exact: no effect" "and one that the backend has no use for"
has "$out" "nic-latency: no effect without several nodes" "and one of several nodes"
has "$out" "router: no effect with one replica" "and one of several replicas"
run "$octet" replay "$chat" --model llama-3.1-8b --backend mock:fixed_ns=5000000 --limit 20
is "$status" 0 "any world of the registry is a backend"

# --- on the simulated node
if [ "$simgrid" ]; then
  k3="--model kimi-k3 --node b300-hgx8 --tensor-parallel-size 8"
  run "$octet" replay chat-150 --rate 1 --duration 60s $k3 --json "$work/s.json"
  is "$status" 0 "kimi-k3 is replayed on b300-hgx8"
  has "$out" "kimi-k3 on b300-hgx8, TP8, decode-first" "the report names model, node and layout"
  has "$out" "state slots" "it has the use of state"
  has "$out" "measured MoE      target MoE" "it prints both step times"
  has "$out" "bound by " "it says what binds the step"
  has "$out" "hbm " "it has the use of resources"
  has "$out" "engine/step_host_us" "it says which figures are assumed"
  for mode in --no-fast-forward --sim-exact; do
    run "$octet" replay chat-150 --rate 20 --limit 60 --model llama-3.1-8b --node h200-hgx8 \
      --log "$work/x.log" $mode
    run "$octet" replay chat-150 --rate 20 --limit 60 --model llama-3.1-8b --node h200-hgx8 \
      --log "$work/y.log"
    [ -s "$work/x.log" ] && cmp -s "$work/x.log" "$work/y.log"
    ok $? "the event log is the same with $mode"
  done
  run "$octet" replay chat-150 --rate 2 --limit 100 --model llama-3.1-8b --node h200-hgx8 \
    --replicas 2 -tp 4
  has "$out" "on h200-hgx8, 2 replicas, TP4" "replicas share a node"
  run "$octet" replay chat-150 --limit 10 --model llama-3.1-8b --node h200-hgx8 --swap-space 4
  has "$out" "swap-space is the host tier's old name" "--swap-space is taken with a warning"
  run "$octet" replay chat-150 --limit 10 --model kimi-k3 --node h100-hgx8
  is "$status" 1 "a model that does not fit fails"
  has "$err" "GB" "the message has the sum"
else
  skip "kimi-k3 is replayed on b300-hgx8" "SimGrid is not built in"
fi

# --- what is refused: refused STATUS PART ARGUMENT…
refused() {
  wanted=$1 part=$2
  shift 2
  run "$octet" replay "$@"
  is "$status" "$wanted" "exit status $wanted: $*"
  has "$err" "$part" "the message has the reason: $*"
}
m="--model llama-3.1-8b --backend mock"
refused 2 "which model" "$chat" --backend mock
refused 2 "at least 1" $m
refused 1 "no-such.jsonl" no-such.jsonl $m
refused 1 "llama-9" "$chat" --model llama-9 --backend mock
refused 2 "must be one of decode-first" "$chat" $m --policy fastest
refused 2 "max-num-seqs \"0\"" "$chat" $m --max-num-seqs 0
refused 2 "max-num-seqs \"many\"" "$chat" $m --max-num-seqs many
refused 1 "below max-num-seqs" "$chat" $m --max-num-seqs 64 --max-num-batched-tokens 32
refused 2 "kv-cache-dtype \"int3\"" "$chat" $m --kv-cache-dtype int3
refused 2 "gpu-memory-utilization \"2\"" "$chat" $m --gpu-memory-utilization 2
refused 2 "no objective" "$chat" $m --slo fast=1s
refused 2 "duration" "$chat" $m --duration 5
refused 2 "leaves nothing" "$chat" $m --duration 5s --warmup 5s
refused 2 "rate \"-1\"" "$chat" $m --rate=-1
refused 2 "to 1000000 a second" "$chat" $m --rate 1e300
refused 2 "must have an end" gen:chat-150,rate=inf $m --duration 20s
refused 2 "closed loop" "$OCT_SRCDIR/traces/samples/closed.jsonl" $m --rate 5
refused 2 "rate-mode \"twice\"" "$chat" $m --rate-mode twice
refused 2 "without --rate" "$chat" $m --rate-mode superpose
refused 2 "without --find-capacity" "$chat" $m --load 0.5
refused 2 "without --timeline" "$chat" $m --timeline-interval 2s
refused 2 "at least 1ms" "$chat" $m --timeline "$work/z" --timeline-interval 1us
refused 2 "at least 100ms" "$chat" $m --worst-window 4ns
refused 2 "recorded traces" chat-150 $m --limit 5 --spread auto
refused 2 "another option" "$chat" $m --json "$work/z" --log "$work/z"
refused 2 "standard output" "$chat" $m --requests -
refused 2 "given too" "$chat" $m --policy priority --scheduling-policy fcfs
refused 2 "given too" "$chat" $m --kv-offloading-size 1 --swap-space 1
refused 2 "2 to 16777216" "$chat" $m --max-model-len 0
refused 2 "it takes one" "$chat" $m --find-capacity --policy decode-first,vllm-v1
refused 2 "nothing to measure" "$chat" $m --warmup 100h
echo "TIMESTAMP,ContextTokens,GeneratedTokens" >"$work/none.csv"
refused 2 "has no request" "$work/none.csv" $m
refused 1 "-tp 3: " "$chat" $m -tp 1 --compare "-tp 3"
refused 2 "--exact-lengths" "$chat" $m --exact-lengths --assume-max-tokens 5
refused 2 "more than 16" "$chat" $m --max-num-seqs 1,2,3,4,5 --block-size 16,32,64,128
refused 2 "do not go together" "$chat" $m --policy decode-first,vllm-v1 --compare "-tp 1"
refused 2 "no flag of an engine" "$chat" $m --compare "trace.csv"
refused 2 "are of one configuration" "$chat" $m --policy decode-first,vllm-v1 --log "$work/z.log"
refused 1 "/nonexistent/x.json" "$chat" $m --json /nonexistent/x.json
refused 1 "/nonexistent/x.log" "$chat" $m --log /nonexistent/x.log
refused 2 "takes no value" "$chat" $m --no-fast-forward=yes
refused 2 'rate "": must be a number above 0' "$chat" $m --rate ""
refused 2 'rate "1e-300": must be from 0.000001 to 1000000 a second' "$chat" $m --rate 1e-300
refused 2 "ttft_p99 is there twice" "$chat" $m --slo ttft_p99=1s,ttft_p99=2s
refused 1 "/dev/zero: cannot read: more bytes than the limit" "$chat" $m --scenario /dev/zero
refused 2 "which machine" "$chat" --model llama-3.1-8b
refused 1 "no-such-node" "$chat" --model llama-3.1-8b --node no-such-node
refused 1 "nocolon" "$chat" --model llama-3.1-8b --backend nocolon

# --- scenarios ---------------------------------------------------------------------------------
# shellcheck disable=SC2086
run "$octet" replay gen:rate=5,input=10,output=5,requests=50 --model llama-3.1-8b --backend mock \
  --scenario "$OCT_SRCDIR/sim/scenarios/rush.ini" --client-timeout 10s --client-retries 2
is "$status" 0 "a scenario of arrivals runs on mock"
has "$out" "a rush of five minutes" "and the report has its title"
run "$octet" replay gen:rate=5,input=10,output=5,requests=50 --model llama-3.1-8b --backend mock \
  --scenario "$OCT_SRCDIR/sim/scenarios/hot-gpu.ini"
is "$status" 1 "one of hardware does not"
has "$err" "[event hot] kind = throttle: wants a simulated node" "and says what it wants"
# shellcheck disable=SC2086
run "$octet" replay gen:rate=50,input=10,output=5,requests=500,class=chat --model llama-3.1-8b \
  --backend mock --class-slo chat:ttft_p99=1s --worst-window 2s
is "$status" 0 "classes and worst windows are told of"
has "$out" "chat: " "a class has a line"
has "$out" "worst from" "so has the worst window"
run "$octet" replay gen:rate=50,input=10,output=5,requests=500,class=chat --model llama-3.1-8b \
  --backend mock --class-slo chat:ttft_p99=1s --class-slo code:ttft_p99=1s
has "$out" "class-slo code: no request of the trace has this class" "an unknown class is told of"
is "$(printf '%s\n' "$out" | grep -c 'class-slo chat')" 0 "a known one is not"
run "$octet" replay chat-150 --model llama-3.1-8b --backend mock --class-slo chat
is "$status" 2 "a class without objectives is refused"
run "$octet" replay chat-150 --model llama-3.1-8b --backend mock --client-backoff 1s
is "$status" 2 "a pause without retries has no meaning"
run "$octet" replay chat-150 --model llama-3.1-8b --backend mock --replicas 2 --prefill-replicas 2
is "$status" 2 "somebody must decode"

# Engines that are imitated.
few="gen:rate=5,requests=30,input=500,output=20"
if "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  run "$octet" replay "$few" --model llama-3.1-8b --node h100-hgx8 -tp 1 --engine vllm-0.24 --json -
  is "$status" 0 "another engine is imitated"
  has "$out" '"policy": "vllm-v1"' "... with its policy"
  has "$out" '"engine_preset": "vllm-0.24"' "... under its name"
  has "$out" 'vllm-0.24 is imitated' "... and the report says so"
  run "$octet" replay "$few" --model llama-3.1-8b --node h100-hgx8 -tp 1 --engine vllm-0.24 \
    --policy stage-aware --quantization fp8 --json -
  has "$out" '"policy": "stage-aware"' "a flag that is given counts more than the engine's"
  has "$out" 'stored as fp8' "weights are taken in another storage type"
fi
run "$octet" replay "$few" --model llama-3.1-8b --node h100-hgx8 --engine tgi
is "$status" 2 "an unknown engine is refused"
has "$err" "vllm-0.24" "... naming those that are known"
run "$octet" replay "$few" --model llama-3.1-8b --node h100-hgx8 --engine octet \
  --engine-preset octet
is "$status" 2 "an engine and a preset of the profile do not go together"
run "$octet" replay "$few" --model llama-3.1-8b --node h100-hgx8 --quantization int3
is "$status" 2 "an unknown storage type is refused"

# Weights of a large model take minutes to make.
"$octet" replay chat-150 --model llama-3.1-8b --backend cpu --limit 1 >"$work/out" 2>"$work/err" &
pid=$!
until_true '[ -s "$work/err" ] || ! kill -0 $pid 2>/dev/null'
kill $pid
wait $pid
has "$(cat "$work/err")" "cpu: making up 16.06 GB of weights" "what takes long is told before"

done_testing
