#pragma once
#include <algorithm>
#include <chrono>
#include <vector>

#include <asio/io_context.hpp>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/rendezvous/rendezvous.h"

namespace cairn::comm {

// The side of the rendezvous that calls: every machine but the first.
std::vector<NetSetup> visit_rendezvous(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options);

// What both sides of the rendezvous share.
namespace rendezvous {

inline constexpr uint32_t kTextBytesMax = 16 << 20;
inline constexpr auto kPatience = std::chrono::seconds(5);       // for the handshake and the introduction
inline constexpr auto kGlance = std::chrono::milliseconds(100);  // how often a stop request is checked
inline constexpr auto kSayEvery = std::chrono::seconds(10);      // reports who is missing

inline std::vector<int> first_ranks(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = i;
  return numbers;
}

// Runs the event loop until `done`, the deadline, or a stop request.
class Waiting {
 public:
  Waiting(asio::io_context& io, const RendezvousOptions& options) : io_(io), options_(options) {}

  template <typename Done, typename For>
  bool until(Done done, std::chrono::nanoseconds deadline, For for_whom) {
    const std::chrono::nanoseconds end = clock_.now() + deadline;
    std::chrono::nanoseconds said = clock_.now();
    while (!done()) {
      const std::chrono::nanoseconds now = clock_.now();
      if (options_.stop && options_.stop->requested())
        throw Error(Error::Kind::cancelled, fmt::format("stopped while waiting for {}", for_whom()));
      if (now >= end) return false;
      if (now - said > kSayEvery) {
        said = now;
        if (options_.tell) options_.tell(fmt::format("waiting for {} ({:.0f} s more)", for_whom(), base::seconds(end - now)));
      }
      io_.restart();
      io_.run_one_for(std::min<std::chrono::nanoseconds>(kGlance, end - now));
    }
    return true;
  }

 private:
  asio::io_context& io_;
  const RendezvousOptions& options_;
  base::RealClock clock_;
};

}  // namespace rendezvous
}  // namespace cairn::comm
