// A simulation described by JSON, and its result as JSON. README.md documents all fields; unknown
// ones are rejected.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace nvllm::simulation {

// Runs the scenario. An Error names an invalid field and the reason.
nlohmann::ordered_json run_scenario(std::string_view scenario);

}  // namespace nvllm::simulation
