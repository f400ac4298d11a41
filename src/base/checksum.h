#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace cairn::base {

// XXH3, 64 bits, seed 0: the checksum of Cairn's files. Detects damage, not forgery.
uint64_t checksum(std::span<const std::byte> bytes);
uint64_t checksum(std::string_view text);

// CRC-32C (Castagnoli), for TensorBoard's record framing.
uint32_t crc32c(std::span<const std::byte> bytes);

// XXH3 over pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  void add(std::span<const std::byte> bytes);
  uint64_t value() const;  // of all added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cairn::base
