#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cairn::comm {

// What travels from one site to another, on a stream between them or through one relay. On a stream it is a head of fixed size, then the
// body.
struct SiteFrame {
  enum class Kind : uint8_t {
    message = 1,
    heartbeat = 2,  // also acknowledges; a direct one lists the streams of its origin (SiteChannels)
    addresses = 3,  // where sites can be called (introduce.cpp); never relayed
    bye = 4         // the last frame of an incarnation
  };
  using Body = std::shared_ptr<std::vector<std::byte>>;  // not changed while it is shared

  Kind kind = Kind::heartbeat;
  bool relayed = false;             // a third site has forwarded it
  int origin = 0, target = 0;       // sites
  uint64_t origin_incarnation = 0;  // of the origin when it sent this
  uint64_t target_incarnation = 0;  // that this is for; 0: the origin does not know it yet
  uint64_t number = 0;              // of a message: its sequence number
  uint64_t received = 0;            // the acknowledgement: the origin has all messages of the target below this number
  Body body = {};                   // null: empty

  int64_t bytes() const { return body ? static_cast<int64_t>(body->size()) : 0; }
};

}  // namespace cairn::comm
