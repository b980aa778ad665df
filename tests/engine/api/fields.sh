#!/bin/sh
# TAP: doc/http-api.md names every field that the tables of engine/api have, and every route.
set -u
root=${OCT_SRCDIR:-$(cd "$(dirname "$0")/../../.." && pwd)}
doc=$root/doc/http-api.md
n=0
failed=0
check() { # NAME CLAIM
  n=$((n + 1))
  if grep -qF "$1" "$doc"; then echo "ok $n - $2"; else
    echo "not ok $n - $2"
    failed=$((failed + 1))
  fi
}

# Rows: FIELD(name, …) and its kin, OCT_FIELD(struct, name, …), OCT_FIELD_REFUSE("name", …).
of_struct='OCT_FIELD\([a-z_ ]+, *'
of_table='\b(FIELD|TOOL|MESSAGE|FORMAT)\('
of_nobody='OCT_FIELD_(IGNORE|REFUSE)\("'
fields=$(cat "$root"/engine/api/*.c | tr '\n' ' ' |
  grep -oE "($of_struct|$of_table|$of_nobody)[a-z_]+" | grep -vE '(\(|, *)(member|type)$' |
  sed -E 's/.*[(," ]([a-z_]+)$/\1/' | LC_ALL=C sort -u)
for field in $fields; do check "\`$field\`" "the field $field is documented"; done

routes=$(grep -oE '^ +\{"/[a-z0-9_/]*"' "$root/engine/api/api.c" | tr -d ' {"' | LC_ALL=C sort -u)
for route in $routes; do check "$route" "the route $route is documented"; done

[ "$n" -gt 100 ] || failed=1
echo "1..$n"
exit "$((failed > 0))"
