#!/bin/bash
# The tests of CUDA kernels under compute-sanitizer, in their quick mode, and which kernels no test
# has launched.
#
#   tests/kernels/cuda/sanitize.sh --kernels BUILD > KERNELS
#       the kernels compiled into BUILD/kernels/cuda, one a line: file, name
#   tests/kernels/cuda/sanitize.sh "PROGRAM..." KERNELS OUT [TOOL...]
#       runs each test of the programs by itself under each TOOL (memcheck, racecheck, synccheck,
#       initcheck), with logs in OUT, and each program once whole and without a tool; succeeds when
#       no tool finds anything and every kernel of KERNELS that the GPU can run was launched, by
#       name whatever its types and sizes. JOBS_MAX (default 12) run at a time, SECONDS_MAX
#       (default 300) bounds each. Needs a GPU; compute-sanitizer comes with CUDA.
#       For racecheck the kernels are built with -DOCT_FOR_RACECHECK among NVCCFLAGS
#       (`kernels/cuda/barrier.cuh`); otherwise it names each warp that arrives by one lane.
set -u

# Kernels of object files, by the handle that each has on the host.
kernels_of() {
  for object in "$1"/kernels/cuda/*.o; do
    nm "$object" | FILE=$(basename "$object" .o) perl -ne '
      print "$ENV{FILE} ", substr($2, 14, $1 - 14), "\n"
        if /_ZZL(\d+)(__device_stub_.*)E8__handle/'
  done | sort -u
}

# A kernel's name without its types, from what the linker calls it.
plain_names() {
  c++filt | sed 's/^void //; s/(anonymous namespace):://; s/[<(].*//' | sort -u
}

if [ "${1:-}" = --kernels ]; then
  kernels_of "$2"
  exit
fi
programs=$1 kernels=$2 out=$3
shift 3
[ $# -gt 0 ] || set -- memcheck racecheck synccheck initcheck
mkdir -p "$out"
rm -f "$out"/*.log "$out"/*.rc "$out"/launches*
export OCT_CUDA_QUICK=1 CUDA_MODULE_LOADING=LAZY

# What a tool is not to look at, by a part of kernels' names.
excluded() { # TOOL
  case $1 in
    # cuBLASLt's product of e4m3 by e4m3, whose reads and writes of shared memory it takes for a
    # race: not this project's code.
    racecheck) echo --kernel-name-exclude kns=nvjet_sm90_qq ;;
  esac
}
run() { # NAME COMMAND...: a log, and how it ended
  local name=$1 begin
  shift
  begin=$SECONDS
  timeout -k 5 "${SECONDS_MAX:-300}" "$@" > "$out/$name.log" 2>&1
  echo "$? $((SECONDS - begin))" > "$out/$name.rc"
}
tests_of() { # PROGRAM: paths of its tests
  "$1" -l | grep '^/'
}
room() { # waits for a place
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS_MAX:-12}" ]; do
    wait -n
  done
}
for tool; do
  for program in $programs; do
    name=$(basename "$program")
    for path in $(tests_of "$program"); do
      room
      # shellcheck disable=SC2046 # words, or none
      run "$name.${path##*/}.$tool" compute-sanitizer --tool "$tool" $(excluded "$tool") \
        --error-exitcode 99 --print-limit 20 "$program" -p "$path" &
    done
  done
done
for program in $programs; do
  name=$(basename "$program")
  room
  OCT_CUDA_LAUNCHES=$out/launches.$name run "$name.plain" env -u OCT_CUDA_QUICK "$program" &
done
wait

failed=0
for rc in "$out"/*.rc; do
  read -r code seconds < "$rc"
  [ "$code" = 0 ] || failed=1
  log=${rc%.rc}.log
  printf '%-60s %3s %4s s  %s\n' "$(basename "$rc" .rc)" "$code" "$seconds" \
    "$(grep -aE 'ERROR SUMMARY|RACECHECK SUMMARY' "$log" | tail -1 | tr -d '=')"
done
cat "$out"/launches.* | sort -u > "$out/launches"
cut -d' ' -f2 "$kernels" > "$out/compiled"
# Of Blackwell's tensor memory.
case $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1) in
  10.*) ;;
  *) sed -i '/multiply_block_scaled/d' "$out/compiled" ;;
esac
left=$(comm -23 <(plain_names < "$out/compiled") <(plain_names < "$out/launches") | tr '\n' ' ')
echo "$(grep -cxFf "$out/compiled" "$out/launches") of $(wc -l < "$out/compiled") kernels by type" \
  "and size were launched; by name none of: ${left:-(all were)}"
[ -z "$left" ] || failed=1
exit $failed
