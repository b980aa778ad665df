#!/bin/sh
# octet serve --record-routing: what it refuses, that each expert's choices are counted, and that
# octet replay takes the file.
. "$OCT_SRCDIR/tests/tap"

pids=
trap 'for p in $pids; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
golden="$OCT_SRCDIR/tests/golden"

refuses() { # CLAIM PART ARGUMENTS…
  claim=$1 part=$2
  shift 2
  run "$octet" serve --skip-tokenizer-init --port 0 "$@"
  is "$status" 2 "$claim is wrong usage"
  has "$err" "$part" "$claim says why"
}
refuses "mock" "mock and simgrid have no router" --backend mock --record-routing "$work/r"
refuses "a model without experts" "has no experts" "$golden/hf/llama" --record-routing "$work/r"
run "$octet" serve --skip-tokenizer-init --port 0 "$golden/hf/mixtral" --record-routing /none/r
is "$status" 1 "a file that cannot be written fails"
has "$err" "/none/r" "and is named"

if ! command -v curl >/dev/null; then
  skip "servers are asked" "no curl"
  done_testing
fi

# counts MODEL: serves 3 prompts of 8 tokens and 12 more each, into $work/counts.
counts() {
  : >"$work/out"
  rm -f "$work/counts"
  "$octet" serve "$1" --skip-tokenizer-init --port 0 --max-num-seqs 4 --max-model-len 64 \
    --no-enable-prefix-caching --record-routing "$work/counts" >"$work/out" 2>"$work/err" &
  pid=$!
  pids="$pids $pid"
  until_true 'grep -q serving "$work/out" || ! kill -0 $pid 2>/dev/null'
  url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/out")
  for first in 5 6 7; do
    curl -s -m 60 -o /dev/null "$url/v1/completions" -H 'Content-Type: application/json' -d \
      "{\"prompt\":[$first,9,11,4,30,22,8,17],\"max_tokens\":13,\"ignore_eos\":true}"
  done
  kill -TERM $pid
  wait $pid
  is $? 0 "$(basename "$1"): it ends well"
}
# Experts' choices of each layer with experts, summed, one line each.
sums() {
  awk '!/^#/ && NF > 0 { s = 0; for (i = 1; i <= NF; i++) s += $i; print s }' \
    "$work/counts" | sort -u
}

# 3 x (8 + 12) tokens: the thirteenth that is generated is not computed with.
counts "$golden/hf/mixtral"
has "$(head -n 1 "$work/counts")" "mixtral, 60 tokens" "the file's head has model and tokens"
is "$(sums)" 120 "each layer has 2 choices a token"
if "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  run "$octet" replay chat-150 --model "$golden/hf/mixtral/config.json" --node h200-hgx8 \
    --limit 4 --expert-routing "file:$work/counts"
  is "$status" 0 "replay reads it"
else
  skip "replay reads it" "SimGrid is not built in"
fi
counts "$golden/kimi-k3/tiny-a"
is "$(grep -c '^$' "$work/counts")" 1 "a dense layer has an empty line"
is "$(sums | wc -l)" 1 "each layer with experts has as many choices"

done_testing
