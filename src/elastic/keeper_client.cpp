#include "elastic/keeper_client.h"

#include <array>
#include <poll.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"

namespace cairn::elastic {

namespace {
constexpr auto kSendLimit = std::chrono::seconds(5);
}

KeeperClient::KeeperClient(int door) : door_(door) { reconnect(); }

void KeeperClient::reconnect() {
  int ends[2];
  socket_ = File();
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
  File mine(ends[0]);
  const File theirs(ends[1]);
  const std::array<int, 1> files{theirs.fd()};
  if (send_packet(door_, {{"op", "hello"}}, files, kSendLimit) == 0) socket_ = std::move(mine);
}

bool KeeperClient::alive() {
  if (socket_.fd() < 0) return false;
  pollfd state{socket_.fd(), 0, 0};
  ::poll(&state, 1, 0);
  if (state.revents & (POLLHUP | POLLERR)) socket_ = File();
  return socket_.fd() >= 0;
}

bool KeeperClient::tell(const base::Json& request) {
  if (!alive()) return false;
  if (send_packet(socket_.fd(), request, {}, kSendLimit) != 0) socket_ = File();
  return socket_.fd() >= 0;
}

std::optional<Packet> KeeperClient::ask(const base::Json& request, std::chrono::nanoseconds limit) {
  base::Json numbered = request;
  numbered["number"] = ++asked_;
  if (!tell(numbered)) return std::nullopt;
  const base::RealClock clock;
  Packet packet;
  while (true) {
    switch (receive_packet(socket_.fd(), packet)) {
      case Received::packet:
        if (packet.body.value("number", uint64_t{0}) != asked_) continue;  // the answer to a question that was given up
        if (packet.body.contains("error")) base::fail_input("{}", packet.body["error"].get<std::string>());
        return packet;
      case Received::end:
        socket_ = File();
        return std::nullopt;
      case Received::nothing:
        break;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - clock.now()).count();
    if (left <= 0) return std::nullopt;
    pollfd ready{socket_.fd(), POLLIN, 0};
    ::poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
  }
}

}  // namespace cairn::elastic
