#!/bin/sh
# octet model: the list, the figures of a model under a layout, and what is refused.
. "$OCT_SRCDIR/tests/tap"

run "$octet" model list
is "$status" 0 "list succeeds"
is "$err" "" "list leaves stderr empty"
is "$(printf '%s\n' "$out" | wc -l)" 14 "list has a heading and 13 models"
for file in "$OCT_SRCDIR"/engine/model/zoo/*.json; do
  name=$(basename "$file" .json)
  has "$out" "$name " "list has $name"
  run "$octet" model show "$name"
  is "$status" 0 "show $name succeeds"
  has "$out" "$name (" "show $name begins with its name"
  run "$octet" model list
done
has "$out" "2779.48       104.19      1559.97         27,648      449,372,160" \
  "list has kimi-k3's figures"

run "$octet" model show kimi-k3 --tensor-parallel-size 8 --kv-cache-dtype fp8
is "$status" 0 "show kimi-k3 on 8 GPUs succeeds"
has "$out" "2,779,484,478,208" "show prints parameters"
has "$out" "104,189,614,848" "show prints active parameters"
has "$out" "1,559,965,606,912 B" "show prints bytes of weights"
has "$out" "195.8 GB" "show prints bytes per GPU"
has "$out" "13,824 B" "show prints fp8 cache per token"
has "$out" "56,171,520" "show prints state per GPU"

run "$octet" model show kimi-k3 --tensor-parallel-size 4 --pipeline-parallel-size 2 \
  --pipeline-layers 48,45
has "$out" "199,8" "show prints the fullest stage"
has "$out" "190,7" "show prints every stage"
has "$out" "48-92" "show prints a stage's layers"

run "$octet" model show kimi-k3 --tensor-parallel-size 8 --replicate-latent \
  --enable-expert-parallel --replicate-shared-experts
has "$out" "226.3 GB" "replicated weights are counted"

run "$octet" model show kimi-k3 --data-parallel-size 8 --enable-expert-parallel --json -
is "$status" 0 "--json - succeeds"
is "$(printf '%s\n' "$out" | head -n 1)" "{" "--json - prints JSON alone"
has "$out" '"weight_bytes_per_gpu": 294316540288' "JSON has bytes per GPU"
run "$octet" model list --json "$work/list.json"
is "$status" 0 "list --json FILE succeeds"
has "$(cat "$work/list.json")" '"name": "mixtral-8x7b"' "the file has the models"

mkdir "$work/mine"
cp "$OCT_SRCDIR/engine/model/zoo/smollm2-135m.json" "$work/mine/config.json"
run "$octet" model show "$work/mine"
has "$out" "mine (llama)" "show takes a folder"
run "$octet" model show --zoo "$work/mine" config
has "$out" "(llama): 30 layers" "show takes a zoo folder"
echo '{"model_type": "llama"' >"$work/mine/config.json"
run "$octet" model show "$work/mine/config.json"
is "$status" 1 "a broken config fails"
has "$err" "config.json:2:" "a broken config: the message has file and line"
is "$out" "" "a broken config prints nothing on stdout"

# plan: what each rank reads; with files the golden checkpoint, without them a config of the zoo.
run "$octet" model plan "$OCT_SRCDIR/tests/golden/kimi-k3/tiny-a" --tensor-parallel-size 2 \
  --enable-expert-parallel --json "$work/plan.json"
is "$status" 0 "plan of a checkpoint succeeds"
has "$out" "548 tensors in 2 files, 2645472 bytes" "plan says what the files hold"
has "$out" "padding that no rank reads" "plan says what no rank reads"
has "$(cat "$work/plan.json")" '"weight_bytes": 2645472' "plan's JSON has the files' bytes"
has "$(cat "$work/plan.json")" '"cut_scale_bytes": 0' "whole experts cut no group of codes"
run "$octet" model plan llama-3.1-70b --tensor-parallel-size 4 --pipeline-parallel-size 2
is "$status" 0 "plan of a zoo model succeeds"
has "$out" "as the config has them, without files" "plan without files says so"
has "$out" "17639407616" "plan has the bytes of a rank of the first stage"
has "$out" "17639424000" "plan has the bytes of a rank of the last stage"

# refused STATUS PART ARGUMENT…
refused() {
  wanted=$1 part=$2
  shift 2
  run "$octet" model "$@"
  is "$status" "$wanted" "exit status $wanted: $*"
  has "$err" "$part" "the message has the reason: $*"
}
refused 1 "kimi-k9" show kimi-k9
refused 1 "does not divide the 96 attention heads" show kimi-k3 --tensor-parallel-size 7
refused 1 "has no experts" show llama-3.1-8b --enable-expert-parallel
refused 1 "92 layers together" show kimi-k3 --pipeline-parallel-size 2 --pipeline-layers 46,46
refused 1 "/nonexistent/x.json" list --json /nonexistent/x.json
refused 2 "tensor-parallel-size 0" show kimi-k3 --tensor-parallel-size 0
refused 2 "tensor-parallel-size -1" show kimi-k3 --tensor-parallel-size=-1
refused 2 "99999999999" show kimi-k3 --tensor-parallel-size 99999999999
refused 2 "pipeline-layers ''" show kimi-k3 --pipeline-layers ""
refused 2 "pipeline-layers 'a,b'" show kimi-k3 --pipeline-layers a,b
refused 2 "pipeline-layers" show kimi-k3 --pipeline-layers 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1
refused 2 "int8" show kimi-k3 --kv-cache-dtype int8
refused 2 "show which model" show
refused 2 "this option takes no value" show kimi-k3 --enable-expert-parallel=2
run "$octet" model show kimi-k3 --tensor-parallel-size 8 --pipeline-parallel-size 2
long=$out
run "$octet" model show kimi-k3 -tp 8 -pp=2
is "$out" "$long" "-tp and -pp are short for the sizes"
refused 1 "tensor parallel size 3 does not divide the 64 attention heads" plan llama-3.1-70b \
  --tensor-parallel-size 3
refused 1 "has no experts" plan llama-3.1-8b --enable-expert-parallel
refused 1 "no checkpoint in this folder" plan "$OCT_SRCDIR/tests/golden"
refused 2 "kv-cache-dtype is of show" plan kimi-k3 --kv-cache-dtype fp8
refused 2 "plan which model" plan
refused 2 "list takes no argument" list kimi-k3
refused 2 "frob" frob
refused 2 "at least 1" --json x

done_testing
