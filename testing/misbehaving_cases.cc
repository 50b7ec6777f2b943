// Things that a test must never do. isolate_test runs this program and checks the reports.
#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "testing/skip.h"

TEST_CASE("passes") {
  CHECK(1 + 1 == 2);
}

TEST_CASE("fails, with a comma and a * in its name") {
  std::puts("output of the failing case");
  const int sum = 1 + 1;
  CHECK(sum == 3);
}

TEST_CASE("skips itself") {
  SKIP_TEST("needs <2> GPUs & more");
}

TEST_CASE("throws") {
  throw std::runtime_error("out of patience");
}

TEST_CASE("crashes") {
  raise(SIGSEGV);
}

TEST_CASE("is killed") {
  raise(SIGKILL);
}

TEST_CASE("leaves early") {
  _exit(0);
}

TEST_CASE("hangs, and so do the processes that it started") {
  for (int i = 0; i < 2; ++i) {
    if (const pid_t child = fork(); child > 0) {
      std::ofstream("orphans", std::ios::app) << child << '\n';
    } else if (i == 1) {
      setsid();  // out of the test's process group
    }
  }
  for (;;) pause();
}

TEST_SUITE("last") {
  TEST_CASE("passes") {}
}
