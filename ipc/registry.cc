#include "ipc/registry.h"

#include <new>

#include "base/check.h"
#include "base/error.h"
#include "ipc/group.h"

namespace nvllm::ipc {

void Registry::insert(std::string name, Method method) {
  const auto [entry, inserted] = methods_.emplace(std::move(name), std::move(method));
  NVLLM_CHECK(inserted, "method '", entry->first, "' is bound twice");
}

bool Registry::dispatch(ArchiveReader& message, ArchiveWriter& reply) const {
  std::string problem;
  try {
    run(message, reply);
    return true;
  } catch (const GroupAborted&) {
    throw;
  } catch (const PeerTimeout&) {
    throw;
  } catch (const std::bad_alloc&) {
    problem = "the system refuses more memory; free some, or raise the limit (ulimit -v)";
  } catch (const std::exception& error) {
    problem = error.what();
  } catch (...) {
    problem = "an exception that is not a std::exception";
  }
  reply(false, problem);
  return false;
}

void Registry::run(ArchiveReader& message, ArchiveWriter& reply) const {
  const auto name = message.get<std::string>();
  const auto signature = message.get<std::uint64_t>();
  const auto found = methods_.find(name);
  if (found == methods_.end()) fail("method '", name, "' is unknown here");
  const Method& method = found->second;
  if (method.signature != signature) {
    fail("method '", name, "' takes ", method.signature_text,
         " here; the caller passed other types");
  }
  method.run(message, reply);
}

}  // namespace nvllm::ipc
