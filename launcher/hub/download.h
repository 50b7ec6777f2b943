// Downloads files over several connections at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "launcher/hub/blob_writer.h"
#include "launcher/hub/hub_client.h"

namespace nvllm::launcher {

// Calls work(0) to work(count - 1), each in one of several threads, which have all ended when this
// returns. After an error no other call begins; stop() is called to end those that are under way,
// and the first error is thrown.
void run_in_threads(std::size_t count, const std::function<void()>& stop,
                    const std::function<void(HttpSession& session, std::size_t number)>& work,
                    Network& network);

// Fetches what is missing of all files. on_bytes(count) is told from any thread what has arrived.
void download(HubClient& client, Network& network,
              const std::vector<std::unique_ptr<BlobWriter>>& blobs,
              const std::function<void()>& stop,
              const std::function<void(std::uint64_t bytes)>& on_bytes);

}  // namespace nvllm::launcher
