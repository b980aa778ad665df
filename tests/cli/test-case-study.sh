#!/bin/sh
# The case study: its commands are those of tools/case-study, each parses and runs, and the script
# makes a table.
. "$OCT_SRCDIR/tests/tap"

tool="$OCT_SRCDIR/tools/case-study"
run "$tool" --list
is "$status" 0 "the tool lists its commands"
printf '%s\n' "$out" >"$work/commands"
sed -n '/^```$/,/^```$/p' "$OCT_SRCDIR/doc/case-study.md" | grep '^octet replay' >"$work/page"
cmp -s "$work/commands" "$work/page"
ok $? "the page has the commands of the tool"
rows=$(wc -l <"$work/page")
is "$(grep -c '^| [a-z0-9-]* | .* |$' "$OCT_SRCDIR/doc/case-study.md")" "$((rows + 1))" \
  "and a row for each"

if ! "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  skip "each command runs" "SimGrid is not built in"
  skip "a short table" "SimGrid is not built in"
  done_testing
fi

# One request of each: what cannot be parsed or built fails with 2; what does not fit says so.
while read -r line; do
  # shellcheck disable=SC2086
  "$octet" ${line#octet } --limit 1 >"$work/stdout" 2>"$work/stderr" && continue
  grep -q 'does not fit' "$work/stderr" || echo "$line: $(head -n 1 "$work/stderr")"
done <"$work/page" >"$work/failed"
is "$(cat "$work/failed")" "" "each command runs, or says what does not fit"

run "$tool" --short --octet "$octet" tp8 pairs-tp4pp2 four
is "$status" 0 "a short table is made"
has "$out" "| tp8 | TP8, NVSwitch | " "it has a row that runs"
has "$out" "| four | 4 GPUs | refused: kimi-k3 does not fit" "and one that is refused"
run "$tool" --frobnicate
is "$status" 2 "unknown options are refused"

done_testing
