#!/bin/bash
# The example says what the program says.
set -eu
example=$1 launch=$2
model=tests/data/golden-models/qwen2-bias
first=451,475,38,128,489,129 second=1,2,3

"$example" "$model" "$first" "$second" >"$TEST_TMPDIR/example"
"$launch" generate --model "$model" --prompt-ids "$first" --prompt-ids "$second" \
  --temperature 0 --max-tokens 16 >"$TEST_TMPDIR/program"

ids() { sed 's/.*, "token_ids": \[\([^]]*\)\].*/\1/; s/,//g' "$TEST_TMPDIR/program"; }
diff <(ids) <(sed 's/ $//' "$TEST_TMPDIR/example")
[[ $(wc -l <"$TEST_TMPDIR/example") == 2 ]]

# What goes wrong is one line and an exit code.
if "$example" nowhere 1,2 2>"$TEST_TMPDIR/error"; then exit 1; fi
grep -q '^generate: --model nowhere: ' "$TEST_TMPDIR/error"
[[ $(wc -l <"$TEST_TMPDIR/error") == 1 ]]
