#!/bin/sh
# octet's own options, the table of commands, and what a wrong command line gets.
. "$OCT_SRCDIR/tests/tap"

run "$octet" --version
is "$status" 0 "--version succeeds"
is "$(printf '%s\n' "$out" | head -n 1)" \
  "octet $(sed -n 's/^AC_INIT(\[octet\], \[\(.*\)\])$/\1/p' "$OCT_SRCDIR/configure.ac")" \
  "--version prints the package's version first"
has "$out" "SimGrid: " "--version says whether SimGrid is built in"

run "$octet" --help
is "$status" 0 "--help succeeds"
is "$err" "" "--help leaves stderr empty"
# Every command of the table is listed, has a file, and prints help of its own.
for name in $(sed -n 's/^ *ROW(\([a-z]*\),.*/\1/p' "$OCT_SRCDIR/cli/cli.h"); do
  has "$out" "  $name " "--help lists $name"
done
commands=$(printf '%s\n' "$out" | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
for name in $commands; do
  run "$octet" "$name" --help
  is "$status" 0 "$name --help succeeds"
  has "$out" "octet $name " "$name --help shows how it is called"
  help=$out
  run "$octet" help "$name"
  is "$out" "$help" "help $name prints the same as $name --help"
  run "$octet" "$name" --no-such-option
  is "$status" 2 "$name refuses an unknown option with status 2"
  has "$err" "--no-such-option" "$name names the option it refuses"
done

run "$octet"
is "$status" 2 "no command is wrong usage"
run "$octet" frobnicate
is "$status" 2 "an unknown command exits with 2"
has "$err" "frobnicate" "an unknown command is named"
is "$out" "" "an unknown command prints nothing on stdout"
run "$octet" help frobnicate
is "$status" 2 "help of an unknown command exits with 2"
run "$octet" --frobnicate
is "$status" 2 "an unknown option exits with 2"
run "$octet" help backends
is "$status" 0 "help backends succeeds"
for name in mock: cpu: cuda: fault@: remote@:; do
  has "$out" "
$name " "help backends has $name"
done
has "$out" "
  nvls " "... and the keys of each"
run "$octet" help help help
is "$status" 2 "too many arguments exit with 2"
has "$err" "at most 1" "too many arguments: the message says how many are taken"
run "$octet" help -- -x
is "$status" 2 "-- ends the options"
has "$err" "no command '-x'" "what follows -- is an argument, dash or not"

if [ -w /dev/full ]; then
  "$octet" --help >/dev/full 2>"$work/err"
  is $? 1 "output that cannot be written is a failure"
  "$octet" --version >/dev/full 2>"$work/err"
  is $? 1 "so is a version that cannot be written"
else
  skip "output that cannot be written is a failure" "no /dev/full"
fi

done_testing
