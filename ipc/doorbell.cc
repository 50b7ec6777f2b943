#include "ipc/doorbell.h"

#include <boost/date_time/posix_time/posix_time_types.hpp>
#include <boost/interprocess/sync/named_semaphore.hpp>
#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/error.h"
#include "ipc/segment.h"

namespace nvllm::ipc {
namespace bip = boost::interprocess;

struct Doorbell::Semaphore {
  explicit Semaphore(const std::string& name)
      : semaphore(bip::create_only, name.c_str(), 0, bip::permissions(kSemaphoreMode)) {
    bip::named_semaphore::remove(name.c_str());
  }
  bip::named_semaphore semaphore;
};

Doorbell::Doorbell(Word& sleeping) : sleeping_(&sleeping) {
  try {
    semaphore_ = std::make_unique<Semaphore>(new_name());
  } catch (const bip::interprocess_exception& error) {
    const int code = error.get_native_error();
    fail("a semaphore cannot be made in /dev/shm: ", errno_text(code),
         code == ENOSPC ? "; make it larger: mount -o remount,size=128M /dev/shm, or docker run "
                          "--shm-size=128m"
                        : "; this user must be able to write to /dev/shm: chmod 1777 /dev/shm");
  }
}

Doorbell::Doorbell(Doorbell&&) noexcept = default;
Doorbell& Doorbell::operator=(Doorbell&&) noexcept = default;
Doorbell::~Doorbell() = default;

void Doorbell::post() {
  semaphore_->semaphore.post();
}

Doorbell::Sleeper::Sleeper(Doorbell& bell) : bell_(bell) {
  while (bell_.semaphore_->semaphore.try_wait()) {
  }
  const std::uint32_t before = bell_.sleeping_->exchange(1, std::memory_order_seq_cst);
  NVLLM_CHECK(before == 0, "two threads wait on one doorbell");
}

void Doorbell::Sleeper::sleep(Nanoseconds limit) {
  // Boost measures in the wall clock, which may be set while we sleep; callers that need an exact
  // deadline sleep in slices and check the monotonic clock (Member::wait).
  const auto until = boost::posix_time::microsec_clock::universal_time() +
                     boost::posix_time::microseconds(limit.count() / 1000 + 1);
  try {
    bell_.semaphore_->semaphore.timed_wait(until);
  } catch (const bip::interprocess_exception& error) {
    // A signal handler ran: that is an early return.
    if (error.get_native_error() != EINTR) fail("waiting on a semaphore: ", error.what());
  }
}

}  // namespace nvllm::ipc
