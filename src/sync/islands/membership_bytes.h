#pragma once
// What the two sources of IslandMembership share.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync::membership {

inline constexpr auto kAskAgainAfter = std::chrono::seconds(1);

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  return {bytes.begin(), bytes.end()};
}

// False: the bytes have another length.
template <typename T>
bool read_into(T& value, std::span<const std::byte> bytes) {
  if (bytes.size() != sizeof(T)) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

inline std::span<const std::byte> bytes_of(const at::Tensor& row) {
  return std::as_bytes(std::span(row.const_data_ptr<float>(), static_cast<size_t>(row.numel())));
}

inline std::span<const std::byte> bytes_of_numbers(const at::Tensor& numbers) {
  if (!numbers.defined()) return {};
  return std::as_bytes(std::span(numbers.const_data_ptr<double>(), static_cast<size_t>(numbers.numel())));
}

// Before the members after a round, one number per island, and the numbers of the rule.
struct ForwardedHeader {
  int64_t now = 0;
  int64_t defined = 0;
  int64_t number = 0;    // counted from the state on: the newcomer must miss none
  uint64_t applied = 0;  // entries of the log, that of the round's decision among them
};

}  // namespace cairn::sync::membership
