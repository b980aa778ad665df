#!/bin/sh
# octet chat without a terminal: lines of input are questions, output is the answers.
. "$OCT_SRCDIR/tests/tap"

# refused STATUS PART ARGUMENT…
refused() {
  wanted=$1 part=$2
  shift 2
  run "$octet" chat "$@" </dev/null
  is "$status" "$wanted" "exit status $wanted: $*"
  has "$err" "$part" "the message has the reason: $*"
}
refused 1 "connection refused" http://127.0.0.1:1
refused 2 "only http, https and unix" ftp://h
refused 2 "at most 1" a b
refused 2 "temperature \"3\"" http://h --temperature 3
refused 2 "max-tokens \"0\"" http://h --max-tokens 0
refused 1 "no-such-model" ./no-such-model

"$octet" serve --backend mock --uds "$work/socket" --disable-access-log >"$work/served" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; rm -rf "$work"' EXIT
# say INPUT OPTION…
say() {
  input=$1
  shift
  printf "$input" | "$octet" chat "unix:$work/socket" --max-tokens 8 "$@" >"$work/stdout" \
    2>"$work/stderr"
  status=$?
  out=$(cat "$work/stdout")
  err=$(cat "$work/stderr")
}
say 'Hello\n'
is "$status" 0 "a question is answered"
is "$err" "" "stderr is empty"
[ -n "$out" ]
ok $? "the answer is on stdout"
say ''
is "$status" 0 "no question, no error"
is "$out" "" "and no answer"
say 'one\ntwo\n/save '"$work"'/talk.json\n' --system "Be short."
is "$status" 0 "a conversation goes on"
roles=$(sed -n 's/^ *"role": "\([a-z]*\)".*/\1/p' "$work/talk.json" | tr '\n' ' ')
is "$roles" "system user assistant user assistant " "/save writes all of it"
say 'one\n/reset\n/system\ntwo\n/save '"$work"'/talk.json\n/exit\nthree\n' --system x
roles=$(sed -n 's/^ *"role": "\([a-z]*\)".*/\1/p' "$work/talk.json" | tr '\n' ' ')
is "$roles" "user assistant " "/reset and /system forget, /exit ends"
say 'one\\\ntwo\n"""three\nfour"""\n/save '"$work"'/talk.json\n'
has "$(cat "$work/talk.json")" '"one\ntwo"' "a line goes on behind a backslash"
has "$(cat "$work/talk.json")" '"three\nfour"' "fences hold several lines"
ln -s talk.json "$work/link.json"
say 'five\n/save '"$work"'/link.json\n'
has "$(cat "$work/talk.json")" '"five"' "a link leads to the file that is written"
say '/frobnicate\n'
has "$err" "there is no command /frobnicate" "a command that is none is told"
say 'Hello\n' --model none
is "$status" 1 "a question that is not answered fails"
has "$err" "status: " "with the server's reason"
kill "$server"
wait "$server"

# A model of its own.
printf 'Hello\n' | "$octet" chat smollm2-135m --backend mock:fixed_ns=1000000,clock=real \
  --max-tokens 8 >"$work/stdout" 2>"$work/stderr"
is "$?" 0 "a model of its own is started and asked"
[ -s "$work/stdout" ]
ok $? "and answers"
printf 'Hello\n' | "$octet" chat smollm2-135m --backend cpu >"$work/stdout" 2>"$work/stderr"
is "$?" 1 "a server that does not start is told"
has "$(cat "$work/stderr")" "weights" "in its own words"
done_testing
