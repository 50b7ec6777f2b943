#include "launcher/testing/own_shm.h"

#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <fstream>

namespace nvllm::testing {

bool mount_own_shm(const char* options, unsigned long flags) {
  if (::unshare(CLONE_NEWNS) != 0) {
    const uid_t user = ::getuid();
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  }
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", "/dev/shm", "tmpfs", flags, options) == 0;
}

}  // namespace nvllm::testing
