#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "comm/rendezvous/rendezvous.h"

namespace asio {
class io_context;
}

namespace cairn::comm {

// The side of the rendezvous that calls: every machine but the first.
std::vector<NetSetup> visit_rendezvous(const NodeSpec& own, const Tls& tls, const RendezvousOptions& options);

// What both sides of the rendezvous share.
namespace rendezvous {

inline constexpr uint32_t kTextBytesMax = 16 << 20;
inline constexpr auto kPatience = std::chrono::seconds(5);       // for the handshake and the introduction
inline constexpr auto kGlance = std::chrono::milliseconds(100);  // how often a stop request is checked

inline std::vector<int> first_ranks(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = i;
  return numbers;
}

// The ports of this machine's ranks on its other interfaces: [{"host", "ports": one for each rank}, ...].
base::Json interfaces_of(const std::vector<NetSetup>& setups);
// What another machine says of itself; throws Json::exception or std::logic_error where it makes no sense.
std::vector<std::vector<NetEndpoint>> interfaces_from(const base::Json& said, size_t ranks);

// Runs the event loop until `done`, the deadline, or a stop request.
class Waiting {
 public:
  Waiting(asio::io_context& io, const RendezvousOptions& options) : io_(io), options_(options) {}

  // False: the deadline is over. Throws an error of kind cancelled on a stop request.
  bool until(const std::function<bool()>& done, std::chrono::nanoseconds deadline, const std::function<std::string()>& for_whom);

 private:
  asio::io_context& io_;
  const RendezvousOptions& options_;
  base::RealClock clock_;
};

}  // namespace rendezvous
}  // namespace cairn::comm
