#include "comm/local/event.h"

#include <array>
#include <span>

#include "base/checksum.h"

namespace cairn::comm {

std::string_view name(LocalEvent::Kind kind) {
  constexpr std::array<std::string_view, 10> names{"message", "pull", "reply", "timer", "lost", "left", "silence", "fault", "thaw", "heal"};
  return names.at(static_cast<size_t>(kind));
}

// The finaliser of SplitMix64, applied per value.
uint64_t scramble(std::initializer_list<uint64_t> values) {
  uint64_t h = 0x9e3779b97f4a7c15;
  for (const uint64_t value : values) {
    h = (h ^ value) + 0x9e3779b97f4a7c15;
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9;
    h = (h ^ (h >> 27)) * 0x94d049bb133111eb;
    h ^= h >> 31;
  }
  return h;
}

uint64_t LocalEvent::computed_checksum() const {
  const Signature& s = envelope.signature;
  const uint64_t signature =
      scramble({static_cast<uint64_t>(s.kind), static_cast<uint64_t>(s.dtype), static_cast<uint64_t>(s.reduce),
                static_cast<uint64_t>(s.root), static_cast<uint64_t>(s.count), uint64_t{s.label}, uint64_t{s.codec}});
  return scramble({static_cast<uint64_t>(kind), envelope.group, envelope.sequence, envelope.step, signature,
                   base::checksum(std::string_view(envelope.what, sizeof envelope.what)), static_cast<uint64_t>(bytes),
                   static_cast<uint64_t>(offset), data ? base::checksum(std::span(data.get(), static_cast<size_t>(bytes))) : 0});
}

}  // namespace cairn::comm
