#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_seconds(Options& options, const OptionValue& value) {
  options.selftest.seconds = value.real(0, 1e9);
}

}  // namespace

Command selftest_options() {
  return {"selftest",
          "starts the workers, checks calls and collectives between them, and measures both",
          join_rows({group_rows(),
                     {
                         {"--seconds", nullptr, "N",
                          "then keeps calls and collectives going, all checked, for N seconds", "0",
                          store_seconds},
                         json_row("prints the result as JSON"),
                         memory_report_row(),
                     }})};
}

}  // namespace nvllm::launcher
