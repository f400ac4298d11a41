#pragma once
#include <optional>
#include <string>

#include "comm/link_model.h"

namespace cairn::cli {

// Parses --links: "20ms,100Mbit", "50us,10Gbit,card".
//   latency      of each message: us, ms, s
//   bandwidth    of each direction between two ranks: kbit, Mbit, Gbit
//   card         the bandwidth is shared by all links of a rank
//   sigma=1      log-normal latency around the given one
//   matrix=FILE  latency of each pair in ms, one row per sender
// A part that is missing costs no time. Returns nothing for an empty text: the machine's own links.
std::optional<comm::LinkModel> parse_links(const std::string& text);

// Links between islands of equal size, in rank order; links inside an island cost nothing. With one island, `links` holds between all
// ranks. A latency matrix is indexed by island and may have more rows than there are islands.
comm::LinkModel island_links(comm::LinkModel links, int ranks, int islands);

}  // namespace cairn::cli
