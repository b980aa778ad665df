#!/bin/sh
# The ring under ThreadSanitizer, whatever the rest is built with; and a ring without its memory
# order, to see that the sanitizer would find the race.
. "$OCT_SRCDIR/tests/tap"

claim="the ring is free of data races"
cflags="-std=gnu17 -O1 -g -fsanitize=thread -I$OCT_SRCDIR $(pkg-config --cflags glib-2.0)"
libs="$(pkg-config --libs glib-2.0) -lm"
echo 'int main(void) { return 0; }' >"$work/probe.c"
# A compiler that is already told to use another sanitizer cannot use this one.
compiler=${OCT_CC:-cc}
# Kernels that scatter memory widely leave no place for the sanitizer's shadow.
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"
# shellcheck disable=SC2086 # flags are words
if ! $compiler $cflags "$work/probe.c" -o "$work/probe" 2>"$work/log" ||
  ! $fixed "$work/probe"; then
  skip "$claim" "$compiler has no thread sanitizer here"
  done_testing
fi

# build RING.c PROGRAM
build() {
  base=$OCT_SRCDIR/engine/base
  # shellcheck disable=SC2086
  $compiler $cflags "$OCT_SRCDIR/tests/engine/base/test-ring.c" "$1" "$base/rng.c" \
    "$base/assert.c" -o "$2" $libs
}

build "$OCT_SRCDIR/engine/base/ring.c" "$work/ring"
ok $? "the ring's test builds with the thread sanitizer"
run $fixed "$work/ring" --tap
is "$status" 0 "$claim"
[ "$status" = 0 ] || printf '%s\n' "$err" | head -n 40 | sed 's/^/# /'

sed 's/memory_order_\(acquire\|release\)/memory_order_relaxed/' "$OCT_SRCDIR/engine/base/ring.c" \
  >"$work/relaxed.c"
build "$work/relaxed.c" "$work/relaxed"
run $fixed "$work/relaxed" --tap
has "$err" "data race" "a ring without acquire and release is caught"

done_testing
