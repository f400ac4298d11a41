#pragma once
// Bridges of one process, for tests.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "comm/bridge/bridge.h"
#include "comm/net/key.h"

namespace cairn::comm::bridge_sites {

inline const Key kKey = fresh_key();

inline BridgeOptions site(int number, int sites, uint16_t near = 0) {
  BridgeOptions options{.site = number, .sites = sites, .key = kKey};
  if (near != 0) options.endpoints = {{"127.0.0.1", near}};
  return options;
}

// Waits until the condition holds, for 20 s at most.
template <typename So>
bool soon(Bridge& bridge, So so) {
  const base::RealClock clock;
  const auto until = clock.now() + std::chrono::seconds(20);
  while (!so()) {
    if (clock.now() > until) return false;
    bridge.wait(std::chrono::milliseconds(20));
  }
  return true;
}

inline std::vector<std::byte> message(int64_t number, size_t bytes = 100) {
  std::vector<std::byte> body(std::max(bytes, sizeof number), static_cast<std::byte>(number));
  std::memcpy(body.data(), &number, sizeof number);
  return body;
}
inline int64_t number_of(const Bridge::Message& message) {
  int64_t number = 0;
  std::memcpy(&number, message.body.data(), sizeof number);
  return number;
}

// The next message; fails the test where none comes.
inline Bridge::Message receive(Bridge& bridge) {
  std::optional<Bridge::Message> came;
  EXPECT_TRUE(soon(bridge, [&] { return (came = bridge.next()).has_value(); }));
  return came.value_or(Bridge::Message{-1, 0, std::vector<std::byte>(8)});
}

inline bool see_each_other(Bridge& a, Bridge& b) {
  return soon(a, [&] {
    return a.reachable(b.site()) && b.reachable(a.site()) && a.incarnation(b.site()) == b.incarnation(b.site()) &&
           b.incarnation(a.site()) == a.incarnation(a.site());
  });
}

}  // namespace cairn::comm::bridge_sites
