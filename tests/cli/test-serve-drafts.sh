#!/bin/sh
# octet serve --speculative-config: what it refuses, and that answers are the same with and without.
. "$OCT_SRCDIR/tests/tap"

pids=
trap 'for p in $pids; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
llama="$OCT_SRCDIR/tests/golden/hf/llama"
other="$OCT_SRCDIR/tests/golden/hf/qwen3-qknorm"
linear="$OCT_SRCDIR/tests/golden/hf/kimi-linear"

refuses() { # CLAIM PART JSON ARGUMENTS…
  claim=$1 part=$2 config=$3
  shift 3
  run "$octet" serve "$@" --speculative-config "$config"
  is "$status" 2 "$claim is wrong usage"
  has "$err" "$part" "$claim says why"
}
refuses "no JSON" "speculative-config: is no JSON" ngram --backend mock
refuses "another method" 'method "mtp": ngram or draft_model' \
  '{"method":"mtp","num_speculative_tokens":2}' --backend mock
refuses "too many drafts" "num_speculative_tokens: 16 is not a whole number from 1 to 15" \
  '{"method":"ngram","num_speculative_tokens":16}' --backend mock
refuses "acceptance where it is found out" "of a backend without weights" \
  '{"method":"ngram","num_speculative_tokens":2,"acceptance":0.5}' "$llama" --skip-tokenizer-init
refuses "a draft model that is not there" "model ./none: there is no such file" \
  '{"model":"./none","num_speculative_tokens":2}' "$llama" --skip-tokenizer-init
refuses "a draft model without weights" "a name of the zoo has no weights" \
  '{"model":"llama-3.1-8b","num_speculative_tokens":2}' "$llama" --skip-tokenizer-init
run "$octet" serve "$llama" --skip-tokenizer-init --port 0 --speculative-config \
  "{\"model\":\"$linear\",\"num_speculative_tokens\":2}"
is "$status" 1 "a draft model with recurrent state fails"
has "$err" "has recurrent state, which drafts cannot be taken out of" "and says why"
run "$octet" serve "$llama" --skip-tokenizer-init --port 0 --speculative-config \
  '{"model":"'"$OCT_SRCDIR"'/engine/model/zoo/smollm2-135m.json","num_speculative_tokens":2}'
is "$status" 1 "a draft model of another vocabulary fails"
has "$err" "vocabulary of 49152 tokens, the model of 320" "and says both"

if ! command -v curl >/dev/null; then
  skip "servers are asked" "no curl"
  done_testing
fi

serve() {
  : >"$work/out"
  "$octet" serve "$llama" --skip-tokenizer-init --port 0 --max-num-seqs 8 --max-model-len 256 \
    "$@" >"$work/out" 2>"$work/err" &
  pid=$!
  pids="$pids $pid"
  until_true 'grep -q serving "$work/out" || ! kill -0 $pid 2>/dev/null'
  url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/out")
}
ask() { # FIELDS: the token ids of a completion of two prompts, one of which repeats itself
  curl -s -m 60 "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt":
    [[5,6,7,8,5,6,7,8,5,6,7,8,5,6],[9,1,200,4]],"max_tokens":60,"ignore_eos":true,
    "return_token_ids":true,'"$1"'}' | tr -d ' \n' | grep -o '"token_ids":\[[0-9,]*\]'
}
greedy='"temperature":0'
drawn='"temperature":0.9,"seed":11,"n":2,"top_p":0.95'
scored='"temperature":0,"logprobs":2,"min_tokens":5,"logit_bias":{"7":-3}'
ends() {
  kill -TERM $pid
  wait $pid
  is $? 0 "$1 ends well"
}
metric() { curl -s -m 30 "$url/metrics" | sed -n "s/^$1{.*} //p"; }

serve
for fields in "$greedy" "$drawn" "$scored"; do ask "$fields"; done >"$work/plain"
is "$(wc -l <"$work/plain" | tr -d ' ')" 8 "without drafts there are eight answers"
is "$(metric vllm:spec_decode_num_drafts_total)" 0 "and no drafts"
ends "a plain server"

# drafts CLAIM JSON
drafts() {
  serve --enable-log-requests --speculative-config "$2"
  for fields in "$greedy" "$drawn" "$scored"; do ask "$fields"; done >"$work/drafted"
  is "$(cat "$work/drafted")" "$(cat "$work/plain")" "$1: the same answers"
  n=$(metric vllm:spec_decode_num_draft_tokens_total)
  accepted=$(metric vllm:spec_decode_num_accepted_tokens_total)
  [ "$n" -gt 20 ] && [ "$accepted" -le "$n" ]
  ok $? "$1: $accepted of $n drafts accepted"
  places=$(curl -s "$url/metrics" |
    awk '/^vllm:spec_decode_num_accepted_tokens_per_pos_total/ { n += $NF } END { print n + 0 }')
  is "$places" "$accepted" "$1: by place they add up"
  ends "$1: it"
  has "$(cat "$work/err")" "drafts: engine 0: $accepted of $n accepted" "$1: it says so at the end"
  grep -q 'request .* drafts=[0-9]* accepted=' "$work/err"
  ok $? "$1: and of each request"
}
drafts "n-grams" '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":3,
  "prompt_lookup_min":1}'
drafts "another model" "{\"method\":\"draft_model\",\"model\":\"$other\",
  \"num_speculative_tokens\":3,\"draft_tensor_parallel_size\":1}"
drafts "the model itself" "{\"model\":\"$llama\",\"num_speculative_tokens\":5}"
[ "$accepted" -gt $((n / 2)) ]
ok $? "the model agrees with itself"
done_testing
