#!/bin/bash
# tools/precompile_headers with a mock of clang that reads the headers from a file and records each compilation.
source tests/shell_cases.sh
script=$PWD/tools/precompile_headers

# Leaves the caller in a fresh folder, with the mock first in PATH.
make_place() {
  place=$(mktemp -d "${TEST_TMPDIR:-/tmp}/precompile.XXXXXX")
  cd "$place"
  mkdir bin
  cat >bin/clang <<'CLANG'
#!/bin/bash
[[ $* == --version ]] && exec echo "clang version 1"
cat >"$PLACE/includes"
[[ " $* " == *" -E "* ]] && exec cat "$PLACE/headers"
echo "$*" >>"$PLACE/calls"
sleep "${CLANG_SECONDS:-0}"
while [[ $1 != -o ]]; do shift; done
echo compiled >"$2"
exit "${CLANG_FAILS:-0}"
CLANG
  chmod +x bin/clang
  export PATH=$place/bin:$PATH PLACE=$place XDG_CACHE_HOME=$place/cache
  echo "int f();" >headers
  : >calls
}

case_the_headers_are_compiled_once_and_the_file_is_printed() {
  make_place
  local file
  file=$("$script")
  [[ $file == "$place"/cache/nvllm/precompiled/*.pch && $(<"$file") == compiled ]]
  grep -q '#include <vector>' includes
  [[ $("$script") == "$file" && $(calls) == 1 ]]
}

case_other_headers_make_another_file() {
  make_place
  local file
  file=$("$script")
  echo "int g();" >headers
  [[ $("$script") != "$file" && $(calls) == 2 ]]
}

case_two_at_a_time_print_the_same_whole_file() {
  make_place
  export CLANG_SECONDS=1
  "$script" >a &
  "$script" >b
  wait
  [[ $(<a) == "$(<b)" && $(<"$(<a)") == compiled ]]
}

case_a_failure_leaves_and_prints_nothing() {
  make_place
  CLANG_FAILS=1 refused "$script" >out
  [[ ! -s out && -z $(find cache -type f) ]]
  "$script" >out  # the next one tries again
  [[ -s out ]]
}

case_without_clang_it_fails_and_prints_nothing() {
  make_place
  PATH=/nowhere refused "$script" >out
  [[ ! -s out ]]
}

run_cases
