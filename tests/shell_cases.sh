# Test cases in shell: sourced by the tests of scripts. A case is a function case_WORDS_OF_ITS_NAME; it
# runs in a shell of its own and fails when a command of it does.
run_cases() {
  local name verdict failures=0 cases='' log
  for name in $(compgen -A function case_); do
    log=$(set -eux; $name 2>&1 </dev/null)
    if (($? == 0)); then
      verdict=passed body=
    else
      verdict=FAILED body="<failure message=\"see the log\"/>"
      failures=$((failures + 1))
      printf '%s\n' "$log"
    fi
    name=${name#case_}
    echo "$verdict: ${name//_/ }"
    cases+="<testcase name=\"${name//_/ }\">$body</testcase>"
  done
  [[ ${XML_OUTPUT_FILE-} ]] && echo "<testsuites><testsuite name=\"${TEST_TARGET-}\">$cases</testsuite></testsuites>" >"$XML_OUTPUT_FILE"
  exit $((failures > 0))
}

# Runs a command, which must fail.
refused() { if "$@"; then false; fi; }
# How many calls a mock has recorded, a line each, in the file `calls`.
calls() { wc -l <calls; }
