#!/bin/bash
# tools/summarize on build event files as Bazel writes them, shortened to what it reads.
source tests/shell_cases.sh
summarize=$PWD/tools/summarize
cd "${TEST_TMPDIR:-/tmp}" || exit 1

configured() { echo '{"id":{"targetConfigured":{"label":"'"$1"'"}},"configured":{"targetKind":"cc_test rule","tag":['"${2-}"']}}'; }
result() {  # LABEL TEST_CASES
  echo "<testsuites><testsuite>$2</testsuite></testsuites>" >"$PWD/${1##*:}.xml"
  echo '{"id":{"testResult":{"label":"'"$1"'","run":1,"shard":1,"attempt":1}},"testResult":{"testActionOutput":[{"name":"test.xml","uri":"file://'"$PWD/${1##*:}.xml"'"}]}}'
}
verdict() { echo '{"id":{"testSummary":{"label":"'"$1"'"}},"testSummary":{"overallStatus":"'"$2"'"}}'; }
incompatible() { echo '{"id":{"targetCompleted":{"label":"'"$1"'"}},"aborted":{"reason":"SKIPPED"}}'; }
options() { echo '{"id":{"optionsParsed":{}},"optionsParsed":{"cmdLine":["'"$1"'"]}}'; }
finished() { echo '{"id":{"buildFinished":{}},"finished":{"exitCode":{"code":'"$1"'}}}'; }

# Runs summarize on the events of standard input; leaves output and status.
summary() {
  cat >events
  status=0
  output=$("$summarize" events) || status=$?
  last=${output##*$'\n'}
}

case_cases_are_counted_and_reasons_told() {
  summary < <(
    configured //a:t
    result //a:t '<testcase name="one"/><testcase name="two"><skipped message="needs a GPU"/></testcase>'
    verdict //a:t PASSED
    finished 0
  )
  [[ $last == '1 passed, 0 failed, 1 skipped' && $status == 0 ]]
  grep -qx 'skipped: //a:t: two: needs a GPU' <<<"$output"
}

case_a_failed_case_fails_with_its_message() {
  summary < <(
    configured //a:t
    result //a:t '<testcase name="one"><failure message="1 == 2"/></testcase>'
    verdict //a:t FAILED
    finished 3
  )
  [[ $last == '0 passed, 1 failed, 0 skipped' && $status == 1 ]]
  grep -qx 'failed: //a:t: one: 1 == 2' <<<"$output"
}

case_a_crash_after_passed_cases_is_one_failure() {
  summary < <(
    configured //a:t
    result //a:t '<testcase name="one"/>'
    verdict //a:t FAILED
    finished 3
  )
  [[ $last == '1 passed, 1 failed, 0 skipped' ]]
}

case_a_target_that_was_not_built_is_one_failure() {
  summary < <(configured //a:t; finished 1)
  [[ $last == '0 passed, 1 failed, 0 skipped' ]]
}

case_an_incompatible_target_is_skipped() {
  summary < <(configured //a:t; incompatible //a:t; finished 0)
  [[ $last == '0 passed, 0 failed, 1 skipped' ]]
}

case_targets_left_out_by_tag_do_not_count() {
  summary < <(
    options --test_tag_filters=-gpu
    configured //a:t '"gpu"'
    incompatible //a:t
    finished 0
  )
  [[ $last == '0 passed, 0 failed, 0 skipped' && $status == 0 ]]
}

case_a_build_that_failed_before_any_test_is_a_failure() {
  summary < <(finished 1)
  [[ $last == '0 passed, 1 failed, 0 skipped' && $status == 1 ]]
}

run_cases
