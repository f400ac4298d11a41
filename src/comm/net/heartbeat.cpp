// Heartbeats between machines, as encrypted UDP datagrams.
//
//   datagram = cookie | head (magic, from, number) | AES-128-GCM(body) | tag       key: derived from the run's key; nonce: (from, number)
//   body     = a frame header with the sender's beat counter and the envelope of the operation that it started last
// The head is authenticated with the body. A sender numbers its datagrams 1, 2, ...; a receiver takes only numbers above the last one of
// that sender, so replayed and reordered datagrams are ignored. Loss does no harm: the next datagram comes after 0.1 s.
//
// Others can send much more than that. A full queue would drop heartbeats, and reading all of it would take this thread's time. So:
//   filter   The cookie is a secret of 64 bits for each receiving rank, derived from the run's key. A classic BPF filter on the socket
//   drops
//            every datagram with another length or cookie before it is queued, whatever its source address claims.
//   bound    Who reads the network can copy a cookie. receive() therefore reads a bounded number of datagrams each time. More of them than
//            all ranks of the run can send mean a flood, in which heartbeats may be lost: until it is over, silence is no sign of death.
#include "comm/net/heartbeat.h"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cstring>
#include <limits>
#include <linux/filter.h>
#include <netdb.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "base/check.h"
#include "comm/net/channel_plan.h"
#include "comm/net/frame.h"

namespace cairn::comm {
namespace {

constexpr uint32_t kHeartbeatMagic = 0x6c757063;  // "cpul"
constexpr size_t kTagBytes = 16;
constexpr auto kOnTheWay = std::chrono::milliseconds(500);  // longest time that a datagram is under way
constexpr uint32_t kUdpHeaderBytes = 8;                     // a filter on a UDP socket sees the datagram with its header
constexpr int kQueueBytes = 1 << 20;                        // the system may allow less
constexpr size_t kBatch = 64;                               // datagrams that one system call reads

using Cookie = std::array<uint8_t, 8>;
Cookie cookie_of(const Key& key, int receiver) {
  const Key secret = derive(key, fmt::format("heartbeat cookie of rank {}", receiver));
  Cookie cookie;
  std::copy_n(secret.begin(), cookie.size(), cookie.begin());
  return cookie;
}

// The plain part of a datagram. (from, number) is unique in a run and serves as the nonce.
struct Head {
  uint32_t magic = kHeartbeatMagic;
  int32_t from = 0;
  uint64_t number = 0;
};
using Body = std::array<std::byte, kFrameBytes>;
struct Datagram {
  Cookie cookie;  // of the receiver; not authenticated, the same bytes go to nobody else
  Head head;
  Body sealed;
  std::array<uint8_t, kTagBytes> tag;
};
static_assert(sizeof(Datagram) == sizeof(Cookie) + sizeof(Head) + kFrameBytes + kTagBytes);

// AES-128-GCM over the body; the head is authenticated too.
class Seal {
 public:
  explicit Seal(const Key& key) : key_(derive(key, "pulse")), context_(EVP_CIPHER_CTX_new()) {
    CAIRN_CHECK(context_, "OpenSSL gave no cipher");
  }
  ~Seal() { EVP_CIPHER_CTX_free(context_); }
  Seal(const Seal&) = delete;
  Seal& operator=(const Seal&) = delete;

  bool close(Datagram& datagram, const Body& body) {
    int length = 0;
    return begin(datagram.head, 1) &&
           EVP_CipherUpdate(context_, bytes(datagram.sealed), &length, bytes(body), static_cast<int>(body.size())) == 1 &&
           EVP_CipherFinal_ex(context_, bytes(datagram.sealed) + length, &length) == 1 &&
           EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_GET_TAG, kTagBytes, datagram.tag.data()) == 1;
  }

  bool open(Datagram& datagram, Body& body) {
    int length = 0;
    return begin(datagram.head, 0) &&
           EVP_CipherUpdate(context_, bytes(body), &length, bytes(datagram.sealed), static_cast<int>(body.size())) == 1 &&
           EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_GCM_SET_TAG, kTagBytes, datagram.tag.data()) == 1 &&
           EVP_CipherFinal_ex(context_, bytes(body) + length, &length) == 1;
  }

 private:
  static unsigned char* bytes(Body& body) { return reinterpret_cast<unsigned char*>(body.data()); }
  static const unsigned char* bytes(const Body& body) { return reinterpret_cast<const unsigned char*>(body.data()); }

  bool begin(const Head& head, int encrypts) {
    std::array<unsigned char, 12> nonce;
    std::memcpy(nonce.data(), &head.from, 4);
    std::memcpy(nonce.data() + 4, &head.number, 8);
    int length = 0;
    return EVP_CipherInit_ex(context_, EVP_aes_128_gcm(), nullptr, key_.data(), nonce.data(), encrypts) == 1 &&
           EVP_CipherUpdate(context_, nullptr, &length, reinterpret_cast<const unsigned char*>(&head), sizeof head) == 1;
  }

  Key key_;
  EVP_CIPHER_CTX* context_;
};

struct Address {
  sockaddr_storage where{};
  socklen_t length = 0;
  Cookie cookie{};
};

std::optional<Address> address_of(const NetEndpoint& endpoint) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &wanted, &found) != 0 || !found) return std::nullopt;
  Address address;
  std::memcpy(&address.where, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

uint32_t word_at(const Cookie& cookie, size_t place) {  // as the filter loads it
  uint32_t word = 0;
  std::memcpy(&word, cookie.data() + place, sizeof word);
  return ntohl(word);
}

// Lets the kernel drop what is not addressed to this rank by its cookie. Where that is not allowed, receive() checks it alone.
void drop_strangers(int fd, const Cookie& cookie) {
  std::array<sock_filter, 8> program{{
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kUdpHeaderBytes + sizeof(Datagram), 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kUdpHeaderBytes), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(cookie, 0), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kUdpHeaderBytes + 4), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, word_at(cookie, 4), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, ~0U),  // keep all of it
      BPF_STMT(BPF_RET | BPF_K, 0),    // drop it
  }};
  const sock_fprog filter{.len = program.size(), .filter = program.data()};
  ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

}  // namespace

struct Heartbeat::Peers {
  Peers(const Key& key, int rank) : seal(key), own_cookie(cookie_of(key, rank)) {}
  Seal seal;
  Cookie own_cookie;
  std::vector<std::pair<size_t, Address>> addresses;                        // interface and address
  std::array<std::array<std::byte, sizeof(Datagram) + 1>, kBatch> buffers;  // the last byte tells that a datagram is too long
};

Heartbeat::Heartbeat(const NetSetup& setup)
    : fds_{setup.heartbeat_fd},
      rank_(setup.rank),
      heard_(static_cast<size_t>(setup.size)),
      heard_at_(static_cast<size_t>(setup.size)),
      flooded_at_(std::numeric_limits<int64_t>::min() / 2),
      peers_(std::make_unique<Peers>(setup.key, setup.rank)) {
  for (size_t i = 1; i < setup.interface_fds.size(); i += 2) fds_.push_back(setup.interface_fds[i]);
  for (const int fd : fds_) {
    drop_strangers(fd, peers_->own_cookie);
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kQueueBytes, sizeof kQueueBytes);
  }
  boards_.resize(static_cast<size_t>(setup.size));
  const int machine = setup.addresses[static_cast<size_t>(setup.rank)].machine;
  for (size_t rank = 0; rank < boards_.size(); ++rank) {
    if (setup.addresses[rank].machine == machine) continue;
    boards_[rank] = std::make_unique<StatusBoard>();
    for (size_t i = 0; i < std::min(fds_.size(), setup.addresses[rank].more_interfaces.size() + 1); ++i) {
      if (auto address = address_of(endpoint_on(setup.addresses[rank], static_cast<int>(i)))) {
        address->cookie = cookie_of(setup.key, static_cast<int>(rank));
        peers_->addresses.emplace_back(i, *address);
      }
    }
  }
}

Heartbeat::~Heartbeat() {
  for (const int fd : fds_) ::close(fd);
}

std::chrono::nanoseconds Heartbeat::age(int rank) const {
  return clock_.now() - std::chrono::nanoseconds(heard_at_[static_cast<size_t>(rank)].load(std::memory_order_relaxed)) + kOnTheWay;
}

std::chrono::nanoseconds Heartbeat::since_flood() const {
  return clock_.now() - std::chrono::nanoseconds(flooded_at_.load(std::memory_order_relaxed));
}

void Heartbeat::send(const StatusBoard& own) {
  Frame frame{.kind = Frame::Kind::wake, .number = own.beat.load(std::memory_order_relaxed)};
  if (const auto doing = own.read_operation()) {
    frame.envelope = *doing;
    frame.offset = 1;  // the envelope is set
  }
  Datagram datagram{};
  datagram.head.from = rank_;
  datagram.head.number = ++sent_;
  if (!peers_->seal.close(datagram, encode(frame))) return;
  for (const auto& [interface, to] : peers_->addresses) {  // losing one datagram does no harm
    datagram.cookie = to.cookie;
    ::sendto(fds_[interface], &datagram, sizeof datagram, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to.where),
             to.length);
  }
}

bool Heartbeat::receive() {
  bool emptied = true;
  for (const int fd : fds_) emptied = receive_on(fd) && emptied;
  return emptied;
}

bool Heartbeat::receive_on(int fd) {
  const size_t most = kBatch + boards_.size();  // between two calls each rank sends one at most, or a few after a pause of this thread
  std::array<iovec, kBatch> places;
  std::array<mmsghdr, kBatch> messages{};
  for (size_t i = 0; i < kBatch; ++i) {
    places[i] = {peers_->buffers[i].data(), peers_->buffers[i].size()};
    messages[i].msg_hdr.msg_iov = &places[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  for (size_t read = 0; read < most;) {
    const int got = ::recvmmsg(fd, messages.data(), kBatch, MSG_DONTWAIT, nullptr);
    for (int i = 0; i < got; ++i) take(peers_->buffers[static_cast<size_t>(i)].data(), messages[static_cast<size_t>(i)].msg_len);
    if (got < static_cast<int>(kBatch)) return true;  // the queue is empty
    read += static_cast<size_t>(got);
  }
  flooded_at_.store(clock_.now().count(), std::memory_order_relaxed);
  return false;
}

void Heartbeat::take(const std::byte* bytes, size_t size) {
  Datagram datagram;
  Body body;
  if (size != sizeof datagram) return;
  std::memcpy(&datagram, bytes, size);
  const auto from = static_cast<size_t>(datagram.head.from);
  if (CRYPTO_memcmp(datagram.cookie.data(), peers_->own_cookie.data(), datagram.cookie.size()) != 0) return;
  if (datagram.head.magic != kHeartbeatMagic || from >= boards_.size() || !boards_[from]) return;
  if (datagram.head.number <= heard_[from] || !peers_->seal.open(datagram, body)) return;
  heard_[from] = datagram.head.number;
  try {
    const Frame frame = decode(body, 0);
    heard_at_[from].store(clock_.now().count(), std::memory_order_relaxed);
    boards_[from]->beat.store(frame.number, std::memory_order_relaxed);
    if (frame.offset == 1) boards_[from]->publish_operation(frame.envelope);
  } catch (const Error&) {  // another version of Cairn, which the handshake refuses
  }
}

}  // namespace cairn::comm
