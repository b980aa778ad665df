#!/bin/sh
# octet convert: formats, what it prints and writes, and what is refused.
. "$OCT_SRCDIR/tests/tap"
golden=$OCT_SRCDIR/tests/golden/hf

# verify FOLDER LAYOUT CLAIM
verify() {
  run "$octet" model verify --values "$1"
  is "$status" 0 "$3: the copy holds the model"
  has "$out" "$2" "$3: its layout"
}

run "$octet" convert "$golden/llama" "$work/fp8" --to fp8
is "$status" 0 "fp8 succeeds"
is "$err" "" "fp8 leaves stderr empty"
has "$out" "model.layers.2.mlp.down_proj" "each weight is told"
has "$out" " 64x160        10244 " "with its shape and bytes"
has "$out" "21 weights quantised, 9 kept, 1 file" "the sum is told"
has "$(cat "$work/fp8/config.json")" '"quant_method": "fp8"' "fp8: the config says so"
verify "$work/fp8" "fp8  " "fp8"
run "$octet" convert "$golden/deepseek-v3" "$work/block" --to fp8-block
is "$status" 0 "fp8-block succeeds"
has "$(tr -d ' \n' <"$work/block/config.json")" '"weight_block_size":[128,128]' \
  "fp8-block: the config says so"
verify "$work/block" "fp8-block" "fp8-block"
run "$octet" convert --to mxfp4 "$golden/mixtral" "$work/mxfp4"
is "$status" 0 "mxfp4 succeeds"
has "$(cat "$work/mxfp4/config.json")" '"format": "mxfp4-pack-quantized"' \
  "mxfp4: the config says so"
has "$(cat "$work/mxfp4/config.json")" '"model.layers.1.block_sparse_moe.gate"' \
  "mxfp4: routers are named as not quantised"
verify "$work/mxfp4" "mxfp4" "mxfp4"
run "$octet" convert --to awq --group-size 32 --shard-size 0.0001 --json - "$golden/llama" \
  "$work/awq"
is "$status" 0 "awq succeeds"
is "$(printf '%s\n' "$out" | head -n 1)" "{" "--json - prints JSON alone"
has "$out" '"module": "model.layers.0.self_attn.q_proj"' "JSON has each weight"
has "$(cat "$work/awq/model.safetensors.index.json")" "weight_map" "shards have an index"
verify "$work/awq" "awq" "awq"

# Files beside the checkpoint go along.
mkdir "$work/beside"
cp "$golden/llama/config.json" "$golden/llama/model.safetensors" "$work/beside"
echo '{"a": 1}' >"$work/beside/tokenizer.json"
echo '{"b": 2}' >"$work/beside/generation_config.json"
run "$octet" convert --to fp8 "$work/beside" "$work/with"
is "$(cat "$work/with/tokenizer.json" "$work/with/generation_config.json")" \
  "$(cat "$work/beside/tokenizer.json" "$work/beside/generation_config.json")" \
  "the tokenizer's and the generation's files are copied"

# Refusals.
run "$octet" convert --to fp8 "$golden/llama" "$work/fp8"
is "$status" 1 "a folder that exists is not replaced"
has "$err" "$work/fp8: cannot be made" "it is named"
run "$octet" convert --to awq "$golden/llama" "$work/none"
is "$status" 1 "a width that groups do not divide fails"
has "$err" "layer 0 q has 64 inputs, not a multiple of the 128" "the weight is named"
ok "$([ ! -e "$work/none" ] && [ ! -e "$work/none.partial" ] && echo 0 || echo 1)" \
  "nothing is left behind"
run "$octet" convert "$golden/llama" "$work/none"
is "$status" 2 "a format is needed"
run "$octet" convert --to int8 "$golden/llama" "$work/none"
is "$status" 2 "an unknown format is refused"
has "$err" "allowed are awq, fp8, fp8-block and mxfp4" "the formats are named"
run "$octet" convert --to awq --group-size 48 "$golden/llama" "$work/none"
has "$err" "--group-size 48: allowed are 128, 64 and 32" "a group size is refused by name"
run "$octet" convert --to fp8 --calibration x "$golden/llama" "$work/none"
has "$err" "--calibration is of --to awq only" "a calibration text is AWQ's"
run "$octet" convert --to fp8 --dtype int8 "$golden/llama" "$work/none"
has "$err" "--dtype 'int8': allowed are" "a type is refused by name"
run "$octet" convert --to fp8 --shard-size 0 "$golden/llama" "$work/none"
is "$status" 2 "an empty shard is refused"

# Calibrated, on a text that the tiny model's vocabulary has ids for.
. "$OCT_SRCDIR/tests/cli/bytes-tokenizer"
bytes_tokenizer "$work/bytes.json"
cat "$OCT_SRCDIR/README.md" >"$work/text"
run "$octet" convert --to awq --group-size 32 --calibration "$work/text" --windows 2 \
  --tokenizer "$work/bytes.json" "$golden/llama" "$work/aware"
is "$status" 0 "calibrated AWQ succeeds"
verify "$work/aware" "awq" "calibrated awq"
echo short >"$work/short"
run "$octet" convert --to awq --group-size 32 --calibration "$work/short" \
  --tokenizer "$work/bytes.json" "$golden/llama" "$work/none"
is "$status" 1 "a short text fails"
has "$err" "a calibration text has at least 512" "and says how long one is"
done_testing
