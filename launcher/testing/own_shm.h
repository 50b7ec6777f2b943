// A /dev/shm of its own for a program under test.
#pragma once

namespace nvllm::testing {

// What a program ends with where it can have none.
inline constexpr int kNotAllowed = 99;

// Gives the calling process a /dev/shm that it shares with nobody: `options` of a tmpfs ("size=64k"), and flags
// of mount(). False: this machine does not allow it.
bool mount_own_shm(const char* options, unsigned long flags = 0);

}  // namespace nvllm::testing
