// A simulation as JSON describes it, and its result as JSON. README.md names all fields; one that
// is unknown is refused.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace nvllm::simulation {

// Runs what `scenario` describes. An Error names the field and what is wrong with it.
nlohmann::ordered_json run_scenario(std::string_view scenario);

}  // namespace nvllm::simulation
