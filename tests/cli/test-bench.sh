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
refused 2 "has no meaning with a trace" $nobody chat-150 --random-input-len 5
refused 2 "has no meaning with a trace" $nobody chat-150 --burstiness 0.5
refused 2 "without --rate" $nobody chat-150 --rate 5 --time-scale 2
refused 2 "time-scale \"0\"" $nobody chat-150 --time-scale 0
refused 2 "must be completions or chat" $nobody --endpoint embeddings
refused 2 "FIRST:END" $nobody --token-range 9:9
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
"$octet" serve --help >/dev/null 2>&1 || {
  skip "load for octet serve" "octet serve is not there"
  done_testing
}
done_testing
