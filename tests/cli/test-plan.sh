#!/bin/sh
# octet plan: the report, its JSON, a search that goes on, and what is refused.
. "$OCT_SRCDIR/tests/tap"

# On mock a step takes little more than nothing: a rate is found by the limit on waiting.
server="--model llama-3.1-8b --backend mock -tp 1 --max-num-seqs 1 --max-num-batched-tokens 1
  --num-gpu-blocks-override 256"
quick="--input 1 --output 1 --exact-lengths --no-async-scheduling --duration 2s --seeds 2
  --coarse-requests 200 --max-gpus 2"

# shellcheck disable=SC2086
run "$octet" plan $quick $server --slo ttft_mean=20ms --json "$work/a.json" --state "$work/state"
is "$status" 0 "a plan on mock succeeds"
is "$err" "" "it leaves stderr empty"
for word in question traffic layouts method "rate /s (95 %)" note range "Pareto front" finalist \
  recommended "octet serve llama-3.1-8b" "fewer than 10,000"; do
  has "$out" "$word" "the report has $word"
done
columns=$(printf '%s\n' "$out" |
  LC_ALL=C.UTF-8 awk '{ if (length > n) n = length } END { print n }')
[ "$columns" -le 100 ]
ok $? "the report is at most 100 columns wide"
has "$(cat "$work/a.json")" '"schema": "octet-plan-1"' "--json names its schema"
sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' "$work/a.json" | LC_ALL=C sort -u | while read -r field; do
  grep -q "\`$field\`" "$OCT_SRCDIR/doc/plan.md" "$OCT_SRCDIR/doc/replay.md" || echo "$field"
done >"$work/undescribed"
is "$(tr '\n' ' ' <"$work/undescribed")" "" "every field is described"

# shellcheck disable=SC2086
run "$octet" plan $quick $server --slo ttft_mean=20ms --json "$work/b.json" --state "$work/state" \
  --jobs 1
is "$status" 0 "a plan goes on from its state"
cmp -s "$work/a.json" "$work/b.json"
ok $? "and comes to the same plan"
# shellcheck disable=SC2086
run "$octet" plan $quick $server --slo ttft_mean=30ms --state "$work/state"
is "$status" 2 "another question's state is refused"
has "$err" "belongs to another" "saying why"

# A run of eight seconds begins empty and ends with most answers unfinished: of the tokens that its
# rate brings it has seen two thirds.
run "$octet" plan --input 10 --output 400 --exact-lengths --duration 8s --seeds 1 \
  --coarse-requests 200 --max-gpus 1 --model llama-3.1-8b --backend mock:fixed_ns=5000000 -tp 1 \
  --max-num-seqs 64 --gpu-hour-price 3.6 --slo ttft_p99=3s --json "$work/short.json"
is "$status" 0 "a plan of a run that has not settled succeeds"
awk '/"warmup_short": true/ { short = 1 } /"rate":/ && !rate { rate = $2 + 0 }
  /"price_per_million_tokens":/ { price = $2 + 0 }
  END { wanted = 3.6 / 3600 / (rate * 400) * 1e6
        exit !(short && price > wanted * 0.999 && price < wanted * 1.001) }' "$work/short.json"
ok $? "its tokens cost what its rate brings of them"

# Forty requests are in the engine at once at any rate of interest: nothing can be recommended.
{
  echo '{"octet_trace":1,"source":"even"}'
  seq 1 40 | sed 's/.*/{"arrival_us":&00000,"input_tokens":1,"output_tokens":100}/'
} >"$work/forty.jsonl"
run "$octet" plan "$work/forty.jsonl" --model llama-3.1-8b --backend mock:fixed_ns=10000000 -tp 1 \
  --max-gpus 1 --max-num-seqs 64 --num-gpu-blocks-override 4096 --slo ttft_p99=1s \
  --json "$work/forty.json" --html "$work/forty.html"
is "$status" 1 "a trace too short for a verdict is no success"
has "$err" "no verdict is possible, and no layout is recommended: TP1 x1 at" "... says stderr"
has "$out" "No verdict is possible, and no layout is recommended." "... and the report"
has "$out" "5 mean residence times are needed" "... and why"
has "$out" "at least roofline: at most" "... and what can be said"
is "$(printf '%s\n' "$out" | grep -c 'octet serve\|^recommended\|^range')" 0 "... and no more"
has "$(cat "$work/forty.json")" '"serve": null' "... and the JSON"
has "$(cat "$work/forty.json")" '"no_verdict": "TP1 x1 at' "... with the reason"
has "$(cat "$work/forty.html")" '"no_verdict":' "... which the page has too"

# Of five stages a loss leaves TP4, which serves far more than they do: no plan rests on that.
if "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  run "$octet" plan --input 1000 --output 200 --model llama-3.1-70b --node h200-hgx8 -pp 5 \
    --max-gpus 5 --survive-loss --slo ttft_p99=2s,tpot_p99=50ms --coarse-requests 100 \
    --duration 5s --seeds 1
  is "$status" 0 "a plan with one GPU lost is made"
  has "$out" "TP1 PP5 x1: whole it serves" "what serves less whole than after a loss is told of"
  has "$out" "No layout serves this" "... and is not recommended"
  run "$octet" plan --input 100 --output 20 --model llama-3.1-8b --node h100-hgx8,h200-hgx8 -tp 1 \
    --max-gpus 1 --slo ttft_p99=2s --coarse-requests 50 --duration 2s --seeds 1 \
    --json "$work/nodes.json"
  is "$status" 0 "a plan of two nodes is made"
  has "$out" "h100-hgx8: TP1 x1" "... with the node in front of each layout"
  is "$(grep -c 'x1, node' "$work/nodes.json")" 0 "... and once"
  has "$(cat "$work/nodes.json")" "prefix hits: not modelled" "... and says what was assumed"

  # The recommended line starts a server, here of the twin, with the plan's replicas and domains.
  starts() { # LAYOUT ENGINES FLAGS…
    layout=$1 engines=$2
    shift 2
    run "$octet" plan --input 100 --output 20 --node h200-hgx8 --slo ttft_p99=2s --seeds 1 \
      --coarse-requests 50 --duration 2s --json "$work/serve.json" "$@"
    has "$out" "recommended on h200-hgx8: $layout" "$layout is recommended"
    line=$(sed -n 's/^ *"serve": "octet \(.*\)",$/\1/p' "$work/serve.json")
    has "$line" " --backend cuda " "... for a server on GPUs"
    : >"$work/served"
    # shellcheck disable=SC2086 # a command's words
    timeout 60 "$octet" $line --backend simgrid --node h200-hgx8 --uds "$work/socket" \
      >"$work/served" 2>&1 &
    server=$!
    until_true 'grep -q " serving " "$work/served" || ! kill -0 $server 2>/dev/null'
    curl -s --unix-socket "$work/socket" http://localhost/metrics >"$work/metrics"
    is "$(grep -c '^vllm:num_requests_running{' "$work/metrics")" "$engines" \
      "... and its line serves in $engines engines"
    kill "$server"
    wait "$server"
  }
  command -v curl >/dev/null || starts() { skip "$1 is served" "no curl"; }
  starts "TP1 x3" 3 --model llama-3.1-8b -tp 1 --replicas 3 --max-gpus 3
  starts "TP1 DP2 x2" 2 --model llama-3.1-8b -tp 1 -dp 2 --replicas 2 --max-gpus 4
  starts "TP2 EP x2" 2 --model mixtral-8x7b -tp 2 --enable-expert-parallel --replicas 2 --max-gpus 4
else
  skip "a layout that serves less whole than after a loss" "SimGrid is not built in"
fi

refuses() {
  what=$1 wanted=$2
  shift 2
  run "$octet" plan "$@"
  is "$status" 2 "$what is refused"
  has "$err" "$wanted" "naming the reason"
}
refuses "a plan without objectives" "which objectives?" chat-150 --model llama-3.1-8b --backend mock
refuses "a plan without traffic" "a TRACE is wanted" --model llama-3.1-8b --slo ttft_p99=1s
refuses "lengths beside a trace" "lengths of its own" chat-150 --input 1 --model llama-3.1-8b \
  --slo ttft_p99=1s
refuses "an unknown objective" "must be rate, gpus or cost" chat-150 --objective luck \
  --model llama-3.1-8b --slo ttft_p99=1s
refuses "fewest GPUs for nothing" "for which --rate?" chat-150 --objective gpus \
  --model llama-3.1-8b --slo ttft_p99=1s
refuses "a cost without a price" "gpu-hour-price" chat-150 --objective cost --model llama-3.1-8b \
  --slo ttft_p99=1s
refuses "no seeds below 0" "from 1 to" chat-150 --seeds=-1 --model llama-3.1-8b --slo ttft_p99=1s
for count in seeds jobs max-gpus max-nodes coarse-requests; do
  refuses "no $count" "$count \"0\": must be a whole number from 1 to" chat-150 --$count 0 \
    --model llama-3.1-8b --slo ttft_p99=1s
done
refuses "a rate without measure" "to 1000000 a second" chat-150 --rate 1e300 --model llama-3.1-8b \
  --slo ttft_p99=1s
refuses "an empty price" "gpu-hour-price \"\": must be a number above 0" chat-150 \
  --gpu-hour-price "" --model llama-3.1-8b --backend mock --slo ttft_p99=1s
run "$octet" plan chat-150 --model llama-3.1-8b --backend mok --slo ttft_p99=1s
is "$(echo "$err" | grep -c '^octet plan: configuration [0-9]*: no backend "mok"; there are: ')" 1 \
  "a backend that is none is told with one configuration"
refuses "two models" "a plan is of one model" chat-150 --model llama-3.1-8b,qwen3-32b \
  --backend mock --slo ttft_p99=1s

done_testing
