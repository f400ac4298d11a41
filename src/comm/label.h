#pragma once
#include <cstdint>
#include <string_view>

namespace cairn::comm {

// What a message is for: the ledger is kept by it.
enum class Purpose : uint8_t { gradient, parameter, activation, loss, state, data, control, barrier };
inline constexpr int kPurposes = 8;

std::string_view name(Purpose purpose);

// Handed in with each operation: what it is for, and the tensor or phase that errors and warnings shall name.
struct Label {
  Purpose purpose = Purpose::control;
  std::string_view what = "";
};

}  // namespace cairn::comm
