// Makes what the ranks of a machine need before they start: listening sockets, shared memory, the key of the run.
#include "comm/net/setup.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

#include "base/check.h"
#include "comm/net/listen.h"
#include "comm/shm/segment.h"

namespace cairn::comm {
namespace {

constexpr uint64_t kSetupMagic = 0x3370757465736e63;  // the first bytes of a set-up
constexpr int kSizeMax = 65536;
constexpr size_t kHostBytesMax = 256;
constexpr uint32_t kInterfacesMax = 64;

template <typename T>
void put(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class Reader {
 public:
  explicit Reader(std::string_view rest) : rest_(rest) {}
  void take(void* into, size_t bytes) {
    if (rest_.size() < bytes) base::fail_input("too short for the set-up of a rank");
    std::memcpy(into, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }
  template <typename T>
  T take() {
    T value;
    take(&value, sizeof value);
    return value;
  }

 private:
  std::string_view rest_;
};

int another(int fd) {
  const int copy = fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (fd >= 0 && copy < 0) base::fail_input("the ranks cannot be set up: {}", std::strerror(errno));
  return copy;
}

}  // namespace

std::vector<int> NetSetup::neighbours() const {
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other) {
    if (addresses.empty() || addresses[static_cast<size_t>(other)].machine == addresses[static_cast<size_t>(rank)].machine)
      ranks.push_back(other);
  }
  return ranks;
}

std::vector<int> NetSetup::fds() const {
  std::vector<int> files{listener_fd, outside_fd, heartbeat_fd, segment_fd};
  files.insert(files.end(), interface_fds.begin(), interface_fds.end());
  return files;
}

void NetSetup::set_fds(const std::vector<int>& files) {
  CAIRN_CHECK(files.size() >= 4, "{} files for a rank", files.size());
  listener_fd = files[0];
  outside_fd = files[1];
  heartbeat_fd = files[2];
  segment_fd = files[3];
  interface_fds.assign(files.begin() + 4, files.end());
}

std::vector<NetSetup> make_machine_setups(const std::vector<int>& ranks, const std::optional<std::string>& outside,
                                          const std::vector<std::string>& more) {
  std::vector<NetSetup> setups;
  const int segment = ranks.size() > 1 ? SharedSegment::create(static_cast<int>(ranks.size())) : -1;
  for (const int rank : ranks) {
    NetSetup setup;
    setup.rank = rank;
    const Listener inside = listen_at("127.0.0.1");
    setup.listener_fd = inside.fd;
    setup.addresses.resize(1);
    setup.addresses[0].port = inside.port;
    if (outside) {
      const ListenerPair pair = listen_tcp_and_udp(*outside);
      setup.outside_fd = pair.tcp.fd;
      setup.heartbeat_fd = pair.udp_fd;
      setup.addresses[0].outside_port = pair.tcp.port;
      for (const std::string& address : more) {
        const ListenerPair another_pair = listen_tcp_and_udp(address);
        setup.interface_fds.insert(setup.interface_fds.end(), {another_pair.tcp.fd, another_pair.udp_fd});
        setup.addresses[0].more_interfaces.push_back({address, another_pair.tcp.port});
      }
    }
    setup.segment_fd = rank == ranks.front() ? segment : another(segment);
    setups.push_back(std::move(setup));
  }
  return setups;
}

void set_addresses(std::vector<NetSetup>& setups, const std::vector<RankAddress>& addresses, const Key& key) {
  for (NetSetup& setup : setups) {
    setup.size = static_cast<int>(addresses.size());
    setup.addresses = addresses;
    setup.key = key;
  }
}

namespace {

void put_host(std::string& text, const std::string& host) {
  put(text, static_cast<uint32_t>(host.size()));
  text += host;
}

std::string take_host(Reader& reader) {
  const auto length = reader.take<uint32_t>();
  if (length > kHostBytesMax) base::fail_input("the set-up of a rank has a host name of {} bytes", length);
  std::string host(length, '\0');
  reader.take(host.data(), length);
  return host;
}

}  // namespace

std::string to_bytes(const NetSetup& setup) {
  std::string text;
  put(text, kSetupMagic);
  for (const int number : {setup.rank, setup.size, setup.listener_fd, setup.outside_fd, setup.heartbeat_fd, setup.segment_fd})
    put(text, int32_t{number});
  text.append(reinterpret_cast<const char*>(setup.key.data()), setup.key.size());
  for (const RankAddress& rank_address : setup.addresses) {
    put(text, int32_t{rank_address.machine});
    put(text, rank_address.port);
    put(text, rank_address.outside_port);
    put_host(text, rank_address.host);
    put(text, static_cast<uint32_t>(rank_address.more_interfaces.size()));
    for (const NetEndpoint& one : rank_address.more_interfaces) {
      put_host(text, one.host);
      put(text, one.port);
    }
  }
  put(text, static_cast<uint32_t>(setup.interface_fds.size()));
  for (const int fd : setup.interface_fds) put(text, int32_t{fd});
  return text;
}

NetSetup setup_from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  NetSetup setup;
  if (reader.take<uint64_t>() != kSetupMagic) base::fail_input("not the set-up of a rank");
  for (int* number : {&setup.rank, &setup.size, &setup.listener_fd, &setup.outside_fd, &setup.heartbeat_fd, &setup.segment_fd})
    *number = reader.take<int32_t>();
  if (setup.size < 1 || setup.size > kSizeMax || setup.rank < 0 || setup.rank >= setup.size) base::fail_input("ranks out of range");
  reader.take(setup.key.data(), setup.key.size());
  for (int rank = 0; rank < setup.size; ++rank) {
    RankAddress rank_address;
    rank_address.machine = reader.take<int32_t>();
    rank_address.port = reader.take<uint16_t>();
    rank_address.outside_port = reader.take<uint16_t>();
    rank_address.host = take_host(reader);
    const auto more = reader.take<uint32_t>();
    if (more > kInterfacesMax) base::fail_input("the set-up of a rank has {} interfaces", more);
    for (uint32_t i = 0; i < more; ++i) {
      std::string host = take_host(reader);
      rank_address.more_interfaces.push_back({std::move(host), reader.take<uint16_t>()});
    }
    setup.addresses.push_back(std::move(rank_address));
  }
  const auto files = reader.take<uint32_t>();
  if (files > 2 * kInterfacesMax) base::fail_input("the set-up of a rank has {} files", files);
  for (uint32_t i = 0; i < files; ++i) setup.interface_fds.push_back(reader.take<int32_t>());
  return setup;
}

std::vector<NetSetup> make_net_setups(int size) { return make_net_setups(std::vector<int>(static_cast<size_t>(size), 0)); }

std::vector<NetSetup> make_net_setups(const std::vector<int>& machines, const std::vector<std::string>& interfaces) {
  const int last = *std::max_element(machines.begin(), machines.end());
  std::vector<NetSetup> setups(machines.size());
  std::vector<RankAddress> addresses(machines.size());
  for (int machine = 0; machine <= last; ++machine) {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < machines.size(); ++rank) {
      if (machines[rank] == machine) ranks.push_back(static_cast<int>(rank));
    }
    if (ranks.empty()) continue;
    const std::vector<std::string> more(interfaces.begin() + 1, interfaces.end());
    for (NetSetup& setup : make_machine_setups(ranks, last > 0 ? std::optional(interfaces.front()) : std::nullopt, more)) {
      const auto rank = static_cast<size_t>(setup.rank);
      addresses[rank] = setup.addresses[0];
      addresses[rank].machine = machine;
      addresses[rank].host = interfaces.front();
      setups[rank] = std::move(setup);
    }
  }
  set_addresses(setups, addresses, fresh_key());
  return setups;
}

}  // namespace cairn::comm
