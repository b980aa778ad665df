#!/bin/sh
# octet compare: the table, its JSON, its page, and what is refused.
. "$OCT_SRCDIR/tests/tap"

replay() {
  "$octet" replay chat-150 --limit 400 --model llama-3.1-8b --max-num-seqs 64 --warmup 0s "$@" \
    >/dev/null
}

replay --backend mock --json "$work/a.json"
replay --backend mock:fixed_ns=2000000 --json "$work/b.json"
run "$octet" compare "$work/a.json" "$work/a.json"
is "$status" 0 "a run is compared with itself"
is "$err" "" "it leaves stderr empty"
has "$out" "0 of 12 differences are more than chance." "and does not differ"
has "$out" "the same requests in both: 400 pairs" "the requests are paired"
run "$octet" compare "$work/a.json" "$work/b.json" --json "$work/c.json"
is "$status" 0 "two runs are compared"
has "$out" "longer" "slower steps are found"
has "$out" "12 tests are looked at together (Holm, at 5 %)" "the tests are judged together"
has "$out" "(one value each: no interval)" "figures of a whole run have no interval"
columns=$(printf '%s\n' "$out" |
  LC_ALL=C.UTF-8 awk '{ if (length > n) n = length } END { print n }')
[ "$columns" -le 100 ]
ok $? "the table is at most 100 columns wide"
has "$(cat "$work/c.json")" '"schema": "octet-compare-1"' "--json names its schema"
sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' "$work/c.json" | LC_ALL=C sort -u | while read -r field; do
  grep -q "\`$field\`" "$OCT_SRCDIR/doc/compare.md" "$OCT_SRCDIR/doc/replay.md" || echo "$field"
done >"$work/undescribed"
is "$(cat "$work/undescribed")" "" "doc/compare.md and doc/replay.md describe every field"

run "$octet" replay chat-150 --limit 400 --model llama-3.1-8b --backend mock --warmup 0s \
  --max-num-seqs 8,64 --json "$work/two.json"
run "$octet" compare "$work/two.json"
is "$status" 0 "one file with two reports will do"
run "$octet" compare "$work/a.json"
is "$status" 2 "one report is refused"
has "$err" "it takes two" "with the reason"
run "$octet" compare "$work/a.json" "$work/none.json"
is "$status" 2 "a file that is not there is refused"
run "$octet" compare "$work/a.json" "$work"
has "$err" "is a folder" "a folder is named as one"
run "$octet" compare "$work/a.json" "$work/b.json" --html -
is "$status" 2 "a page cannot go to standard output"
OCT_CHART_JS=/nowhere run "$octet" compare "$work/a.json" "$work/b.json" --html "$work/c.html"
is "$status" 2 "without the plot library a page is refused"
has "$err" "libjs-chart.js" "and the package is named"

done_testing
