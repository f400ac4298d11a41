#pragma once
#include <cstdint>
#include <string_view>

namespace cairn::memory {

// What a transfer between memory and disk is for, the most urgent first. It is the transfer's priority and the row it is booked under.
enum class IoClass : uint8_t {
  parameters,   // the next layer cannot run without them
  activations,  // backward waits for them
  states,       // of the optimizer, read ahead of its update
  write_back,   // what nobody waits for
};
inline constexpr int kIoClasses = 4;
std::string_view name(IoClass io_class);

}  // namespace cairn::memory
