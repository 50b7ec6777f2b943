#!/bin/bash
# tools/fetch-clients with a mock of pip that records each call in `calls`, and puts a module into
# the virtual environment.
source tests/shell_cases.sh
script=$PWD/tools/fetch-clients

# Leaves the caller in a fresh folder, with the stand-in first in PATH.
make_place() {
  place=$(mktemp -d "${TEST_TMPDIR:-/tmp}/fetch.XXXXXX")
  cd "$place"
  mkdir bin
  cat >bin/pip3 <<'PIP'
#!/bin/bash
echo "$*" >>"$PLACE/calls"
sleep "${PIP_SECONDS:-0}"
[[ ${PIP_FAILS-} ]] && { echo "ERROR: No matching distribution found"; exit 1; }
[[ $1 == --python ]] && "$2" -c 'import sysconfig; print("x = 1", file=open(sysconfig.get_path("purelib") + "/openai.py", "w"))'
PIP
  chmod +x bin/pip3
  export PATH=$place/bin:$PATH PLACE=$place XDG_CACHE_HOME=$place/cache
  : >calls
}

case_the_environment_is_made_once_and_its_python_is_printed() {
  make_place
  local python
  python=$("$script")
  [[ $python == "$place"/cache/nvllm/clients/*/bin/python ]]
  "$python" -c 'import openai'
  [[ $("$script") == "$python" && $(calls) == 1 ]]
}

case_nothing_but_wheels_of_fixed_versions_is_asked_for() {
  make_place
  "$script"
  grep -q -e '--only-binary :all:' calls
  grep -Eq 'openai==[0-9.]+ anthropic==[0-9.]+' calls
}

case_two_at_a_time_make_it_once() {
  make_place
  export PIP_SECONDS=1
  "$script" >a &
  "$script" >b
  wait
  [[ $(calls) == 1 && $(<a) == "$(<b)" && -s a ]]
}

case_a_failure_says_why_and_leaves_nothing() {
  make_place
  PIP_FAILS=1 refused "$script" >out 2>err
  [[ ! -s out ]]
  grep -q 'No matching distribution' err
  [[ -z $(find cache -name python) ]]
  "$script" >out  # the next one tries again
  [[ -s out ]]
}

case_a_run_that_was_killed_is_no_whole_environment() {
  make_place
  local python
  python=$("$script")
  rm "${python%/bin/python}/complete" "${python%/bin/python}"/lib/python*/site-packages/openai.py
  "$script"
  "$python" -c 'import openai'
  [[ $(calls) == 2 ]]
}

case_a_cache_that_cannot_be_written_is_named() {
  make_place
  : >cache
  refused "$script" 2>err
  grep -q "$place/cache/nvllm/clients: cannot be written to" err
}

run_cases
