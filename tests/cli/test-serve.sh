#!/bin/sh
# octet serve: what it refuses, whom it answers, where its flags and models come from, how it ends.
. "$OCT_SRCDIR/tests/tap"

pids=
trap 'for p in $pids; do kill -9 "$p" 2>/dev/null; done; rm -rf "$work"' EXIT

# --- what is refused, before anything is opened
stops() { # STATUS CLAIM PART ARGUMENTS…
  wanted=$1 claim=$2 part=$3
  shift 3
  run "$octet" serve "$@"
  is "$status" "$wanted" "$claim ends with $wanted"
  has "$err" "$part" "$claim says why"
}
refuses() { stops 2 "$@"; } # wrong usage
fails() { stops 1 "$@"; }
refuses "no model" "which model?"
refuses "a model of the zoo, on cpu," "has no weights" llama-3.1-8b
refuses "a file that is not there" "./no.gguf: there is no such file" ./no.gguf
refuses "two models" '"b" is given as well' --model a b
refuses "an unknown flag" "--nonsense" --backend mock --nonsense
refuses "TLS" "--ssl-keyfile: TLS" --backend mock --ssl-keyfile k
refuses "a flag of vLLM with underscores" "--trust-remote-code: model files are data" \
  --trust_remote_code
refuses "chunked prefill turned off" "--no-enable-chunked-prefill: prompts come in chunks" \
  --backend mock --no-enable-chunked-prefill
refuses "a list of values" 'max-num-seqs "1,2": a list of values has no meaning' --backend mock \
  --max-num-seqs 1,2
refuses "a port out of range" "--port: 65536" --backend mock --port 65536
refuses "a port below 0" "--port: -1" --backend mock --port -1
refuses "a socket without a path" "--uds: a path" --backend mock --uds ""
refuses "an empty name" "--served-model-name: a name" --backend mock --served-model-name ""
refuses "a limit below its least" "--header-timeout-ms: 9 ms is below the limit of 10" \
  --backend mock --header-timeout-ms 9
refuses "a stall of no time" "--stalled-after: 0" --backend mock --stalled-after 0
refuses "an end of no time" "--shutdown-timeout: -1 is not from 0" --backend mock \
  --shutdown-timeout -1
refuses "a grace of more than a day" "--drain-grace: 86401 is not" --backend mock \
  --drain-grace 86401
refuses "several nodes" "nodes 2: of octet replay" --backend mock --nodes 2
refuses "another router" 'router "round-robin": of octet replay' --backend mock --router round-robin
refuses "a stage without layers" 'pipeline-layers "16,0": layers of each stage, 1 or more' \
  --backend mock --pipeline-layers 16,0
refuses "replicas for prompts" "prefill-replicas 1: of octet replay" --backend mock --replicas 2 \
  --prefill-replicas 1
refuses "experts in turn" 'expert-routing "balanced": of octet replay' --backend mock \
  --expert-routing balanced
refuses "measured experts" 'expert-routing "file:F": of octet replay' --backend mock \
  --expert-routing file:F
refuses "a cache in fp8, on cpu," 'kv-cache-dtype "fp8": the cpu backend keeps float32' \
  smollm2-135m --load-format dummy --kv-cache-dtype fp8
refuses "a cache and its opposite" "kv=float32 of --backend says the opposite" smollm2-135m \
  --load-format dummy --backend cpu:kv=float32 --kv-cache-dtype bfloat16
refuses "an empty key" "a key is empty" --backend mock --api-key ""
refuses "simgrid without a node" "A profile such as h200-hgx8" llama-3.1-8b --backend simgrid
refuses "two parsers that do not go together" "does not go with" --backend mock \
  --tool-call-parser hermes --reasoning-parser kimi_k2
refuses "mock in this process" "in-process: of --backend cuda" --backend mock --in-process
refuses "a world around cuda in this process" "in-process: of --backend cuda" llama-3.1-8b \
  --load-format dummy --backend fault:rate=0@cuda --in-process
refuses "a fixed order and its opposite" "says the opposite" llama-3.1-8b --load-format dummy \
  --backend cuda:fixed_order=0 --batch-invariant
refuses "another pace" "a server's clock is real" --backend mock --pace 2
# A backend that is none, or not built in, is told before its model is looked for.
fails "a backend that is none" 'no backend "mok"; there are: mock' --backend mok nobody/nothing
fails "a template that is none" "chat-template nothing: 'nothing' is neither a family" \
  --backend mock --chat-template nothing
fails "a key that is none" 'mock: option "clok=real" is not known' --backend fault@mock:clok=real
if "$octet" --version | grep -q '^CUDA: not'; then
  fails "cuda that is not built in" "built without CUDA: configure" --backend cuda nobody/nothing
else # told with or without a GPU
  refuses "a type that cuda does not compute in" 'dtype: "float16": --backend ' llama-3.1-8b \
    --load-format dummy --backend cuda --dtype float16
  has "$err" "computes in bfloat16" "... and names the one that it does"
  mkdir "$work/half"
  sed 's/"bfloat16"/"float16"/' "$OCT_SRCDIR/engine/model/zoo/smollm2-135m.json" \
    >"$work/half/config.json"
  refuses "... which may be that of the files" 'dtype: "float16": --backend ' "$work/half" \
    --load-format dummy --backend cuda --dtype float16
fi
for world in mock cpu; do
  fails "$world with a virtual clock" "$world has a virtual clock: it cannot serve unless" \
    smollm2-135m --load-format dummy --port 0 --backend "$world:clock=virtual"
done
fails "a wrapper of a virtual clock" "fault has a virtual clock" --port 0 \
  --backend fault@mock:clock=virtual
run "$octet" serve --backend mock --host example.org
is "$status" 1 "a host's name fails"
has "$err" "names are not looked up" "and says why"
run "$octet" serve --backend mock --api-key-file /dev/zero
is "$status" 1 "a file of keys without an end fails"
has "$err" "/dev/zero: longer than 1048576 bytes" "and says why"

# --- the cpu's cache: 46,080 B a token in float32, half of them in bfloat16
pages() { # WANTED CLAIM ARGUMENTS…
  wanted=$1 claim=$2
  shift 2
  run "$octet" serve smollm2-135m --load-format dummy --kv-cache-memory-bytes 7372800 \
    --host example.org "$@"
  has "$out$err" " $wanted KV pages of 16" "$claim"
}
pages 10 "the cpu keeps its cache in float32"
pages 10 "... by --kv-cache-dtype auto too" --kv-cache-dtype auto
pages 20 "... and in bfloat16 where that is asked for" --kv-cache-dtype bfloat16
pages 20 "... of a cpu with options" --kv-cache-dtype bfloat16 --backend cpu:threads=1
pages 20 "... and by the backend's own key" --backend cpu:kv=bfloat16

# --- config files
config() { # TEXT PART CLAIM
  printf '%b' "$1" >"$work/c.yaml"
  run "$octet" serve --backend mock --host example.org --config "$work/c.yaml"
  has "$err" "$2" "$3"
}
config 'prot: 1\n' "c.yaml:1: there is no flag --prot" "an unknown key is refused with its line"
config '# a\n\nport: {a: 1}\n' "c.yaml:3: of YAML, plain values" "nested YAML is refused"
config 'port:\n  a: 1\n' "c.yaml:1: port has no value" "a key without a value is refused"
config 'enable_log_requests: yes\n' "is true or false" "a switch is true or false"
config 'port: "80\n' "c.yaml:1: a quoted value ends" "an open quote is refused"
config 'served-model-name:\n' "served-model-name has no value" "an empty list is refused"
config 'port 8000\n' 'not "key: value"' "a line without a colon is refused"
config 'port: 99999 # high\n' "--port: 99999" "values are taken without their comments"
config 'stalled-after: false\n' "Cannot parse integer value" "a number is no switch"
config 'port: 1\nhost: a\nport: 2\n' "c.yaml:3: port is given twice" "a key twice is refused"
config 'config: a\n' "a file names no other" "a file names no other file"
config 'ssl-keyfile: a\n' "there is no flag --ssl-keyfile" "keys that cannot be honoured as well"

# --- Hugging Face's cache
hub="$work/hf/hub/models--org--tiny"
mkdir -p "$hub/refs" "$hub/snapshots/abc123"
cp "$OCT_SRCDIR/engine/model/zoo/smollm2-135m.json" "$hub/snapshots/abc123/config.json"
HF_HOME="$work/hf" run "$octet" serve org/none --backend mock
is "$status" 1 "a model that was not downloaded fails"
has "$err" "$work/hf/hub/models--org--none/snapshots/main" "and is told where it was looked for"
HF_HOME="$work/hf" run "$octet" serve org/tiny --revision ../x --backend mock
has "$err" "no name and revision" "a revision stays in its folder"
printf 'abc123\n' >"$hub/refs/main"

if ! command -v curl >/dev/null; then
  skip "servers are asked" "no curl"
  done_testing
fi

# --- helpers that serve
# Starts a server; its address is in $url.
serve() {
  : >"$work/out"
  "$octet" serve "$@" >"$work/out" 2>"$work/err" &
  pid=$!
  pids="$pids $pid"
  until_true 'grep -q serving "$work/out" || ! kill -0 $pid 2>/dev/null'
  url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/out")
}
ask() { curl -s -m 30 "$@"; }
code() { ask -o /dev/null -w '%{http_code}' "$@"; }
json='Content-Type: application/json'
# ends SIGNAL STATUS CLAIM
ends() {
  kill "-$1" $pid
  wait $pid
  is $? "$2" "$3"
}

# --- answers
serve --backend mock --port 0 --gpu-memory-utilization 0.9
has "$(cat "$work/err")" "gpu-memory-utilization has no effect" "what has no effect is said"
has "$(cat "$work/out")" "octet: serving mock on http://127.0.0.1:" "mock needs no model"
is "$(code "$url/health")" 200 "it is healthy"
is "$(code -H 'Host: evil.example' "$url/health")" 421 "pages by other names are not answered"
is "$(code "$url/nothing")" 404 "it has no other routes"
chat='{"messages":[{"role":"user","content":"hi"}],"max_tokens":5,"ignore_eos":true}'
answer=$(ask "$url/v1/chat/completions" -H "$json" -d "$chat")
has "$answer" '"completion_tokens":5' "it answers a chat"
stream=$(ask -N "$url/v1/chat/completions" -H "$json" -d "${chat%?},\"stream\":true}")
has "$stream" '"finish_reason":"length"' "it streams"
has "$stream" "data: [DONE]" "a stream ends in [DONE]"
has "$(ask -D - -o /dev/null -H 'X-Request-Id: my-id' "$url/health")" "X-Request-Id: my-id" \
  "a request's id comes back"
until_true 'grep -q "POST /v1/chat/completions 200" "$work/err"' # a thread of its own writes it
ok $? "there is an access log"
has "$(ask "$url/metrics")" "octet:http_requests_total" "metrics have the server's counts"
ends TERM 0 "SIGTERM ends an idle server well"

# --- steps, and ids without a tokenizer
refuses "a step log at a path that a world's name cannot hold" "record-steps: \"a@b\"" \
  --backend mock --record-steps a@b
LD_DEBUG=libs LD_DEBUG_OUTPUT=$work/libraries serve --backend mock --port 0 --skip-tokenizer-init \
  --record-steps "$work/cuda.jsonl"
stream=$(ask -N "$url/v1/completions" -H "$json" -d '{"prompt":[5,6,7],"max_tokens":4,
  "ignore_eos":true,"stream":true,"return_token_ids":true}')
is "$(printf '%s\n' "$stream" | grep -c '"token_ids":\[[0-9][0-9]*\]')" 4 \
  "without a tokenizer each token's id has its chunk"
ends TERM 0 "it ends well"
is "$(head -n 1 "$work/cuda.jsonl")" '{"octet_steps":1,"clock":"real"}' "the step log has a head"
has "$(cat "$work/cuda.jsonl")" '"prefill":[[3,0]]' "the prompt's step"
has "$(cat "$work/cuda.jsonl")" '"decode":[3]' "and the decodes"
is "$(grep -l libnvidia-ml "$work"/libraries.*)" "" "a path that has cuda in it asks for no GPUs"

# --- keys and names, from everywhere
printf '# keys\nfile-key\n' >"$work/keys"
cat >"$work/c.yaml" <<END
port: 0
api-key-file: '$work/keys'
disable-access-log: true
enable-log-requests: false
model: llama-3.1-8b
served-model-name:
  - first
  - "second"  # and last
max-model-len: 100
END
OCTET_API_KEY=env-key serve smollm2-135m --backend mock --config "$work/c.yaml" --api-key flag-key \
  --max-model-len 200
is "$(code "$url/v1/models")" 401 "without a key nothing is told"
is "$(code "$url/health")" 200 "but health"
is "$(code -H 'Host: a.proxy' "$url/health")" 200 "with keys, any name is one"
for key in file-key env-key flag-key; do
  is "$(code -H "Authorization: Bearer $key" "$url/v1/models")" 200 "$key is a key"
done
is "$(code -H "Authorization: Bearer flag-ke" "$url/v1/models")" 401 "a part of one is none"
models=$(ask -H "Authorization: Bearer env-key" "$url/v1/models")
has "$models" '"id":"second"' "names come from the file"
has "$models" '"max_model_len":200' "the command line wins"
has "$models" '"root":"smollm2-135m"' "also with its model"
grep -q "GET /v1/models" "$work/err"
is $? 1 "the access log is off"
ends INT 0 "SIGINT ends it well"

# --- switches and their opposites, in a file and behind it
prefixes() { ask "$url/metrics" | sed -n 's/.*enable_prefix_caching="\([^"]*\)".*/\1/p'; }
# switches YAML FLAGS PREFIX-CACHING LINES CLAIM
switches() {
  printf '%b' "$1" >"$work/c.yaml"
  serve --backend mock --port 0 --config "$work/c.yaml" $2
  is "$(prefixes)" "$3" "$5: prefix caching"
  ask -o /dev/null "$url/livez"
  [ "$4" -eq 0 ] || until_true 'grep -q "GET /livez" "$work/err"'
  is "$(grep -c 'GET /livez' "$work/err")" "$4" "$5: the access log"
  kill -TERM $pid
  wait $pid
}
off='enable-prefix-caching: false\ndisable-access-log: true\n'
on='no-enable-prefix-caching: true\ndisable-access-log: false\n'
switches "$off" "" False 0 "a file's false turns off"
switches "$off" "--enable-prefix-caching --no-disable-access-log" True 1 "flags win over false"
switches "$on" "--enable_prefix_caching --disable-access-log" True 0 "flags win over the opposite"
switches "" "--no-enable-prefix-caching --disable-access-log --enable-prefix-caching \
  --no-disable-access-log" True 1 "the last of two counts"
refuses "the opposite of nothing" "--no-nonsense" --backend mock --no-nonsense
refuses "a switch with a value" "no-disable-access-log" --backend mock \
  --no-disable-access-log=1

# --- a model of the cache
HF_HOME="$work/hf" serve org/tiny --backend mock --port 0
has "$(ask "$url/v1/models")" "snapshots/abc123" "refs name the snapshot"
ends TERM 0 "and it ends well"
HF_HOME="$work/hf" serve org/tiny --revision abc123 --backend mock --port 0 --allowed-host a.proxy
is "$(code -H 'Host: a.proxy' "$url/health")" 200 "a name can be allowed"
has "$(ask "$url/v1/models")" '"id":"org/tiny"' "a commit names it too"
ends TERM 0 "and it ends well too"

# --- clients that leave, and the server's end; a step takes 20 ms
slow=mock:fixed_ns=20000000
begin() { # TOKENS ARGUMENTS…: a stream in the background: $client
  tokens=$1
  shift
  : >"$work/stream"
  curl -s -N "$@" -H "$json" >"$work/stream" -d \
    "{\"prompt\":\"hi\",\"max_tokens\":$tokens,\"ignore_eos\":true,\"stream\":true}" &
  client=$!
  until_true '[ $(grep -c data: "$work/stream") -gt 2 ]'
}
endless=8000 # for a test: minutes
running() { ask "$url/metrics" | grep -c '^vllm:num_requests_running{.*} 1$'; }
serve --backend $slow --port 0 --record "$work/record.jsonl" --enable-log-requests
begin $endless "$url/v1/completions"
is "$(running)" 1 "a stream runs"
kill $client
until_true '[ "$(running)" -eq 0 ]'
is "$(running)" 0 "it is cancelled when its client has left"
begin 100 "$url/v1/completions"
kill -TERM $pid
until_true '! ask -o /dev/null "$url/livez"'
ok $? "a server that drains takes no more connections"
wait $client
has "$(cat "$work/stream")" "[DONE]" "and ends its streams"
has "$(cat "$work/stream")" '"finish_reason":"length"' "whole"
wait $pid
is $? 0 "then it exits well"
has "$(cat "$work/err")" "outcome=length prompt=2" "requests are logged with their phases"
run "$octet" replay "$work/record.jsonl" --model smollm2-135m --backend mock
is "$status" 0 "what was recorded can be replayed"

serve --backend $slow --port 0 --shutdown-timeout 0
begin $endless "$url/v1/completions"
ends TERM 1 "out of time, it exits with failure"
wait $client
has "$(cat "$work/stream")" 'data: {"error":' "each stream is told"
has "$(cat "$work/stream")" "[DONE]" "and ended"

serve --backend $slow --port 0 --drain-grace 3600
kill -TERM $pid
until_true '[ "$(code "$url/readyz")" = 503 ]'
ok $? "a lame server is not ready"
is "$(code "$url/livez")" 200 "but lives"
is "$(code "$url/v1/chat/completions" -H "$json" -d "$chat")" 200 "and still answers"
sleep 0.4 # what comes sooner is the first one's echo
ends TERM 1 "a second signal exits at once"

serve --backend $slow --uds "$work/socket"
is "$(ls -l "$work/socket" | cut -c 1-10)" "srw-------" "a Unix socket is the owner's"
begin $endless --unix-socket "$work/socket" http://localhost/v1/completions
kill -STOP $pid # what comes meanwhile comes at once
kill -TERM $pid
kill -INT $pid
kill -CONT $pid
until_true 'grep -q draining "$work/err"'
sleep 0.4
kill -0 $pid
ok $? "an echo of the signal is none"
ends TERM 1 "a second signal does not wait for streams"
[ ! -e "$work/socket" ]
ok $? "and removes the socket"
wait $client

# --- logs and records that are not taken
answers() { # N: so many requests of two tokens, each answered with 200
  short='{"prompt":"hi","max_tokens":2,"ignore_eos":true}'
  ask -o /dev/null -w '%{http_code}\n' "$url/v1/completions?[1-$1]" -H "$json" -d "$short" |
    grep -c 200
}
metric() { ask "$url/metrics" | sed -n "s/^$1 //p"; }
serve --backend mock --port 0 --record /dev/full
is "$(answers 300)" 300 "a record on a full disk holds up nobody"
until_true '[ "$(metric octet:record_rows_dropped_total)" -gt 0 ]'
ok $? "what is not recorded is counted"
until_true 'grep -q "record: .*nothing more is recorded" "$work/err"'
ok $? "and said"
ends TERM 1 "a record that is not whole is a failure"

# A server whose pipes are held by a process that reads nothing.
mkfifo "$work/pipe" "$work/rows"
sleep 600 <"$work/pipe" &
holder=$!
sleep 600 <"$work/rows" &
pids="$pids $holder $!"
: >"$work/out" # before it is looked at: the last server's says "serving" too
"$octet" serve --backend mock --port 0 --record "$work/rows" >"$work/out" 2>"$work/pipe" &
pid=$!
pids="$pids $pid"
until_true 'grep -q serving "$work/out"'
url=$(sed -n 's/.* on \(http[^ ]*\) .*/\1/p' "$work/out")
path=$(printf '%1800s' '' | tr ' ' a)
is "$(ask -o /dev/null -w '%{http_code}\n' "$url/$path?[1-9000]" | grep -c 404)" 9000 \
  "a log that nobody reads holds up nobody"
[ "$(metric octet:log_lines_dropped_total)" -gt 0 ]
ok $? "lines that are dropped are counted"
is "$(answers 300)" 300 "nor does a record that nobody reads"
is "$(code "$url/livez")" 200 "and the server lives"
ends TERM 1 "it ends in time, with failure"
serve --backend mock --port 0 --record "$work/no/such/place"
wait $pid
is $? 1 "a record that cannot be opened fails at once"
has "$(cat "$work/err")" "cannot write" "and says why"

# --- weights that are not there
mkdir "$work/bare"
cp "$OCT_SRCDIR/tests/golden/hf/llama/config.json" "$work/bare"
run "$octet" serve "$work/bare" --skip-tokenizer-init --port 0
is "$status" 1 "a model without weights fails"
has "$err" "no engine lives" "and says why"
is "$out" "" "and never that it serves"

# --- what is made up ends
serve --backend mock --port 0
hi='"messages":[{"role":"user","content":"Hi"}]'
tool='{"type":"function","function":{"name":"f","parameters":{"type":"object",
  "properties":{"a":{"type":"string"}},"required":["a"]}}}'
has "$(ask "$url/v1/chat/completions" -H "$json" -d "{$hi}")" '"finish_reason":"stop"' \
  "an answer of no stated length ends by itself"
has "$(ask "$url/v1/chat/completions" -H "$json" -d "{$hi,\"tools\":[$tool],
  \"tool_choice\":\"required\"}")" '"finish_reason":"tool_calls"' "and a call of a tool comes"
ends TERM 0 "it ends as asked"

# --- an engine that hangs does not hold up health
serve --backend "fault:script=hang/3@mock" --port 0 --stalled-after 1
curl -s "$url/v1/completions" -H "$json" -d '{"prompt":"hi","max_tokens":100}' >/dev/null &
client=$!
until_true '[ "$(code "$url/health")" = 503 ]'
has "$(ask "$url/health")" '"status":"stalled","reason":"no step has ended' "stalled, it says"
is "$(code "$url/readyz")" 503 "a server whose engine hangs is not ready"
is "$(code "$url/livez")" 200 "but lives"
kill $client
kill -TERM $pid
kill -TERM $pid
wait $pid
done_testing
