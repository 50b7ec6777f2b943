// Downloads files over several concurrent connections.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "launcher/hub/blob_writer.h"
#include "launcher/hub/hub_client.h"

namespace nvllm::launcher {

// Calls work(0) to work(count - 1) in several threads, which have all ended when this returns.
// After an error no further call starts; stop() is called to end the running ones, and the first
// error is thrown.
void run_in_threads(std::size_t count, const std::function<void()>& stop,
                    const std::function<void(HttpSession& session, std::size_t number)>& work,
                    Network& network);

// Downloads the missing parts of all files. on_bytes(count) is called by any thread.
void download(HubClient& client, Network& network,
              const std::vector<std::unique_ptr<BlobWriter>>& blobs,
              const std::function<void()>& stop,
              const std::function<void(std::uint64_t bytes)>& on_bytes);

}  // namespace nvllm::launcher
