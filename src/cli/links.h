#pragma once
#include <optional>
#include <string>

#include "comm/link_model.h"

namespace cairn::cli {

// Links as --links describes them: "20ms,100Mbit", "50us,10Gbit,card". Latency of a message, bandwidth of each direction of each pair of
// ranks (or, with "card", of all links of a rank together). What is left out costs nothing. Empty: none, as the machine has them.
std::optional<comm::LinkModel> links_of(const std::string& text);

}  // namespace cairn::cli
