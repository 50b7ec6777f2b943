#!/bin/bash
# ./nvllm-launch in a temporary workspace, with a mock of Bazel that records each call in `calls`.
source tests/shell_cases.sh
script=$PWD/nvllm-launch

# Leaves the caller in a fresh workspace, with the stand-in first in PATH.
make_workspace() {
  workspace=$(mktemp -d "${TEST_TMPDIR:-/tmp}/ws.XXXXXX")
  cd "$workspace"
  mkdir -p tools bin launcher
  cp -L "$script" nvllm-launch
  printf '#!/bin/sh\n' >tools/setup
  echo 'int main() {}' >launcher/main.cc
  cat >bin/bazel <<'BAZEL'
#!/bin/bash
echo "$*" >>"$CALLS"
echo "output of bazel"
[[ $1 == sync ]] && exit
grep -q broken launcher/*.cc && { echo "launcher/main.cc: broken" >&2; exit 1; }
sleep "${BUILD_SECONDS:-0}"
mkdir -p build/bin/launcher
rm -f build/bin/launcher/nvllm-launch
printf '#!/bin/bash\necho "pid $$ arguments $*"\n' >build/bin/launcher/nvllm-launch
chmod +x build/bin/launcher/nvllm-launch
BAZEL
  chmod +x tools/setup bin/bazel
  export PATH=$workspace/bin:$PATH CALLS=$workspace.calls
  : >"$CALLS"
}

builds() { grep -c '^build' "$CALLS" || true; }
launch() { ./nvllm-launch "$@" 2>>stderr.md; }  # .md: no source file

case_the_first_start_builds_and_the_second_does_not() {
  make_workspace
  launch
  launch
  [[ $(builds) == 1 ]]
}

case_standard_output_and_arguments_are_the_programs_own() {
  make_workspace
  [[ $(launch 'a b' '*' 2>/dev/null | sed 's/pid [0-9]* //') == 'arguments a b *' ]]
}

case_nothing_is_said_when_nothing_is_to_do() {
  make_workspace
  launch
  rm stderr.md
  launch
  [[ ! -s stderr.md ]]
}

case_an_edited_file_is_built_also_with_its_old_time() {
  make_workspace
  launch
  sleep 0.02
  echo '// edited' >>launcher/main.cc
  touch -d 2001-01-01 launcher/main.cc
  launch
  [[ $(builds) == 2 ]]
}

case_an_added_and_a_removed_file_are_built() {
  make_workspace
  launch
  echo >launcher/more.cc
  launch
  [[ $(builds) == 2 ]]
  rm launcher/more.cc
  launch
  [[ $(builds) == 3 ]]
}

case_a_program_that_another_build_replaced_is_built_again() {
  make_workspace
  launch
  sleep 0.02
  printf '#!/bin/sh\n' >build/bin/launcher/nvllm-launch
  launch
  [[ $(builds) == 2 ]]
}

case_a_failed_build_tells_its_errors_and_starts_nothing() {
  make_workspace
  launch
  echo broken >launcher/main.cc
  for _ in 1 2; do
    status=0
    output=$(./nvllm-launch 2>errors.md) || status=$?
    [[ $status != 0 && -z $output ]]
    grep -q 'main.cc: broken' errors.md
  done
}

case_what_setup_lacks_ends_it_before_anything_is_built() {
  make_workspace
  printf '#!/bin/sh\necho "nvllm setup: nvllm needs Bazel 4.2" >&2\nexit 1\n' >tools/setup
  status=0
  output=$(./nvllm-launch 2>errors.md) || status=$?
  [[ $status != 0 && -z $output && $(builds) == 0 ]]
  [[ $(<errors.md) == 'nvllm setup: nvllm needs Bazel 4.2' ]]
}

case_a_file_edited_during_the_build_is_built_afterwards() {
  make_workspace
  BUILD_SECONDS=1 launch &
  sleep 0.5
  echo '// edited' >>launcher/main.cc
  wait
  launch
  [[ $(builds) == 2 ]]
}

case_two_at_once_build_once() {
  make_workspace
  BUILD_SECONDS=1 launch >out1.md &
  BUILD_SECONDS=1 launch >out2.md &
  wait
  [[ $(builds) == 1 ]]
  grep -q pid out1.md
  grep -q pid out2.md
}

case_it_becomes_the_program_from_anywhere_through_links() {
  make_workspace
  ln -s "$workspace/nvllm-launch" "$workspace.link"
  cd /
  output=$(bash -c "echo \$\$; exec $workspace.link" 2>/dev/null)
  [[ $output == "${output%%$'\n'*}"$'\n'"pid ${output%%$'\n'*} arguments " ]]
}

case_other_tools_are_looked_for_again() {
  make_workspace
  launch
  CUDA_HOME=/elsewhere launch
  grep -q '^sync --configure' "$CALLS"
  [[ $(builds) == 2 ]]
}

case_a_build_leaves_no_lock_and_no_pipe_open_in_the_program() {
  make_workspace
  sed -i 's|echo "pid.*|ls /proc/self/fd \| wc -l\\n'"'"' >build/bin/launcher/nvllm-launch|' bin/bazel
  [[ $(launch | tail -n 1) == 4 ]]  # three of its own and the folder that ls reads
}

run_cases
