#include "launcher/option_rows.h"

namespace nvllm::launcher {
namespace {

void store_load(Options& options, const OptionValue&) {
  options.inspect.load = true;
}

void store_checksums(Options& options, const OptionValue&) {
  options.inspect.checksums = true;
}

void check(const Options& options) {
  if (options.inspect.checksums && !options.inspect.load) {
    refuse("--checksums: are of weights that were loaded; pass --load, too");
  }
}

}  // namespace

Command inspect_options() {
  return {"inspect", "shows a model and which part of it every rank owns, and can load it",
          join_rows({model_rows(),
                     group_rows(),
                     {
                         {"--load", nullptr, nullptr,
                          "starts the workers, and every rank really loads its part", nullptr,
                          store_load},
                         {"--checksums", nullptr, nullptr,
                          "with --load: adds a checksum of each rank's every parameter", nullptr,
                          store_checksums},
                         json_row("prints the result as JSON, with every slice of every parameter"),
                     }}),
          check};
}

}  // namespace nvllm::launcher
