#!/bin/sh
# octet eval: perplexity, divergence and windows on tiny models, and what is refused.
. "$OCT_SRCDIR/tests/tap"
. "$OCT_SRCDIR/tests/cli/bytes-tokenizer"
golden=$OCT_SRCDIR/tests/golden/hf
bytes_tokenizer "$work/bytes.json"
# 400 characters, each of which is a token.
awk 'BEGIN { for (i = 0; i < 40; i++) printf "text %04d\n", i * i }' >"$work/text"

# value NAME: of a JSON report in $out.
value() {
  printf '%s\n' "$out" | sed -n "s/.*\"$1\": \([^,]*\),\{0,1\}\$/\1/p" | head -n 1
}
# near A B EPSILON CLAIM
near() {
  awk -v a="$1" -v b="$2" -v e="$3" 'BEGIN { exit !(a != "" && (a > b ? a - b : b - a) <= e) }'
  ok $? "$4"
}

run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json -
is "$status" 0 "a checkpoint is judged"
is "$err" "" "stderr stays empty"
is "$(value tokens)" 400 "the text's tokens are counted"
is "$(value judged)" 399 "the first follows nothing"
is "$(value windows)" 1 "one window holds it"
whole=$(value nll)
near "$(value perplexity)" "$(awk -v n="$whole" 'BEGIN { print exp(n) }')" 0.05 \
  "perplexity is the exponential of the mean loss"

run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --context 100
is "$(value windows)" 4 "windows of 100 tokens: four"
is "$(value judged)" 396 "each window's first token follows nothing"
run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --context 100 --stride 50
is "$(value windows)" 7 "a stride of half a window: seven"
is "$(value judged)" 399 "every token is judged once"
run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --context 399 --stride 1
near "$(value nll)" "$whole" 0.01 "a window that moves by one sees nearly all that one window sees"
run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --max-tokens 50
is "$(value judged)" 49 "--max-tokens cuts the text"

run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --reference "$golden/llama"
near "$(value kl_max)" 0 1e-12 "a model does not diverge from itself"
near "$(value top1_agreement)" 1 0 "and agrees with itself"
run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --reference "$golden/llama" --kv-cache-dtype bfloat16
kv=$(value kl_mean)
ok "$(awk -v k="$kv" 'BEGIN { print !(k > 0 && k < 1e-3) }')" "a narrow cache diverges a little"
"$octet" convert --to fp8 "$golden/llama" "$work/fp8" >"$work/log"
run "$octet" eval "$work/fp8" --text "$work/text" --tokenizer "$work/bytes.json" --json - \
  --reference "$golden/llama"
ok "$(awk -v k="$(value kl_mean)" -v n="$kv" 'BEGIN { print !(k > n && k < 0.1) }')" \
  "8-bit weights more"
run "$octet" eval "$work/fp8" --text "$work/text" --tokenizer "$work/bytes.json" \
  --reference "$golden/llama"
has "$out" "KL divergence" "without --json there is a table"

run "$octet" eval "$golden/llama"
is "$status" 2 "a text is needed"
run "$octet" eval "$golden/llama" --text /dev/zero --tokenizer "$work/bytes.json"
is "$status" 1 "a text that has no end is refused"
has "$err" "/dev/zero: more bytes than the limit" "... naming the limit"
run "$octet" eval "$golden/llama" --text "$work/text" --context 1
has "$err" "--context 1: allowed are 2 to 1048576" "a context is refused by name"
run "$octet" eval "$golden/llama" --text "$work/text" --context 10 --stride 11
has "$err" "--stride 11: allowed are 1 to the context, 10" "a stride is refused by name"
run "$octet" eval "$golden/llama" --text "$work/text" --tokenizer "$work/bytes.json" \
  --kv-cache-dtype int4
has "$err" "a cache of type 'int4': allowed are float32 and bfloat16" "a cache type by name"
run "$octet" eval "$golden/llama" --text "$work/none" --tokenizer "$work/bytes.json"
is "$status" 1 "a text that is not there fails"
run "$octet" eval "$golden/llama" --text "$work/text" \
  --tokenizer "$OCT_SRCDIR/tests/golden/text/vocab/llama3.json"
has "$err" "is beyond the model's vocabulary of 320" "a tokenizer of another model is refused"
done_testing
