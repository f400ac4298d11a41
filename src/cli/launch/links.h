#pragma once
#include <optional>
#include <string>

#include "comm/link_model.h"

namespace cairn::cli {

// Links as --links describes them: "20ms,100Mbit", "50us,10Gbit,card". Latency of a message, bandwidth of each direction of each pair of
// ranks (or, with "card", of all links of a rank together); "sigma=1": log-normal latency around that; "matrix=FILE": the latency of each
// pair in ms, a row for each sender. What is left out costs nothing. Empty: none, as the machine has them.
std::optional<comm::LinkModel> parse_links(const std::string& text);

// These links between islands of as many ranks each, in rank order; inside an island ranks are as near as can be. With one island all links
// are such. A matrix is by island; it may have more rows than there are.
comm::LinkModel island_links(comm::LinkModel links, int ranks, int islands);

}  // namespace cairn::cli
