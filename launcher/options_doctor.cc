#include "launcher/option_rows.h"

namespace nvllm::launcher {

Command doctor_options() {
  return {"doctor",
          "tells what this machine has for nvllm, and the mend for what is wrong with it",
          {json_row("prints the result as JSON")}};
}

}  // namespace nvllm::launcher
