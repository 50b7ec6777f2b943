#include "launcher/doctor/doctor_command.h"

#include "base/error.h"
#include "launcher/doctor/judge.h"
#include "launcher/doctor/machine.h"
#include "launcher/doctor/report.h"
#include "launcher/exit_code.h"
#include "launcher/standard_output.h"

namespace nvllm::launcher {

int run_doctor(const Options& options, std::int64_t) {
  const Machine machine = survey_machine(process_environment);
  const std::vector<Finding> findings = judge(machine);
  write_results(options.json ? format_findings_json(machine, findings)
                             : format_findings(machine, findings));
  for (const Finding& finding : findings) {
    if (finding.verdict == Verdict::stops) {
      fail(finding.subject, ": ", finding.found, "; ", finding.mend);
    }
  }
  return kExitFine;
}

}  // namespace nvllm::launcher
