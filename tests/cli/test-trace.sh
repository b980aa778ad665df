#!/bin/sh
# octet trace: gen, convert and info.
. "$OCT_SRCDIR/tests/tap"
samples=$OCT_SRCDIR/traces/samples

run "$octet" trace
is "$status" 2 "no verb is wrong usage"
run "$octet" trace frobnicate
is "$status" 2 "an unknown verb is wrong usage"
has "$err" "frobnicate" "an unknown verb is named"
for verb in gen convert info; do
  run "$octet" trace "$verb" --help
  is "$status" 0 "$verb --help succeeds"
  has "$out" "octet trace $verb " "$verb --help shows how it is called"
  run "$octet" trace "$verb" --no-such-option
  is "$status" 2 "$verb refuses an unknown option"
done

# gen
run "$octet" trace gen chat-150 --requests 40 --seed 7
is "$status" 0 "gen writes to standard output"
is "$err" "" "gen leaves stderr empty"
printf '%s\n' "$out" >"$work/chat.jsonl"
cmp -s "$work/chat.jsonl" "$samples/chat.jsonl"
ok $? "equal options make equal traces, byte for byte: the sample of a preset"
"$octet" trace gen --rate 2 --requests 24 --input lognormal:600:2400 --output lognormal:150:600 \
  --followup lognormal:80:300 --turns geometric:2 --think lognormal:8:40 --prefix-tokens 256 \
  --prefix-count 3 --prefix-zipf 1 --block-size 64 --max-tokens 'true*2' --class chat --seed 42 \
  -o "$work/sessions.jsonl" --json "$work/gen.json"
cmp -s "$work/sessions.jsonl" "$samples/sessions.jsonl"
ok $? "the sample of sessions is what its options make"
"$octet" trace gen --concurrency 4 --requests 12 --input 512 --output uniform:32:128 \
  --think exponential:0.5 --seed 3 -o "$work/closed.jsonl"
cmp -s "$work/closed.jsonl" "$samples/closed.jsonl"
ok $? "the sample of a closed loop is what its options make"
has "$(cat "$work/gen.json")" '"requests": 24' "gen --json counts what was made"
run "$octet" trace gen chat-150 --requests 5 --rate 10 --arrivals constant
has "$out" '{"arrival_us":500000,' "an option goes over the preset"
run "$octet" trace gen chat-150
is "$status" 2 "traffic without an end is wrong usage"
has "$err" "requests or duration" "traffic without an end says what is missing"
run "$octet" trace gen chat-151 --requests 1
is "$status" 2 "an unknown preset is wrong usage"
has "$err" "azure-conv-2023" "an unknown preset lists those there are"
run "$octet" trace gen --requests 1 --input lognormal:5
is "$status" 2 "a distribution that makes no sense is wrong usage"
run "$octet" trace gen --requests 1 --json -
is "$status" 2 "trace and report do not share standard output"
run "$octet" trace gen --requests 1 -o "$work/none/x"
is "$status" 1 "a trace that cannot be written is a failure"

# info
run "$octet" trace info "$samples/sessions.jsonl"
is "$status" 0 "info succeeds"
has "$out" "octet, 24 requests" "info counts requests"
has "$out" "prefix blocks  of 64 tokens" "info describes prefixes"
run "$octet" trace info "$samples/chat.jsonl"
has "$out" "prefix reuse   not modelled" "info says that lengths alone have no prefixes"
run "$octet" trace info --json - "$samples/chat.jsonl"
has "$out" '"prefix": null' "info --json - prints JSON alone"
is "$(printf '%s\n' "$out" | head -n 1)" "{" "info --json - prints nothing before it"
run "$octet" trace info gen:chat-150,requests=1000
has "$out" "generated, 1000 requests" "info reads generated traffic without a file"
out=$("$octet" trace info - <"$samples/closed.jsonl")
has "$out" "4 slots" "info reads standard input"
run "$octet" trace info "$work/nothing"
is "$status" 1 "a missing trace is a failure"
has "$err" "$work/nothing" "a missing trace is named"

# convert
cat >"$work/mooncake.jsonl" <<EOF
{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
{"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [3]}
{"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
EOF
run "$octet" trace convert "$work/mooncake.jsonl" "$work/converted.jsonl" --spread auto
is "$status" 0 "convert succeeds"
is "$(cat "$work/converted.jsonl")" \
  '{"octet_trace":1,"block_size":512,"spread":true,"source":"mooncake.jsonl"}
{"arrival_us":0,"input_tokens":600,"output_tokens":5,"hash_ids":[1,2]}
{"arrival_us":1500000,"input_tokens":40,"output_tokens":5,"hash_ids":[3]}
{"arrival_us":3000000,"input_tokens":600,"output_tokens":5,"hash_ids":[1,2]}' \
  "convert writes Octet's format, and that arrivals were spread"
run "$octet" trace info "$work/converted.jsonl"
has "$out" "arrivals are spread" "info of a converted trace says that arrivals were spread"
has "$out" "hits 40.0 %" "info counts hits of a cache that forgets nothing"
run "$octet" trace convert "$samples/sessions.jsonl" - --limit 3
is "$(printf '%s\n' "$out" | sed 1d)" "$(sed -n '2,4p' "$samples/sessions.jsonl")" \
  "converting Octet's own format changes no row"
printf '{"timestamp": 0, "input_length": "x", "output_length": 5}\n' >"$work/bad.jsonl"
run "$octet" trace convert "$work/bad.jsonl" "$work/out.jsonl"
is "$status" 1 "a malformed trace is a failure"
has "$err" "$work/bad.jsonl:1: field \"input_length\": value \"x\"" \
  "a malformed trace is told by file, line, field and value"
run "$octet" trace info "$work/bad.jsonl" --time-unit m
is "$status" 2 "a wrong value of an option is wrong usage"

done_testing
