// Heartbeats between machines, as encrypted UDP datagrams.
//
//   datagram = head (magic, from, number) | AES-128-GCM(body) | tag       key: derived from the run's key; nonce: (from, number)
//   body     = a frame header with the sender's beat counter and the envelope of the operation that it started last
// The head is authenticated with the body. A sender numbers its datagrams 1, 2, ...; a receiver takes only numbers above the last one of
// that sender, so replayed and reordered datagrams are ignored. Loss does no harm: the next datagram comes after 0.1 s.
#include "comm/net/heartbeat.h"

#include <array>
#include <cstring>
#include <netdb.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

#include <openssl/evp.h>

#include "base/check.h"
#include "comm/net/frame.h"

namespace cairn::comm {
namespace {

constexpr uint32_t kHeartbeatMagic = 0x6c757063;  // "cpul"
constexpr size_t kTagBytes = 16;
constexpr auto kOnTheWay = std::chrono::milliseconds(500);  // longest time that a datagram is under way

// The plain part of a datagram. (from, number) is unique in a run and serves as the nonce.
struct Head {
  uint32_t magic = kHeartbeatMagic;
  int32_t from = 0;
  uint64_t number = 0;
};
using Body = std::array<std::byte, kFrameBytes>;
struct Datagram {
  Head head;
  Body sealed;
  std::array<uint8_t, kTagBytes> tag;
};
static_assert(sizeof(Datagram) == sizeof(Head) + kFrameBytes + kTagBytes);

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
};

std::optional<Address> address_of(const RankAddress& rank_address) {
  addrinfo wanted{}, *found = nullptr;
  wanted.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(rank_address.host.c_str(), std::to_string(rank_address.outside_port).c_str(), &wanted, &found) != 0 || !found)
    return std::nullopt;
  Address address;
  std::memcpy(&address.where, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

}  // namespace

struct Heartbeat::Peers {
  explicit Peers(const Key& key) : seal(key) {}
  Seal seal;
  std::vector<Address> addresses;
};

Heartbeat::Heartbeat(const NetSetup& setup)
    : fd_(setup.heartbeat_fd),
      rank_(setup.rank),
      heard_(static_cast<size_t>(setup.size)),
      heard_at_(static_cast<size_t>(setup.size)),
      peers_(std::make_unique<Peers>(setup.key)) {
  boards_.resize(static_cast<size_t>(setup.size));
  const int machine = setup.addresses[static_cast<size_t>(setup.rank)].machine;
  for (size_t rank = 0; rank < boards_.size(); ++rank) {
    if (setup.addresses[rank].machine == machine) continue;
    boards_[rank] = std::make_unique<StatusBoard>();
    if (const auto address = address_of(setup.addresses[rank])) peers_->addresses.push_back(*address);
  }
}

Heartbeat::~Heartbeat() { ::close(fd_); }

std::chrono::nanoseconds Heartbeat::age(int rank) const {
  return clock_.now() - std::chrono::nanoseconds(heard_at_[static_cast<size_t>(rank)].load(std::memory_order_relaxed)) + kOnTheWay;
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
  for (const Address& to : peers_->addresses) {  // losing one datagram does no harm
    ::sendto(fd_, &datagram, sizeof datagram, MSG_DONTWAIT | MSG_NOSIGNAL, reinterpret_cast<const sockaddr*>(&to.where), to.length);
  }
}

void Heartbeat::receive() {
  Datagram datagram;
  Body body;
  while (true) {
    const ssize_t got = ::recv(fd_, &datagram, sizeof datagram, MSG_DONTWAIT | MSG_TRUNC);
    if (got < 0) return;
    const auto from = static_cast<size_t>(datagram.head.from);
    if (got != sizeof datagram || datagram.head.magic != kHeartbeatMagic || from >= boards_.size() || !boards_[from]) continue;
    if (datagram.head.number <= heard_[from] || !peers_->seal.open(datagram, body)) continue;
    heard_[from] = datagram.head.number;
    try {
      const Frame frame = decode(body, 0);
      heard_at_[from].store(clock_.now().count(), std::memory_order_relaxed);
      boards_[from]->beat.store(frame.number, std::memory_order_relaxed);
      if (frame.offset == 1) boards_[from]->publish_operation(frame.envelope);
    } catch (const Error&) {  // another version of Cairn, which the handshake refuses
    }
  }
}

}  // namespace cairn::comm
