# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034  # root, preset, jobs, torch belong to ./cairn
# The commands of ./cairn for those who change Cairn: test, slowest, format, tidy. Uses its root, preset, build, say, stop, since.

# ./cairn test: each room's binary is one CTest test (a process with libtorch takes 0.4 s to start, so not one per case); cases
# are counted from their output. Base, comm and memory run once more under the address and undefined-behaviour sanitizers. A binary that
# fails runs once more, alone: many tests keep deadlines, and a busy machine misses some. The first failure is still reported.
run_test() {
  local filter='' started=$EPOCHREALTIME logs=() failed=0
  local arguments=()
  while (($#)); do
    case $1 in
      --filter)
        (($# > 1)) || stop "--filter: needs a regular expression, matched against room/Suite.Case"
        filter=$2
        shift 2
        ;;
      --filter=*) filter=${1#*=} && shift ;;
      *) arguments+=("$1") && shift ;;
    esac
  done
  case $preset in
    asan | tsan) test_in "$preset" '' ;;
    *)
      test_in "$preset" ''
      test_in asan '^(base|comm|memory)$'
      ;;
  esac
  say test "all done in $(since "$started")"
  awk -f "$root/tools/test_summary.awk" "${logs[@]:-/dev/null}" || failed=1
  return "$failed"
}

# Builds and runs one preset's tests, and appends its log to logs.
test_in() {
  local folder targets=() rooms=$2 chosen=() log status=0
  if [[ -n $rooms ]]; then
    targets=(test_base test_comm test_memory)
  fi
  build "$1" "${targets[@]}"
  if [[ -n $filter ]]; then
    select_cases "$folder" "$rooms"
    if [[ -z $rooms_selected ]]; then return; fi
    rooms="^($rooms_selected)\$"
    export GTEST_FILTER=$cases_selected
  fi
  if [[ -n $rooms ]]; then chosen=(-R "$rooms"); fi
  log=$folder/Testing/Temporary/LastTest.log
  rm -f "$log"
  say test "build/$1"
  ctest --test-dir "$folder" -j "$jobs" --no-tests=error "${chosen[@]}" "${arguments[@]}" >&2 || status=$?
  if [[ ! -f $log ]]; then stop "ctest ran nothing in build/$1 (exit $status)"; fi
  cp "$log" "$folder/tests.log"
  logs+=("$folder/tests.log")
  if ((status != 0)); then
    say test "build/$1: what failed runs again, one binary at a time"
    ctest --test-dir "$folder" -j 1 --rerun-failed "${arguments[@]}" >&2 || true
    cp "$log" "$folder/tests-again.log"
    logs+=("$folder/tests-again.log")
  fi
  unset GTEST_FILTER
}

# Sets cases_selected (a GoogleTest filter) and rooms_selected (a|b) to the cases whose room/Suite.Case matches filter.
select_cases() {
  local binary room found
  cases_selected=
  rooms_selected=
  for binary in "$1"/tests/test_*; do
    room=${binary##*/test_}
    if [[ ! -x $binary || -d $binary || (-n $2 && ! $room =~ $2) ]]; then continue; fi
    found=$("$binary" --gtest_list_tests | awk -v room="$room" '/^[^ ]/ { suite = $1 } /^  / { print room "/" suite $1 }' |
      { grep -E -- "$filter" || true; } | sed 's,^[^/]*/,,' | paste -sd:)
    if [[ -n $found ]]; then
      cases_selected+=${cases_selected:+:}$found
      rooms_selected+=${rooms_selected:+|}$room
    fi
  done
}

# ./cairn slowest: the last time each file was really compiled (not taken from ccache), in CPU seconds; then sums, by what needs the files.
# Files that are not part of the build any more do not count.
run_slowest() {
  local folder=$root/build/$preset log
  log=$folder/compile_times.log
  [[ -s $log ]] || stop "$log: nothing was compiled there yet; ./cairn build first"
  {
    ninja -C "$folder" -t inputs cairn 2>/dev/null | sed 's/^/cairn /' || true
    ninja -C "$folder" -t inputs cairn-lab 2>/dev/null | sed 's/^/cairn-lab /' || true
    ninja -C "$folder" -t targets all 2>/dev/null | sed 's/:.*//; s/^/built /'
    sed 's/^/time /' "$log"
  } | awk -v folder="$folder/" -v root="$root/" -v top="${1:-15}" -f "$root/tools/slowest.awk"
}

# The sources of ours, tracked or new.
list_sources() { git -C "$root" ls-files -co --exclude-standard -- "$@" | sort -u; }

run_format() {
  local mode=(-i) files
  command -v clang-format >/dev/null || stop "clang-format is missing: sudo apt-get install -y clang-format"
  if [[ ${1:-} == --check ]]; then
    mode=(--dry-run --Werror)
    shift
  fi
  if (($#)); then
    files=("$@")
  else
    cd "$root" && mapfile -t files < <(list_sources '*.h' '*.cpp' '*.cu' '*.cuh')
  fi
  clang-format "${mode[@]}" "${files[@]}"
}

# clang-tidy cannot read g++'s precompiled header, so it gets the plain one through a compile database without it.
run_tidy() {
  local files folder database
  command -v clang-tidy >/dev/null || stop "clang-tidy is missing: sudo apt-get install -y clang-tidy"
  count_jobs
  configure "$preset"
  database=$folder/tidy
  mkdir -p "$database"
  sed -E -e 's,-Winvalid-pch -include [^ ]*cmake_pch\.hxx,-include '"$root"'/cmake/pch.h,g' -e 's,-Wshadow=local,,g' \
    -e 's,-fno-trapping-math|-fno-math-errno,,g' "$folder/compile_commands.json" >"$database/compile_commands.json"
  if (($#)); then
    files=("$@")
  else
    cd "$root" && mapfile -t files < <(list_sources 'src/*.cpp')
  fi
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" clang-tidy --quiet -p "$database"
}
