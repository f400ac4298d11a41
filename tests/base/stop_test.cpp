#include "base/stop.h"

#include <csignal>

#include <gtest/gtest.h>

namespace cairn::base {
namespace {

TEST(Stop, IsQuietUntilAsked) {
  Stop stop;
  EXPECT_FALSE(stop.requested());
  stop.request();
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.signal(), 0);
}

Stop* asked = nullptr;  // a signal handler has no other way to find it

TEST(Stop, CanBeAskedByASignalHandler) {
  Stop stop;
  asked = &stop;
  const auto before = std::signal(SIGUSR1, [](int signal) { asked->request(signal); });
  std::raise(SIGUSR1);
  std::signal(SIGUSR1, before);
  EXPECT_TRUE(stop.requested());
  EXPECT_EQ(stop.signal(), SIGUSR1);
}

}  // namespace
}  // namespace cairn::base
