#!/bin/sh
# octet validate: what it refuses, and its report where there are recordings.
. "$OCT_SRCDIR/tests/tap"

run "$octet" validate
is "$status" 2 "without recordings it is wrong usage"
has "$err" "--data DIR" "... and says what is missing"
run "$octet" validate --operators --data "$work"
is "$status" 1 "a folder without recordings is refused"
has "$err" "aic_gemm_vllm0.24.0.csv" "... naming the file"
mkdir "$work/endless" && ln -s /dev/zero "$work/endless/aic_gemm_vllm0.24.0.csv"
run "$octet" validate --operators --data "$work/endless"
is "$status" 1 "a recording that has no end is refused"
has "$err" "aic_gemm_vllm0.24.0.csv: more bytes than the limit" "... naming the file and the limit"
run "$octet" validate --jobs 0
is "$status" 2 "no jobs is wrong usage"
for flag in "--model x" "--node x" "--skip-steps 5" "--moe-kernel own" "--expert-routing uniform" \
  "--only x" "--rows 3" --infer --seen; do
  # shellcheck disable=SC2086
  run "$octet" validate --operators --data "$work" $flag
  is "$status" 2 "$flag without its part is wrong usage"
done
for flag in "--moe-kernel best" "--expert-routing power:1" "--expert-routing file:"; do
  # shellcheck disable=SC2086
  run "$octet" validate --steps "$work/log" --model kimi-k3 --node h200x1 $flag
  is "$status" 2 "$flag is wrong usage"
done
run "$octet" validate --served "$work/twin.json"
is "$status" 2 "a prediction without measurements is wrong usage"
has "$err" "--measured BENCH.json" "... and says what is missing"
run "$octet" validate --measured "$work/bench.json"
is "$status" 2 "measurements without a prediction are wrong usage"
has "$err" "--served REPLAY.json" "... and says what is missing"
if "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  # A run against itself is off by nothing.
  "$octet" replay gen:requests=40,input=64,output=8,rate=20,seed=3 --model llama-3.1-8b \
    --node h200x1 --json "$work/twin.json" > "$work/replay.txt"
  run "$octet" validate --served "$work/twin.json" --measured "$work/twin.json"
  is "$status" 0 "a prediction is compared with what was measured"
  has "$out" "8 of 8 figures held" "... figure by figure"
fi
run "$octet" validate --operators --data "$work" --quick --errors "$work/errors.ini"
is "$status" 2 "figures that are quoted are of whole parts"
has "$err" "without --quick" "... and it says so"
run "$octet" validate --operators --data "$work" --json "$work/none/x.json"
is "$status" 1 "a report that cannot be written is refused"
has "$err" "none/x.json" "... before anything runs"

run "$octet" validate --operators --data "$work" --errors "$work/none/errors.ini"
is "$status" 1 "a file of errors that cannot be written is refused"
has "$err" "none/errors.ini" "... before anything runs"

recordings="${OCT_SHARED:-$OCT_SRCDIR/../shared}/groundtruth"
if [ -d "$recordings" ]; then
  run "$octet" validate --data "$recordings" --operators --quick --json "$work/report.json"
  is "$status" 0 "kernels are scored"
  has "$out" "| GEMM BF16 " "the tables are Markdown"
  has "$out" "Quick: the first of" "a quick run says so"
  has "$(cat "$work/report.json")" "octet-validate-1" "the report is JSON too"
  if "$octet" --version | grep -q 'SimGrid: [0-9]'; then
    run "$octet" validate --data "$recordings" --silicon --quick --rows 1 --only Llama
    is "$status" 0 "published runs are simulated"
    has "$out" 'Only models whose name has "Llama"' "... those that are asked for"
    has "$out" "A sample: at most 1 rows" "... and a sample says so"
  fi
fi
done_testing
