#!/bin/sh
# The style that a program can check, as TAP: one test per rule, and one per rule that plants a
# violation in a scratch tree and wants it found, so that no rule passes because it looks nowhere.
#
#   tests/tidy.sh [ROOT]     checks the tree (default: the one this script is in)
set -u
root=${1:-${OCT_SRCDIR:-$(cd "$(dirname "$0")/.." && pwd)}}
cc=${OCT_CC:-cc}
cflags=${OCT_CFLAGS:-$(pkg-config --cflags glib-2.0 jansson 2>/dev/null)}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
code_folders="engine backends kernels sim traces client cli tests"
columns_max=100
lines_max=700
function_max=70

# --- helpers: all rules run in the folder that they judge -------------------------------------

# Source files in the code folders with one of the given extensions, sorted.
sources() {
  pattern=$1
  for folder in $code_folders; do
    [ -d "$folder" ] && find "$folder" -type f
  done | grep -E "\.($pattern)\$" | LC_ALL=C sort
}

# FILE:LINE:CODE of C sources without comments, strings and character constants, so that the rules
# about code do not see prose. A // comment is left in place: it is what one rule looks for.
stripped() {
  sources 'c|h|cu|cuh' | tr '\n' '\0' | xargs -0 -r awk '
    FNR == 1 { inside = 0 }
    {
      line = $0; out = ""
      while (line != "") {
        if (inside) {
          end = index(line, "*/")
          if (!end) { line = ""; break }
          line = substr(line, end + 2); inside = 0
        } else if (match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|\047([^\047\\]|\\.)+\047/)) {
          found = substr(line, RSTART, RLENGTH)
          out = out substr(line, 1, RSTART - 1)
          rest = substr(line, RSTART + RLENGTH)
          if (found == "/*") { inside = 1; line = rest }
          else if (found == "//") { out = out "//"; line = "" }
          else { out = out "\"\""; line = rest }
        } else { out = out line; line = "" }
      }
      if (out ~ /[^ \t]/) print FILENAME ":" FNR ":" out
    }'
}

# --- the rules: each prints its violations, one a line ----------------------------------------

# What each layer may include: "layer: prefixes of headers". A file's layer is the longest that
# fits; a row that begins with + goes on with the one above.
matrix='
engine: engine/base/ engine/model/ engine/backend
engine/base: engine/base/
engine/model: engine/base/ engine/model/
engine/text: engine/base/ engine/model/ engine/text/
engine/sched: engine/base/ engine/model/ engine/text/ engine/obs/ engine/sched/
+ engine/backend.h
engine/obs: engine/base/ engine/obs/
engine/http: engine/base/ engine/obs/ engine/http/
engine/serve: engine/base/ engine/model/ engine/text/ engine/obs/ engine/sched/ engine/serve/
+ engine/backend.h
engine/api: engine/
backends: engine/base/ engine/model/ engine/backend kernels/ backends/
+ sim/profile sim/cost/ sim/platform/
kernels: kernels/
sim: engine/ backends/ sim/ traces/
sim/profile: engine/base/ engine/model/spec.h sim/profile
sim/cost: engine/base/ engine/model/ engine/backend.h sim/profile sim/cost/
sim/platform: engine/base/ engine/model/ engine/backend.h sim/profile sim/cost/
+ sim/platform/
traces: engine/base/ traces/
client: engine/base/ engine/backend.h sim/replay/ traces/ client/
cli: cli/ engine/ backends/ sim/ traces/ kernels/ client/
tests: tests/ cli/ engine/ backends/ sim/ traces/ kernels/ client/
'

include_matrix() {
  sources 'c|h|cu|cuh' | tr '\n' '\0' | xargs -0 -r awk -v matrix="$matrix" '
    BEGIN {
      n = split(matrix, rows, "\n")
      for (i = 1; i <= n; i++)
        if ((colon = index(rows[i], ":")) > 0) {
          row = substr(rows[i], 1, colon - 1); allowed[row] = substr(rows[i], colon + 1)
        } else allowed[row] = allowed[row] " " substr(rows[i], 2)
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
      split($0, part, "\""); header = part[2]
      if (header == "config.h") next
      if (header !~ /\//) { print FILENAME ":" FNR ": " header " lacks its folder"; next }
      layer = ""
      for (l in allowed)
        if (substr(FILENAME, 1, length(l)) == l && substr(FILENAME, length(l) + 1) ~ /^[.\/-]/)
          if (length(l) > length(layer)) layer = l
      n = split(allowed[layer], prefixes, " "); ok = 0
      for (i = 1; i <= n; i++) if (index(header, prefixes[i]) == 1) ok = 1
      if (!ok) print FILENAME ":" FNR ": " layer " must not include " header
    }
    /^[ \t]*#[ \t]*include[ \t]*<(simgrid|xbt)/ && FILENAME !~ /^(backends\/simgrid|tests)\// {
      print FILENAME ":" FNR ": SimGrid is known in backends/simgrid only"
    }
    /^[ \t]*#[ \t]*include[ \t]*<(cuda|cublas|nccl|nvml|cudnn)/ &&
      FILENAME !~ /^(backends\/cuda|kernels|tests)\// {
      print FILENAME ":" FNR ": CUDA is known in backends/cuda and kernels only"
    }'
}

# CUDA's own headers are not everywhere: what wants one is judged where it is found.
header_alone() {
  for header in $(sources 'h'); do
    printf '#include "%s"\n' "$header" >"$work/alone.c"
    # The flags are quoted as make quotes them.
    eval "$cc $cflags -I. -fsyntax-only -x c" '"$work/alone.c" >"$work/alone.log" 2>&1' ||
      grep -qE 'fatal error: .?cuda[a-z_]*\.h' "$work/alone.log" ||
      { echo "$header does not compile alone:"; head -n 5 "$work/alone.log"; }
  done
}

banned_calls() {
  stripped >"$work/stripped"
  everywhere='alloca|strcpy|strcat|v?sprintf|gets|strtok|g_return(_val)?_if_fail'
  grep -E "(^|[^A-Za-z0-9_])($everywhere)[ ]*\(" "$work/stripped"
  # The engine asks its backend for the time and its own generator for chance.
  in_engine='time|clock_gettime|gettimeofday|g_get_(monotonic|real)_time|s?rand|random'
  in_engine="$in_engine|g_random_[a-z_]*|(g_)?getenv|(g_)?usleep|(nano)?sleep"
  grep -E "^engine/" "$work/stripped" | grep -E "(^|[^A-Za-z0-9_.>])($in_engine)[ ]*\("
  # oct_assert() stays on in every build.
  grep -v '^tests/' "$work/stripped" | grep -E '(^|[^A-Za-z0-9_])(assert|g_assert)[ ]*\('
}

line_comments() {
  stripped | grep -E '^[^:]*\.[ch]:.*//'
}

file_lines() {
  sources 'c|h|cu|cuh|sh' | while read -r file; do
    n=$(wc -l <"$file")
    [ "$n" -le "$lines_max" ] || echo "$file has $n lines, at most $lines_max"
  done
}

# A function body runs from the line that ends in ") {" to the next } in the first column; one in a
# struct of CUDA code, where it is indented, to the next } that is indented so.
function_lines() {
  sources 'c|h|cu|cuh' | tr '\n' '\0' | xargs -0 -r awk -v max="$function_max" '
    FNR == 1 { start = 0; inside = 0 }
    /struct [a-z_]+ (: [^{]*)?\{$/ && FILENAME ~ /\.cuh?$/ { inside = 1 }
    !start && /\) (const )?\{$/ && !/^#/ { start = FNR }
    inside ? /^  }/ : /^}/ {
      n = FNR - start + 1
      if (start && n > max) print FILENAME ":" start ": a function of " n " lines, at most " max
      start = 0
    }
    /^}/ { inside = 0 }'
}

line_columns() {
  sources 'c|h|cu|cuh|sh' | tr '\n' '\0' |
    LC_ALL=C.UTF-8 xargs -0 -r grep -nHE "^.{$((columns_max + 1)),}" | cut -c 1-120
}

# A file that no fragment names is neither built nor packed; a rule's prerequisite is not named by
# that. Naming a folder covers what is in it.
fragments_complete() {
  find . -name Makefile.am.inc -o -name Makefile.am | sed 's|^\./||' | while read -r fragment; do
    sed -e "s|%D%|$(dirname "$fragment")|g" -e '/^[ \t]*#/d' "$fragment" |
      awk '/^[^\t=]*:[^=]/ || /^[^\t=]*:$/ { rule = 1 } !rule { print } !/\\$/ { rule = 0 }'
  done | tr -s ' \t\\=' '\n\n\n\n' | LC_ALL=C sort -u >"$work/named"
  for file in $(sources 'c|h|cu|cuh|sh|json|jsonl|ini|csv|txt|md'; find doc -name '*.md'); do
    path=$file
    until grep -qxF "$path" "$work/named"; do
      case $path in */*) path=${path%/*} ;; *)
        echo "$file is in no Makefile.am.inc"
        break
        ;;
      esac
    done
  done
}

# Every folder with code; the folders of tests are described by tests/README.md.
folder_readmes() {
  {
    for folder in $code_folders doc; do [ -d "$folder" ] && echo "$folder"; done
    sources 'c|h|cu' | grep -v '^tests/' | sed 's|/[^/]*$||'
  } | LC_ALL=C sort -u | while read -r folder; do
    [ -f "$folder/README.md" ] || echo "$folder has no README.md"
  done
}

# The project speaks of itself alone: no word on where or by whom it was written.
own_words() {
  words='/work/|/tmp/b-|brief\.md|[Ii]ssue #?[0-9]|(^|[ (])#[0-9]+([ ).,:;]|$)|TODO|FIXME'
  words="$words|(this|last|previous|next) session (of work|will|should|wrote|did)"
  {
    sources 'c|h|cu|cuh|sh|md|inc'
    find doc m4 -type f 2>/dev/null
    for file in README.md SECURITY.md configure.ac Makefile.am autogen.sh quickstart run-tests; do
      [ -f "$file" ] && echo "$file"
    done
  } | grep -v '^tests/tidy\.sh$' | tr '\n' '\0' | xargs -0 -r grep -nHE "$words"
}

# "rule: what passing it means"
rules='
include_matrix: layers include only what is below them
header_alone: every header compiles alone
banned_calls: no banned function is called
line_comments: C comments are /* */
file_lines: no file is longer than 700 lines
function_lines: no function is longer than 70 lines
line_columns: no line is wider than 100 columns
fragments_complete: every file is named in a Makefile.am.inc
folder_readmes: every folder has a README
own_words: the project speaks of itself alone
'

# --- planted violations -----------------------------------------------------------------------

# A small tree that breaks no rule.
plant_clean() {
  mkdir -p "$1/engine/base" "$1/cli" "$1/tests" "$1/doc"
  cd "$1" || exit 99
  printf '%s\n' '/* Fine. */' '#ifndef A' '#define A' \
    'int a(int x); /* time(), // and strcpy() */' '#endif' >engine/base/a.h
  printf '%s\n' '#include "engine/base/a.h"' '' '/* "x */' 'int' 'a(int x) {' \
    "  return x + (int)sizeof \"// getenv(\" + '\"'; /* #include \"cli/b.h\" */" '}' \
    >engine/base/a.c
  echo 'libengine_a_SOURCES = %D%/base/a.c %D%/base/a.h %D%/README.md %D%/base/README.md' \
    >engine/Makefile.am.inc
  echo 'EXTRA_DIST += cli/README.md tests/README.md doc/README.md' >Makefile.am
  for folder in engine engine/base cli tests doc; do echo "# $folder" >$folder/README.md; done
}

plant_include_matrix() {
  echo 'int b(void);' >cli/b.h
  echo 'EXTRA_DIST += cli/b.h' >>Makefile.am
  sed -i '1i #include "cli/b.h"' engine/base/a.c
}
plant_header_alone() { sed -i 's/int x/missing_type x/' engine/base/a.h; }
plant_banned_calls() { echo 'long b(void) { return time(0); }' >>engine/base/a.c; }
plant_line_comments() { echo 'int c; // see above' >>engine/base/a.c; }
plant_file_lines() { yes 'extern int d;' | head -n "$lines_max" >>engine/base/a.h; }
plant_function_lines() {
  {
    printf 'void\nf(void) {\n'
    yes '  a(1);' | head -n "$function_max"
    echo '}'
  } >>engine/base/a.c
}
plant_line_columns() { printf '/* %0100d */\n' 0 >>engine/base/a.c; }
plant_fragments_complete() { echo 'int e;' >engine/base/e.c; }
plant_folder_readmes() { rm engine/base/README.md; }
plant_own_words() { echo '/* Asked for in issue 7. */' >>engine/base/a.c; }

# Rules with several parts: one more violation each, "rule|file|line appended".
parts='
include_matrix|engine/base/a.c|#include <simgrid/actor.h>
include_matrix|engine/base/a.c|#include <cuda_runtime.h>
banned_calls|cli/b.c|void f(char *s) { strcpy(s, s); }
banned_calls|cli/b.c|void f(int n) { g_return_if_fail(n > 0); }
banned_calls|cli/b.c|void f(int n) { assert(n > 0); }
banned_calls|engine/base/a.c|double f(void) { return g_random_double(); }
banned_calls|engine/base/a.c|void f(void) { if (getenv("HOME")) g_usleep(1); }
fragments_complete|engine/base/b.json|{}
own_words|engine/base/README.md|Built from /work/main.
own_words|engine/base/README.md|This settles (#12).
'

# --- the run ----------------------------------------------------------------------------------
n=0
failed=0
report() { # STATUS CLAIM DETAILS-FILE
  n=$((n + 1))
  if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else
    failed=$((failed + 1))
    echo "not ok $n - $2"
    sed 's/^/# /' "$3"
  fi
}
each_rule() { printf '%s\n' "$rules" | sed -n 's/^\([a-z_]*\):.*/\1/p'; }

for rule in $(each_rule); do
  (cd "$root" && $rule) >"$work/found"
  [ ! -s "$work/found" ]
  report $? "$(printf '%s\n' "$rules" | sed -n "s/^$rule: //p")" "$work/found"
done

(plant_clean "$work/clean")
for rule in $(each_rule); do
  (cd "$work/clean" && $rule) >"$work/found"
  [ ! -s "$work/found" ]
  report $? "$rule accepts a clean tree" "$work/found"
  cp -r "$work/clean" "$work/$rule"
  (cd "$work/$rule" && "plant_$rule" && $rule) >"$work/found"
  [ -s "$work/found" ]
  report $? "$rule finds a planted violation" "$work/found"
done

while IFS='|' read -r rule file line; do
  [ -n "$rule" ] || continue
  rm -rf "$work/part"
  cp -r "$work/clean" "$work/part"
  (cd "$work/part" && printf '%s\n' "$line" >>"$file" && $rule) >"$work/found"
  [ -s "$work/found" ]
  report $? "$rule finds: $line" "$work/found"
done <<EOF
$parts
EOF

echo "1..$n"
exit "$((failed > 0))"
