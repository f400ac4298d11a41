#pragma once
#include <cstdint>
#include <string>

#include "comm/bridge/site_channels.h"
#include "comm/consensus/raft.h"

namespace cairn::study {

// Mistakes that can be planted, to see that they are found.
struct ChaosFaults {
  comm::RaftFaults log = {};
  comm::SiteChannelFaults channels = {};
  bool reuse_incarnation = false;  // a process that starts again has the number of the one before
};

// What a run of islands_chaos found out.
struct ChaosResult {
  std::string violation = {};  // empty: none
  int islands = 0;
  int64_t rounds = 0;    // that were applied by somebody
  int64_t rejoined = 0;  // times that an island came back to the others, in the same process or in a new one
  int64_t relayed = 0;   // messages that a third island forwarded
  double virtual_s = 0;  // how long it took, on the islands' clocks
};

// Islands that train together with the product's own sync rule, exchange, membership, decision log and channels, in virtual time, while
// links are cut (both ways, one way, between some), messages wait, disks are slow, and processes stop, die and start again. Everything
// follows from the seed. Checked:
//
//   - never two different global models for one step of one epoch, on islands that did not say that they train alone;
//   - an island that ends without an error has the same final model as all others that do;
//   - no call of the rule lasts longer than its deadline;
//   - once all links are healed, or enough of them that one island reaches all and can relay, every island that runs takes part again:
//     after a time to notice it, at most three rounds are decided without it;
//   - on the disks a vote that was cast in a term stays, and whoever leads a term has the votes of a majority;
//   - nothing fails but by an error that says that peers were lost.
//
// Where each island has a model of its own (SyncNeeds::one_model) the first two say nothing, and rounds are among a few.
ChaosResult islands_chaos(uint64_t seed, const ChaosFaults& faults = {}, const std::string& kind = {});  // empty: a form of DiLoCo

}  // namespace cairn::study
