#!/bin/sh
# octet audit: the report for people, its JSON, exit codes, and the manual.
. "$OCT_SRCDIR/tests/tap"

audits="$OCT_SRCDIR/sim/audits"
run "$octet" audit "$audits/deployment-8xb300.ini" --json "$work/a.json"
is "$status" 0 "an audit succeeds, whatever it finds"
is "$err" "" "it leaves stderr empty"
has "$out" "1.6 MB/s; 1.6 TB/s is 1e+06 times that" "the arithmetic is shown"
has "$out" "impossible" "and the verdicts"
has "$(cat "$work/a.json")" '"schema": "octet-audit-1"' "--json names its schema"
columns=$(printf '%s\n' "$out" |
  LC_ALL=C.UTF-8 awk '{ if (length > n) n = length } END { print n }')
[ "$columns" -le 100 ]
ok $? "the report is at most 100 columns wide"
sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' "$work/a.json" | LC_ALL=C sort -u | while read -r field; do
  grep -q "\`$field\`" "$OCT_SRCDIR/doc/audit.md" || echo "$field"
done >"$work/undescribed"
is "$(tr '\n' ' ' <"$work/undescribed")" "" "every field and key is described"
run "$octet" audit "$audits/deployment-8xb300.ini" --json -
is "$(printf '%s\n' "$out" | head -c 1)" "{" "--json - is all that standard output has"

run "$octet" audit --strict "$audits/kimi-k3-measured.ini"
is "$status" 0 "--strict: what is consistent succeeds"
run "$octet" audit --strict "$audits/llama-70b-one-gpu.ini"
is "$status" 1 "--strict: what is not exits with 1"

printf '[report]\nrequest_rate = 150 tok/s\n' >"$work/bad.ini"
run "$octet" audit "$work/bad.ini"
is "$status" 1 "a wrong unit exits with 1"
has "$err" "bad.ini:2: [report] request_rate = 150 tok/s: is in tokens/s, must be in requests/s" \
  "naming file, line, key, value and what it must be"
run "$octet" audit "$work/none.ini"
is "$status" 1 "a file that is not there exits with 1"
run "$octet" audit
is "$status" 2 "no file is wrong usage"

run "$octet" audit --help
printf '%s\n' "$out" | sed -n 's/^  \([a-z][a-z0-9_]*\)  .*/\1/p' | while read -r key; do
  grep -q "\`$key\`" "$OCT_SRCDIR/doc/audit.md" || echo "$key"
done >"$work/undescribed"
is "$(tr '\n' ' ' <"$work/undescribed")" "" "every key of --help is in the manual"

run "$octet" audit /dev/zero
is "$status" 1 "a file that has no end is refused"
has "$err" "more bytes than the limit of 1048576" "... naming the limit"
done_testing
