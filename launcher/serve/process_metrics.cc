#include "launcher/serve/process_metrics.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace nvllm::launcher {

namespace {

std::optional<double> resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return std::nullopt;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

std::optional<double> cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return std::nullopt;
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// When the machine was started, in seconds since 1970.
std::optional<double> boot_time() {
  std::ifstream file("/proc/stat");
  std::string word;
  double value = 0;
  while (file >> word) {
    if (word == "btime" && file >> value) return value;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// When this process was started, in seconds since 1970.
std::optional<double> start_time() {
  constexpr int kStartTimeField = 22;  // of /proc/self/stat, from 1 on
  constexpr int kFieldBehindName = 3;
  std::ifstream file("/proc/self/stat");
  // The name, the second field, may hold anything; it ends with the last parenthesis.
  std::string line;
  if (!std::getline(file, line) || line.rfind(')') == std::string::npos) return std::nullopt;
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = kFieldBehindName; i < kStartTimeField; ++i) fields >> field;
  double ticks = 0;
  const std::optional<double> boot = boot_time();
  if (!(fields >> ticks) || !boot) return std::nullopt;
  return *boot + ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

void write(PrometheusText& out, const char* name, const char* type, const char* help,
           std::optional<double> value) {
  if (!value) return;
  out.family(name, type, help);
  out.bare_sample(name, {}, *value);
}

}  // namespace

void write_process_metrics(PrometheusText& out) {
  write(out, "process_resident_memory_bytes", "gauge", "Resident memory of the front end.",
        resident_bytes());
  write(out, "process_cpu_seconds_total", "counter", "Processor time of the front end.",
        cpu_seconds());
  write(out, "process_start_time_seconds", "gauge", "When the front end was started.",
        start_time());
}

}  // namespace nvllm::launcher
