#include "comm/label.h"

#include <array>

namespace cairn::comm {

std::string_view name(Purpose purpose) {
  constexpr std::array<std::string_view, kPurposes> names{"gradient", "parameter", "activation", "loss", "state",
                                                          "data",     "control",   "barrier",    "relay"};
  return names.at(static_cast<size_t>(purpose));
}

}  // namespace cairn::comm
