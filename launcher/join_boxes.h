#pragma once

#include <string>
#include <vector>

#include "cluster/task.h"
#include "launcher/cli/options.h"

namespace nvllm::launcher {

// Joins the other tasks, each on a box of its own. The workers must end with the launcher, and the
// launcher with the process that started it, even if the latter is killed.
void join_boxes(Options& options, const cluster::Task& task,
                const std::vector<std::string>& arguments);

}  // namespace nvllm::launcher
