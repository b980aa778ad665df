#!/bin/sh
# Pages of --html in headless Chromium: nothing is said on its console, and every plot is drawn.
. "$OCT_SRCDIR/tests/tap"

chromium=$(command -v chromium || command -v chromium-browser || :)
why=
[ -n "$chromium" ] || why="chromium is not installed"
[ -f /usr/share/javascript/chart.js/chart.min.js ] || why="libjs-chart.js is not installed"
if [ -n "$why" ]; then
  skip "pages are drawn" "$why"
  done_testing
fi

browse() {
  HOME=$work timeout 120 "$chromium" --headless=new --no-sandbox --disable-gpu \
    --disable-dev-shm-usage --user-data-dir="$work/profile" "$@"
}

# look NAME WIDTH [FLAG…]: opens $work/NAME.html with the checking script in it; what that found in
# $found, what the browser's console said in $said.
look() {
  name=$1 width=$2
  shift 2
  cat "$work/$name.html" "$OCT_SRCDIR/tests/sim/page/check.html" >"$work/$name-check.html"
  browse --window-size="$width",900 --virtual-time-budget=5000 --enable-logging=stderr --dump-dom \
    "$@" "file://$work/$name-check.html" >"$work/dom" 2>"$work/browser"
  found=$(sed -n '/<pre id="found">/,/<\/pre>/p' "$work/dom")
  said=$(grep CONSOLE "$work/browser")
}

# drawn NAME WORDS [FLAG…]: the page at two widths and in the dark; each of WORDS is a plot's id.
drawn() {
  page=$1 plots=$2
  for view in "1280" "500" "1280 --blink-settings=preferredColorScheme=0"; do
    # shellcheck disable=SC2086 # a width and flags
    look "$page" $view
    is "$said" "" "$page at $view: the console is silent"
    missing=
    for plot in $plots; do
      case $found in *"plot $plot drawn"*) ;; *) missing="$missing $plot" ;; esac
    done
    is "$missing" "" "$page at $view: every plot is drawn"
    empty=$(printf '%s\n' "$found" | grep -e ' blank$' -e ' frame$')
    is "$empty" "" "$page at $view: none is empty"
    has "$found" "external 0" "$page at $view: nothing comes from elsewhere"
    has "$found" "wide fits" "$page at $view: it is no wider than the window"
  done
}

case $("$octet" --version) in *"SimGrid: not built in"*) simgrid= ;; *) simgrid=yes ;; esac
chat="$OCT_SRCDIR/traces/samples/chat.jsonl"
common="cdf-request cdf-token ttft-time itl-time running-time kv-time batch-sizes gantt-steps
  gantt-requests"

run "$octet" replay chat-150 --rate 20 --duration 20s --model llama-3.1-8b --backend mock \
  --html "$work/mock.html" --json "$work/a.json"
is "$status" 0 "a page is written"
drawn mock "$common"
run "$octet" replay chat-150 --rate 20 --duration 20s --model llama-3.1-8b --backend mock \
  --html "$work/again.html"
cmp -s "$work/mock.html" "$work/again.html"
ok $? "an equal run writes equal bytes"
size=$(wc -c <"$work/mock.html")
[ "$size" -lt 1000000 ]
ok $? "the page is below 1 MB"

run "$octet" replay "$chat" --model llama-3.1-8b --backend mock --policy decode-first,vllm-v1 \
  --html "$work/several.html"
is "$status" 0 "a page of several configurations is written"
drawn several "cdf-ttft cdf-tpot cdf-itl cdf-e2e ttft-time running-time batch-sizes"

run "$octet" replay chat-150 --duration 4s --model llama-3.1-8b --backend mock --find-capacity \
  --html "$work/capacity.html"
is "$status" 0 "a page of a capacity is written"
drawn capacity "cdf-request cdf-token ttft-time running-time batch-sizes"

run "$octet" replay chat-150 --rate 22 --duration 20s --model llama-3.1-8b --backend mock \
  --json "$work/b.json"
run "$octet" compare "$work/a.json" "$work/b.json" --html "$work/compare.html"
is "$status" 0 "a page of two runs compared is written"
drawn compare "cdf-ttft cdf-tpot cdf-itl cdf-e2e ttft-time itl-time running-time batch-sizes"

run "$octet" plan --input 1 --output 1 --exact-lengths --no-async-scheduling --duration 2s \
  --seeds 2 --coarse-requests 200 --max-gpus 2 --model llama-3.1-8b --backend mock \
  -tp 1 --max-num-seqs 1 --max-num-batched-tokens 1 --num-gpu-blocks-override 256 \
  --slo ttft_mean=20ms --html "$work/plan.html"
is "$status" 0 "a page of a plan is written"
drawn plan "pareto-ttft what-if"
has "$(cat "$work/dom")" "On the front" "a table names the points of the front"
has "$(cat "$work/dom")" "Error of these figures" "its error is stated"
has "$(cat "$work/dom")" "the scheduler is told the true output length" "its assumptions are listed"

if [ "$simgrid" ]; then
  for node in b300-hgx8 pairs-4rc; do
    run "$octet" replay chat-150 --rate 4 --duration 20s --model llama-3.1-70b --node "$node" \
      --html "$work/$node.html"
    is "$status" 0 "a page of $node is written"
    drawn "$node" "$common step-parts loads topology"
  done
  run "$octet" replay gen:rate=20,input=300,output=30,requests=400,class=chat -tp 4 \
    --model llama-3.1-8b --node h200-hgx8 --scenario "$OCT_SRCDIR/sim/scenarios/rush.ini" \
    --scenario "$OCT_SRCDIR/sim/scenarios/power-cap.ini" --client-timeout 1min --warmup 1s \
    --slo ttft_p99=1s --class-slo chat:ttft_p99=2s --worst-window 5s --speculative-config \
    '{"method":"ngram","num_speculative_tokens":3,"acceptance":0.6}' --html "$work/what-if.html"
  is "$status" 0 "a page of a scenario is written"
  look what-if 500
  is "$said" "" "what-if: the console is silent"
  for part in "What happened on the way" "Energy of all GPUs" "cap: capacity x 1" \
    "Classes of requests" "The worst stretch" "Speculative decoding"; do
    has "$(cat "$work/dom")" "$part" "what-if: the page has \"$part\""
  done
  has "$found" "wide fits" "what-if: it is no wider than a phone"
  # On paper: one page or more, of one size.
  browse --print-to-pdf="$work/page.pdf" "file://$work/b300-hgx8.html" >/dev/null 2>&1
  head -c 5 "$work/page.pdf" | grep -q '%PDF-'
  ok $? "it can be printed"
else
  skip "pages of a simulated node" "SimGrid is not built in"
fi

done_testing
