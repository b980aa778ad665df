#!/bin/sh
# octet bench: what is refused, and a run against a server of octet's own.
. "$OCT_SRCDIR/tests/tap"

# refused STATUS PART ARGUMENT…
refused() {
  wanted=$1 part=$2
  shift 2
  run "$octet" bench "$@"
  is "$status" "$wanted" "exit status $wanted: $*"
  has "$err" "$part" "the message has the reason: $*"
}
nobody=http://127.0.0.1:1
refused 2 "at least 1"
refused 2 "only http, https and unix" ftp://h
refused 2 "names no socket" unix:
refused 2 "must be \"Name: value\"" $nobody --header bad
refused 1 "connection refused" $nobody --ready-check-timeout 0s
refused 1 "connection refused" $nobody --ready-check-timeout-sec 0
refused 1 "connection refused" "unix:$work/none" --ready-check-timeout 0s
refused 2 "ready-check-timeout" $nobody --ready-check-timeout soon
refused 2 "num-prompts \"0\"" $nobody --num-prompts 0
refused 2 "max-concurrency \"-1\"" $nobody --max-concurrency=-1
refused 2 "random-range-ratio \"1\"" $nobody --random-range-ratio 1
refused 2 "rate" $nobody --rate fast
refused 2 "rate \"-1\"" $nobody chat-150 --rate=-1
refused 2 "must be from 0.000001 to 1000000 a second" $nobody chat-150 --rate 1e-300
refused 2 "has no meaning with a trace" $nobody chat-150 --random-input-len 5
refused 2 "has no meaning with a trace" $nobody chat-150 --burstiness 0.5
refused 2 "without --rate" $nobody chat-150 --rate 5 --time-scale 2
refused 2 "time-scale \"0\"" $nobody chat-150 --time-scale 0
refused 2 "must be completions or chat" $nobody --endpoint embeddings
refused 2 "FIRST:END" $nobody --token-range 9:9
refused 2 "token-range \"9:99\": has no meaning with words" $nobody --token-range 9:99 --text
refused 2 "token-range \"9:99\": has no meaning with words" $nobody --token-range 9:99 \
  --endpoint chat
refused 2 "must be a JSON object" $nobody --extra-body "[1]"
refused 2 "must be a JSON object" $nobody --extra-body "{"
refused 2 "no objective" $nobody --slo fast=1s
refused 2 "METRIC:MILLISECONDS" $nobody --goodput ttft
refused 2 "leaves nothing" $nobody --duration 5s --warmup 5s
refused 2 "percentile-metrics \"p99\"" $nobody --percentile-metrics ttft,p99
refused 2 "no-such.json" $nobody --compare no-such.json
echo '{"schema":"other"}' >"$work/other.json"
refused 2 "holds no report" $nobody --compare "$work/other.json"
refused 2 "/nonexistent/x.json" $nobody --json /nonexistent/x.json
refused 2 "no-such.csv" $nobody no-such.csv --time-scale 2
refused 2 "request-timeout" $nobody --request-timeout 5

# --- a server of octet's own
# field NAME FILE: the first number or word of that name.
field() { sed -n "s/^ *\"$1\": \"\{0,1\}\([^\",]*\).*/\1/p" "$2" | head -n 1; }
"$octet" serve --backend mock --uds "$work/socket" >"$work/served" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
at="unix:$work/socket --ready-check-timeout 30s --text --ignore-eos --random-input-len 20"
at="$at --random-output-len 8"

run "$octet" bench $at --rate 200 --num-prompts 60 --json "$work/a.json" \
  --requests "$work/a.jsonl" --server-metrics --slo ttft_p99=30s --num-warmups 2
is "$status" 0 "load for octet serve on mock succeeds"
is "$err" "" "it leaves stderr empty"
for word in verdict window TTFT TPOT ITL E2E queue "longest gap" "from the send" "sent late" \
  "server's own" throughput slo client assumed; do
  has "$out" "$word" "the report has $word"
done
n=$(printf '%s\n' "$out" | LC_ALL=C.UTF-8 awk '{ if (length > n) n = length } END { print n }')
[ "$n" -le 100 ]
ok $? "the report is at most 100 columns wide"
is "$(field schema "$work/a.json")" "octet-replay-1" "its schema is a replay's"
is "$(field requests_sent "$work/a.json")" 60 "it counts what was sent"
is "$(field failed "$work/a.json")" 0 "nothing failed"
is "$(field short_answers "$work/a.json")" 0 "every answer has its length"
is "$(wc -l <"$work/a.jsonl")" 60 "--requests has a line per request"
# Every field of the report is described.
sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' "$work/a.json" | LC_ALL=C sort -u |
  while read -r name; do
    grep -qE "\`(client\.)?$name\`" "$OCT_SRCDIR/doc/replay.md" "$OCT_SRCDIR/doc/bench.md" ||
      echo "$name"
  done >"$work/undescribed"
is "$(cat "$work/undescribed")" "" "doc/bench.md or doc/replay.md describes every field"

run "$octet" bench "unix:$work/socket" --num-prompts 20 --random-input-len 33 \
  --random-prefix-len 64 --random-output-len 2 --max-concurrency 1 --requests "$work/ids.jsonl"
is "$status" 0 "prompts of token ids succeed"
is "$(grep -c '"input_tokens":97,' "$work/ids.jsonl")" 20 "the server counts what was sent"
cached=$(tail -n 1 "$work/ids.jsonl" | sed 's/.*"cached_tokens":\([0-9]*\).*/\1/')
is "$cached" 64 "a shared prefix is found in the server's cache"

run "$octet" bench $at --max-concurrency 4 --num-prompts 40 --endpoint chat --json "$work/b.json" \
  --label closed --compare "$work/a.json"
is "$status" 0 "a closed loop of chats succeeds"
has "$out" "closed loop of 4 slots" "the report says so"
has "$out" "2 configurations of" "an older report stands beside it"
has "$out" "a.json" "by its file's name"
run "$octet" bench $at --rate inf --num-prompts 40 --max-concurrency 3
has "$out" "at most 3 at once" "a rate and a cap go together"
run "$octet" bench "unix:$work/socket" --text --num-prompts 30 --time-scale 0.01 \
  "$OCT_SRCDIR/traces/samples/chat.jsonl" --json -
is "$(printf '%s\n' "$out" | head -n 1)" "{" "--json - prints JSON alone"
has "$out" '"time_scale": 0.01' "a trace is sent at another pace"
run "$octet" bench "unix:$work/socket" --model none --num-prompts 3
is "$status" 1 "load of which nothing is answered fails"
has "$err" "no request was answered" "it says so"
has "$out" "status 404" "the report has the errors"
run "$octet" bench "unix:$work/socket" --num-prompts 3 --extra-body '{"frobnicate":1}' --text
has "$out" "frobnicate" "a refusal's reason is shown"
run "$octet" replay "$OCT_SRCDIR/traces/samples/chat.jsonl" --model llama-3.1-8b --backend mock \
  --limit 20 --compare "$work/a.json" --compare "$work/b.json" --json "$work/c.json"
is "$status" 0 "a replay stands beside reports of bench"
has "$out" "3 configurations of" "all of them"
has "$out" "closed" "with their labels"
is "$(grep -c '"schema": "octet-replay-1"' "$work/c.json")" 3 "its JSON has all reports"

# A server without a tokenizer: its answers are ids, which it sends only when asked to.
"$octet" serve llama-3.1-8b --load-format dummy --backend mock --skip-tokenizer-init \
  --uds "$work/ids" --disable-access-log >"$work/served-ids" 2>&1 &
without=$!
trap 'kill $server $without 2>/dev/null; rm -rf "$work"' EXIT
at_ids="unix:$work/ids --ready-check-timeout 30s --ignore-eos --num-prompts 4"
at_ids="$at_ids --random-input-len 20 --random-output-len 8 --max-concurrency 1"
run "$octet" bench $at_ids
has "$out" "no answer came in chunks" "answers without chunks are warned of"
has "$out" "return_token_ids" "with what to do"
run "$octet" bench $at_ids --extra-body '{"return_token_ids":true}'
has "$out" "32 chunks of 1 tokens" "token ids come in chunks"
kill "$without"
wait "$without"

# Interrupted: what was measured is told.
asked() { grep -c "POST /v1/completions" "$work/served"; }
before=$(asked)
"$octet" bench $at --rate 20 --num-prompts 100000 >"$work/out" 2>"$work/err" &
bench=$!
until_true '[ "$(asked)" -gt "$before" ]'
kill -INT $bench
wait $bench
has "$(cat "$work/out")" "interrupted" "a report comes after an interrupt"
kill "$server"
wait "$server"
run "$octet" bench "unix:$work/socket" --ready-check-timeout 0s
is "$status" 1 "a server that has ended is not reached"
done_testing
