#!/bin/sh
# Kimi K3 as a user has it: golden checkpoints give the oracle's tokens over HTTP, on one GPU and on
# two where there are some; a checkpoint in the released layout, with its tokenizer, is checked,
# planned, served and talked to. OCT_K3_WORLDS chooses backends and flags, one a line.
. "$OCT_SRCDIR/tests/tap"

pids=
trap 'for p in $pids; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT
golden="$OCT_SRCDIR/tests/golden/kimi-k3"

if ! command -v curl >/dev/null || ! command -v python3 >/dev/null; then
  skip "Kimi K3 is served" "no curl, or no python3"
  done_testing
fi

# begin NAME FLAGS…: a server in the background; $pid, and $url or nothing.
begin() {
  name=$1
  shift
  rm -f "$work/$name.out"
  "$octet" serve "$@" --port 0 --max-num-seqs 4 --max-model-len 1024 \
    --num-gpu-blocks-override 128 >"$work/$name.out" 2>"$work/$name.err" &
  pid=$!
  pids="$pids $pid"
  until_true 'grep -qs serving "$work/$name.out" || ! kill -0 $pid 2>/dev/null'
  url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/$name.out")
}

post() { curl -s -m 60 "$url/v1/$1" -H 'Content-Type: application/json' -d "$2"; }

# list FILE KEY: a list of numbers of golden.json.
list() { sed -n "s/.*\"$2\": \[\([0-9, ]*\)\].*/\1/p" "$1" | tr -d ' '; }

end() {
  kill -TERM "$pid"
  wait "$pid"
  is $? 0 "$1 ends well"
}

cat >"$work/worlds" <<END
${OCT_K3_WORLDS:-cpu
cuda:dtype=float32
cuda:dtype=float32,devices=2 -tp 2
cuda:dtype=float32,devices=2 -pp 2}
END
while read -r world; do
  for model in tiny-a tiny-b tiny-linear; do
    # shellcheck disable=SC2086
    begin "$model" "$golden/$model" --skip-tokenizer-init --backend $world </dev/null
    if [ -z "$url" ] && grep -q 'no GPU\|without CUDA\|does not divide' "$work/$model.err"; then
      skip "$world: $model gives the oracle's tokens" \
        "$(sed -n 's/^octet serve: //p' "$work/$model.err")"
      continue
    fi
    file="$golden/$model/golden/golden.json"
    got=$(post completions "{\"prompt\":[$(list "$file" input_ids)],\"max_tokens\":16,
      \"temperature\":0,\"ignore_eos\":true,\"return_token_ids\":true}" |
      sed -n 's/.*"token_ids":\[\([0-9,]*\)\].*/\1/p')
    is "$got" "$(list "$file" greedy_ids)" "$world: $model gives the oracle's tokens"
    end "$world: $model"
  done
done <"$work/worlds"

# --- the released layout: tiny-a's shape with a vocabulary of 1,280 ranks and 256 special tokens
python3 - "$golden/tiny-a/config.json" "$work/config.json" <<'END'
import json, sys
config = json.load(open(sys.argv[1]))
for part in (config, config["text_config"]):
    part.update(bos_token_id=1280, eos_token_id=1282, pad_token_id=1535)
config["text_config"]["vocab_size"] = 1536
json.dump(config, open(sys.argv[2], "w"))
END
k3="$work/Kimi-K3"
python3 -B "$OCT_SRCDIR/tests/perf/k3_checkpoint.py" "$work/config.json" "$k3" --shard-gb 0.001 \
  >"$work/made"
ok $? "a checkpoint is made"
run "$octet" model verify "$k3"
is "$status" 0 "it is whole"
has "$out" "vision_tower.blocks.0.weight: another modality" "what has no use here is named"
run "$octet" model plan "$k3" -tp 2
is "$status" 0 "its bytes are planned"
has "$out" "padding that no rank reads                         2976 B" "A_log's padding is nobody's"

begin k3 "$k3"
has "$(cat "$work/k3.err")" "kimi-k3" "its chat format is found"
has "$(cat "$work/k3.err")" "GB/s" "the rate of its weights is told"
answer=$(post chat/completions '{"messages":[{"role":"user","content":"Who are you?"}],
  "max_tokens":24,"temperature":0}')
has "$answer" '"reasoning_content":"' "it thinks first"
has "$answer" '"completion_tokens":24' "it answers"
post chat/completions '{"messages":[{"role":"user","content":"Who are you?"}],
  "max_tokens":24,"temperature":0,"stream":true}' >"$work/stream"
has "$(cat "$work/stream")" '"reasoning_content":"' "its thoughts are streamed"
is "$(grep -c '<|open|>\|<|close|>\|<|sep|>\|<|end_of_msg|>' "$work/stream")" 0 "without markers"
answer=$(post chat/completions '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":200,
  "temperature":0,"tools":[{"type":"function","function":{"name":"f","parameters":
  {"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"],
  "additionalProperties":false}}}],"tool_choice":"required"}')
has "$answer" '"name":"f"' "a tool that must be called is called"
end "its server"

done_testing
