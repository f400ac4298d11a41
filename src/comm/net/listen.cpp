#include "comm/net/listen.h"

#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <unistd.h>

#include <asio/io_context.hpp>
#include <asio/ip/address.hpp>
#include <asio/ip/tcp.hpp>

#include "base/check.h"

namespace cairn::comm {
namespace {

constexpr int kAttempts = 100;  // to find a port that is free for both

using asio::ip::tcp;

// -1 on failure (address taken, or not of this machine); errno is set.
int bound_socket(int type, const tcp::endpoint& at) {
  const int fd = ::socket(at.protocol().family(), type | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  if (type == SOCK_STREAM) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // reuses a port of an earlier run
  if (::bind(fd, at.data(), static_cast<socklen_t>(at.size())) == 0 && (type != SOCK_STREAM || ::listen(fd, SOMAXCONN) == 0)) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

uint16_t port_of(int fd) {
  tcp::endpoint here;
  auto length = static_cast<socklen_t>(here.capacity());
  CAIRN_CHECK(::getsockname(fd, here.data(), &length) == 0, "getsockname: {}", std::strerror(errno));
  here.resize(length);
  return here.port();
}

tcp::endpoint endpoint_of(const std::string& address, uint16_t port) {
  asio::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error) base::fail_input("{}: not an address to listen at", address);
  return {parsed, port};
}

bool is_own(const asio::ip::address& address) {
  const int fd = bound_socket(SOCK_DGRAM, tcp::endpoint(address, 0));
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

// The local address that the kernel's routes choose for datagrams to `remote`. Nothing is sent.
std::string address_toward(const tcp::endpoint& remote) {
  const int fd = ::socket(remote.protocol().family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  tcp::endpoint here;
  auto length = static_cast<socklen_t>(here.capacity());
  const bool found =
      fd >= 0 && ::connect(fd, remote.data(), static_cast<socklen_t>(remote.size())) == 0 && ::getsockname(fd, here.data(), &length) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!found)
    base::fail_input("{}: this machine has no way there: {}. Name an address that it can reach.", remote.address().to_string(),
                     std::strerror(error));
  here.resize(length);
  return here.address().to_string();
}

}  // namespace

bool is_own_address(const std::string& address) {
  asio::error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  return !error && is_own(parsed);
}

std::string address_to_listen(const std::string& host, uint16_t port) {
  asio::error_code error;
  asio::io_context io(1);
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), error);
  if (error || found.empty()) base::fail_input("{}: {}. Name an address that this machine can reach.", host, error.message());
  for (const auto& entry : found)
    if (is_own(entry.endpoint().address())) return entry.endpoint().address().to_string();
  return address_toward(found.begin()->endpoint());
}

Listener listen_at(const std::string& address, uint16_t port) {
  const int fd = bound_socket(SOCK_STREAM, endpoint_of(address, port));
  if (fd < 0) base::fail_input("cannot listen at {}{}: {}", address, port ? ":" + std::to_string(port) : "", std::strerror(errno));
  return {fd, port_of(fd)};
}

ListenerPair listen_tcp_and_udp(const std::string& address) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const Listener listener = listen_at(address);
    const int udp = bound_socket(SOCK_DGRAM, endpoint_of(address, listener.port));
    if (udp >= 0) return {listener, udp};
    ::close(listener.fd);
  }
  base::fail_input("cannot listen at {}: no port is free for both TCP and UDP", address);
}

}  // namespace cairn::comm
