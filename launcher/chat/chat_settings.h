// ChatSettings: the sampling options that /set shows and changes during a chat.
#pragma once

#include <string>
#include <vector>

#include "runtime/request.h"

namespace nvllm::launcher {

// Not thread-safe.
class ChatSettings {
 public:
  // Both must outlive it. stops: stop strings.
  ChatSettings(runtime::SamplingParams& sampling, std::vector<std::string>& stops)
      : sampling_(sampling), stops_(stops) {}

  static std::vector<std::string> names();  // "temperature", ...

  // All with their values, one per line.
  std::string show() const;
  // "temperature is 0.8". Both throw an Error that names an invalid name or value.
  std::string show(const std::string& name) const;
  std::string set(const std::string& name, const std::string& value);

 private:
  std::string value_of(const std::string& name) const;
  void set_stops(const std::string& value);

  runtime::SamplingParams& sampling_;
  std::vector<std::string>& stops_;
};

}  // namespace nvllm::launcher
