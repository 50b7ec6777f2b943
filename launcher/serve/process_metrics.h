// What Prometheus' own clients say of the process they run in.
#pragma once

#include "launcher/serve/prometheus.h"

namespace nvllm::launcher {

// process_resident_memory_bytes, process_cpu_seconds_total, process_start_time_seconds: of this
// process, the front end, not of its workers. Those that the system does not tell are left out.
void write_process_metrics(PrometheusText& out);

}  // namespace nvllm::launcher
