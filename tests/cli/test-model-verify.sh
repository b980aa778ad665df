#!/bin/sh
# octet model verify: whole checkpoints, damaged ones, and what is refused.
. "$OCT_SRCDIR/tests/tap"
golden=$OCT_SRCDIR/tests/golden/hf

for model in "$golden"/*/; do
  name=$(basename "$model")
  run "$octet" model verify --values "$model"
  is "$status" 0 "$name is whole"
  is "$err" "" "$name leaves stderr empty"
  has "$out" "the checkpoint holds the model" "$name: the verdict"
done
run "$octet" model verify --values "$golden/kimi-linear"
has "$out" "safetensors, 1 file, 197 tensors, 1033376 bytes" "tensors and bytes are told"
has "$out" "516688 parameters in 1040256 bytes by its config" "the config's sum is told"
has "$out" "rows                197             516688              1033376" "layouts are told"
has "$out" "516688 values read" "--values reads all of them"
run "$octet" model verify "$golden/llama/model.safetensors"
is "$status" 0 "a file with a config.json beside it is whole"

run "$octet" model verify --json - "$golden/qwen3-moe"
is "$status" 0 "--json - succeeds"
is "$(printf '%s\n' "$out" | head -n 1)" "{" "--json - prints JSON alone"
has "$out" '"tensors": 80' "JSON has the number of tensors"
has "$out" '"ok": true' "JSON has the verdict"
run "$octet" model verify --json "$work/v.json" --values "$golden/llama"
has "$(cat "$work/v.json")" '"read": 170432' "the file has the values' figures"
has "$out" "the checkpoint holds the model" "--json FILE prints the table too"

# Another model than the files hold.
run "$octet" model verify --config llama-3.1-8b "$golden/llama"
is "$status" 1 "a model of another size fails"
has "$out" "layer 3 down: no tensor model.layers.3.mlp.down_proj.weight or" \
  "a missing layer is named"
has "$out" "model.embed_tokens.weight has the shape [320, 64], wanted is [128256, 4096]" \
  "a wrong shape is named"
has "$out" "… and 241 more" "the rest is counted"
has "$out" "does not hold the model" "the verdict says no"

# Damage: a cut file, a NaN, a missing shard.
mkdir "$work/cut" "$work/nan" "$work/shards"
cp "$golden/llama/config.json" "$work/cut"
cp "$golden/llama/config.json" "$work/nan"
cp "$golden/llama/config.json" "$work/shards"
head -c 300000 "$golden/llama/model.safetensors" >"$work/cut/model.safetensors"
run "$octet" model verify "$work/cut"
is "$status" 1 "a cut file fails"
has "$err" "reach past the end of the data section" "a cut file: the reason"
is "$out" "" "a cut file prints nothing on stdout"
cp "$golden/llama/model.safetensors" "$work/nan/model.safetensors"
chmod u+w "$work/nan/model.safetensors"
# The last tensor's last bfloat16 becomes a NaN.
printf '\300\177' | dd of="$work/nan/model.safetensors" bs=1 conv=notrunc \
  seek=$(($(wc -c <"$work/nan/model.safetensors") - 2)) 2>"$work/dd.log"
run "$octet" model verify "$work/nan"
is "$status" 0 "without --values a NaN is not looked for"
run "$octet" model verify --values "$work/nan"
is "$status" 1 "a NaN fails"
has "$out" "1 of " "a NaN is counted and placed"
has "$out" "not numbers             1" "the sum of what is no number"
echo '{"weight_map": {"model.norm.weight": "model-1.safetensors"}}' \
  >"$work/shards/model.safetensors.index.json"
run "$octet" model verify "$work/shards"
is "$status" 1 "a missing shard fails"
has "$err" "shard model-1.safetensors is missing" "a missing shard is named"

# refused STATUS PART ARGUMENT…
refused() {
  wanted=$1 part=$2
  shift 2
  run "$octet" model "$@"
  is "$status" "$wanted" "exit status $wanted: $*"
  has "$err" "$part" "the message has the reason: $*"
}
refused 1 "No such file" verify /nonexistent/model.safetensors
refused 1 "no checkpoint in this folder" verify "$work"
cp "$golden/llama/model.safetensors" "$work/alone.safetensors"
refused 1 "no config.json beside" verify "$work/alone.safetensors"
refused 1 "this is not a GGUF file" verify --load-format gguf "$golden/llama/model.safetensors"
refused 1 "/nonexistent/x.json" verify --json /nonexistent/x.json "$golden/llama"
refused 2 "allowed are auto, safetensors and gguf" verify --load-format dummy "$golden/llama"
refused 2 "at least 1 wanted" verify
refused 2 "at most 1 wanted" verify a b
refused 2 "frob" verify --frob x
refused 2 "its options follow verify" --json x verify y

done_testing
