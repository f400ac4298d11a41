#pragma once
#include <cstdint>
#include <string_view>

namespace cairn::comm {

// What a message is for; the ledger counts by purpose. relay: forwarded for others, whatever it is for to them.
enum class Purpose : uint8_t { gradient, parameter, activation, loss, state, data, control, barrier, relay };
inline constexpr int kPurposes = 9;

std::string_view name(Purpose purpose);

// Given with each operation: its purpose, and the tensor or phase that errors and warnings name.
struct Label {
  Purpose purpose = Purpose::control;
  std::string_view what = "";
};

}  // namespace cairn::comm
