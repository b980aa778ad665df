#!/bin/sh
# The manuals and the folders' READMEs against the program: each command of a block of the manuals
# runs; everywhere each flag that a command is given in the text is one of its own, each key of a
# backend too, and each file that is named exists.
. "$OCT_SRCDIR/tests/tap"

manuals=$(cd "$OCT_SRCDIR" && echo README.md doc/*.md)
readmes=$(cd "$OCT_SRCDIR" && find backends cli client engine kernels sim traces tests \
  -name README.md ! -path 'tests/golden/*' | sort)
pages="$manuals $readmes"

# Commands of octet in the pages, a line each: "PAGE KIND COMMAND", where KIND is block (a line of a
# block, continuations joined) or text (between backquotes, which may go over a line's end).
commands() {
  for page in $pages; do
    awk -v page="$page" '
      function say(kind, text) {
        sub(/^\$ /, "", text); sub(/[ \t]+# .*/, "", text); gsub(/[ \t]+/, " ", text)
        if (text ~ /^octet [a-z]/) print page, kind, text
      }
      function prose(   n, part, i) {
        n = split(paragraph, part, "`")
        for (i = 2; i <= n; i += 2) say("text", part[i])
        paragraph = ""
      }
      /^```/ { prose(); block = !block; joined = ""; next }
      block || /^    [^ ]/ {
        line = $0; sub(/^ */, "", line)
        if (line ~ /\\$/) { sub(/\\$/, "", line); joined = joined line; next }
        say("block", joined line); joined = ""; next
      }
      /^$/ { prose(); next }
      { paragraph = paragraph " " $0 }
      END { prose() }' "$OCT_SRCDIR/$page"
  done
}
commands >"$work/commands"
n=$(wc -l <"$work/commands")
[ "$n" -gt 100 ]
ok $? "the pages have commands ($n)"

# --- flags: help NAME prints those of a command, or of a command of two words
help() {
  file="$work/help-$(echo "$1" | tr ' ' '-')"
  # shellcheck disable=SC2086 # a name of two words
  [ -f "$file" ] || "$octet" $1 --help >"$file" 2>/dev/null
  cat "$file"
}

name_of() {
  # shellcheck disable=SC2046
  set -- $(printf '%s\n' "$1" | tr -d ',;:')
  case ${2:-} in
  model | trace) case ${3:-} in -* | "") echo "$2" ;; *) echo "$2 $3" ;; esac ;;
  *) echo "${2:-}" ;;
  esac
}

while read -r page kind line; do
  name=$(name_of "$line")
  case $name in help | version) continue ;; esac
  if [ -z "$(help "$name")" ]; then
    echo "$page: octet $name: no such command"
    continue
  fi
  for flag in $(printf '%s\n' "$line" | sed "s/'[^']*'//g; s/\"[^\"]*\"//g" |
    grep -oE '(^| )--[a-z][a-z0-9-]*' || :); do
    help "$name" | grep -qE -- "$flag([=, ]|\$)" || echo "$page: octet $name has no $flag"
  done
done <"$work/commands" >"$work/wrong"
is "$(sort -u "$work/wrong")" "" "each command exists, and has the flags that it is given"

# --- keys of backends, as in cuda:nvls=1
"$octet" help backends >"$work/backends"
for page in $pages; do
  grep -oE '\b(cpu|cuda|mock|fault|record|remote|simgrid):[a-z_]+=' "$OCT_SRCDIR/$page" | sort -u |
    tr ':=' '  ' | while read -r world key; do
    awk -v world="$world" -v key="$key" '
      /^[a-z]/ { there = $1 == world ":" || $1 == world "@:"; known += there }
      there && $1 == key { found = 1 }
      END { exit known && !found }' "$work/backends" || echo "$page: $world has no key $key"
  done
done >"$work/keys"
is "$(cat "$work/keys")" "" "each key that a backend is given is one of its own"

# --- files that are named
for page in $pages; do
  grep -oE '`(backends|cli|client|doc|engine|kernels|sim|tests|tools|traces)/[A-Za-z0-9_./*-]+`' \
    "$OCT_SRCDIR/$page" | tr -d '`' | sort -u | while read -r file; do
    # shellcheck disable=SC2086 # a pattern
    for found in "$OCT_SRCDIR"/$file "$OCT_SRCDIR"/$file.c "$OCT_SRCDIR"/$file.ini \
      "$OCT_SRCDIR"/$file-*.md; do
      [ ! -e "$found" ] || continue 2
    done
    # A program is what a Makefile names.
    grep -qs "%D%/${file#*/}\$" "$OCT_SRCDIR/${file%%/*}/Makefile.am.inc" && continue
    echo "$page: $file"
  done
done >"$work/missing"
is "$(cat "$work/missing")" "" "each file that is named exists"

# --- commands that run, each shortened
if ! "$octet" --version | grep -q 'SimGrid: [0-9]'; then
  skip "each command of a block runs" "SimGrid is not built in"
  done_testing
fi

mkdir "$work/run" && cd "$work/run" || exit 99
ln -s "$OCT_SRCDIR/sim" sim
"$octet" trace gen azure-conv-2023 --requests 400 -o day.trace
# The manual's own lines make the trace of two classes.
octet() { "$octet" "$@"; }
eval "$(grep -E '^octet trace gen .*\.trace$|^[{] cat ' "$OCT_SRCDIR/doc/scenarios.md")"
is "$(grep -c '"class":"' two.trace)" "$(($(wc -l <two.trace) - 1))" \
  "a trace of two classes is made as the manual says"
{
  echo TIMESTAMP,ContextTokens,GeneratedTokens
  awk 'BEGIN { for (i = 0; i < 300; i++)
    printf "2023-11-16 18:%02d:%02d.0000000,%d,%d\n", i / 60, i % 60, 200 + i, 20 + i % 30 }'
} >TRACE.csv
cp TRACE.csv TRACE

# What stands in the place of names, and what makes a run short. An empty line: not to be run here.
shortened() {
  line=$(printf '%s\n' "$1" | sed 's/--slo …/--slo ttft_p99=2s,tpot_p99=50ms/
    s/--model …/--model llama-3.1-8b/; s/--node …/--node h200-hgx8/
    s/ … / --model llama-3.1-70b --node h200-hgx8 /
    s/ …$/ --model llama-3.1-70b --node h200-hgx8/')
  case $line in
  *…* | "octet serve"* | *URL* | *DIR* | *FILE* | *mine.ini* | *--steps* | *bench.json*) ;;
  "octet plan "*day.trace*)
    echo "$line --max-gpus 2 --coarse-requests 20" | sed 's/--worst-window 5min/--worst-window 20s/'
    ;;
  "octet plan "*) echo "$line --max-gpus 2 --coarse-requests 20 --duration 1s --seeds 1" ;;
  "octet replay "*--json*) echo "$line --limit 300 --warmup 1s" ;;
  "octet replay "*) echo "$line --limit 30" ;;
  "octet audit "* | "octet compare "*) echo "$line" ;;
  esac
}

# Those of the case study run in its own test.
"$OCT_SRCDIR/tools/case-study" --list >"$work/elsewhere"
ran=0
while read -r page kind line; do
  case $page in README.md | doc/*) ;; *) continue ;; esac
  [ "$kind" = block ] && ! grep -Fxq -- "$line" "$work/elsewhere" || continue
  line=$(shortened "$line")
  [ "$line" ] || continue
  eval "set -- ${line#octet }"
  ran=$((ran + 1))
  "$octet" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null || {
    grep -q 'does not fit\|no verdict is possible' "$work/stderr" ||
      echo "$page: $line: $(head -n 1 "$work/stderr")"
  } >>"$work/failed"
done <"$work/commands"
touch "$work/failed"
is "$(cat "$work/failed")" "" "each command of a block runs, or says why it cannot ($ran)"
[ "$ran" -ge 28 ]
ok $? "... which are all of replay, plan, audit and compare but those that need files"

done_testing
