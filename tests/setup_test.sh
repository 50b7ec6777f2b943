#!/bin/bash
# tools/setup on simulated machines: PATH contains only mocks of uname, id, sudo, bazel and apt-get,
# and the programs that the script itself calls.
source tests/shell_cases.sh
setup=$PWD/tools/setup

# Leaves the caller in a fresh checkout on a machine of x86-64 without Bazel, without apt-get, as a user.
make_machine() {
  place=$(mktemp -d "${TEST_TMPDIR:-/tmp}/setup.XXXXXX")
  cd "$place"
  mkdir -p bin tools
  cp -L "$setup" tools/setup
  local name
  for name in bash dirname env mktemp rm tail tee sleep; do ln -s "$(command -v "$name")" "bin/$name"; done
  machine uname 'echo Linux x86_64'
  machine id 'echo 1000'
  machine sudo 'exit 1'
  PATH=$place/bin
}
# A program of the machine, as lines of shell.
machine() {  # NAME SCRIPT
  printf '#!/bin/bash\n%s\n' "$2" >"bin/$1"
  /bin/chmod +x "bin/$1"
}
# Runs tools/setup, which must fail; its output is in $said.
refused() {
  if said=$(tools/setup "$@" 2>&1); then return 1; fi
}

case_a_processor_of_another_kind_is_named() {
  make_machine
  machine uname 'echo Linux aarch64'
  refused run
  [[ $said == *'x86-64 processors with AVX2; this machine is Linux aarch64' ]]
}

case_another_system_is_named() {
  make_machine
  machine uname 'echo Darwin x86_64'
  refused run --quiet
  [[ $said == *'nvllm runs on Linux'*'Darwin x86_64' ]]
}

case_without_root_the_line_to_run_as_root_is_shown() {
  make_machine
  machine apt-get 'echo "apt-get must not run" >&2; exit 9'
  refused run --quiet
  [[ $said == *'missing to build nvllm; run as root: apt-get update && apt-get install -y'*bazel-bootstrap* ]]
  [[ $said != *'must not run'* && $said != *$'\n'* ]]
}

case_without_apt_the_packages_are_named() {
  make_machine
  refused test
  [[ $said == *'no apt-get; install what these Debian packages hold, to build and test nvllm:'*bazel-bootstrap* ]]
}

case_another_bazel_is_named_with_its_version() {
  make_machine
  machine bazel 'echo bazel 7.4.1'
  refused run
  [[ $said == *"needs Bazel 4.2"*"$place/bin/bazel is another: 'bazel 7.4.1'; put Bazel 4.2 before it in PATH" ]]
}

case_a_bazel_that_refuses_the_checkout_is_quoted() {
  make_machine
  machine bazel 'echo "ERROR: requires Bazel 4, but it was not found" >&2; exit 1'
  refused run
  [[ $said == *"needs Bazel 4.2"*"'ERROR: requires Bazel 4, but it was not found'"* ]]
}

case_debians_bazel_is_known_by_its_package() {
  make_machine
  machine bazel 'echo bazel no_version'
  machine dpkg-query 'printf 6.5.0+ds-1'
  refused run
  [[ $said == *"'bazel 6.5.0+ds-1'"* ]]
  machine dpkg-query 'printf 4.2.3+ds-11'
  tools/setup run --quiet || true  # what else is missing is this machine's matter
  [[ $(tools/setup run --quiet 2>&1) != *'needs Bazel'* ]]
}

case_bazel_4_is_taken() {
  make_machine
  machine bazel 'echo bazel 4.2.2'
  [[ $(tools/setup run --quiet 2>&1) != *'needs Bazel'* ]]
}

case_the_model_needs_no_bazel() {
  make_machine
  machine uname 'echo Linux aarch64'
  machine python3 ''
  machine pip3 ''
  tools/setup model --quiet
}

run_cases
