#include "sync/islands/replica_signature.h"

#include <string>

#include <fmt/format.h>

#include "base/checksum.h"
#include "kernels/aten.h"
#include "sync/options.h"

namespace cairn::sync {

uint64_t signature_of(const SyncOptions& options, const Replica& replica) {
  const OuterOptions& o = options.outer;
  const NolocoOptions& n = options.noloco;
  const Co2Options& c = options.co2;
  const GossipOptions& g = options.gossip;
  std::string text =
      fmt::format("{} {} {} {} {} | {} {} {} {} {} {} {} {} {} | {} {} {} {} {} | {} {} {} {} {} {} | {} {} {} {} {} {} | {}", options.kind,
                  wire_of(options), options.exchange.keep, base::enum_name(kMergeKindNames, options.exchange.merge), options.exchange.trim,
                  o.every, outer_lr_of(options), o.outer_momentum, o.outer_warmup, o.start_after, o.fragment_layers,
                  base::enum_name(kFragmentPatternNames, o.pattern), base::enum_name(kExtraParametersNames, o.extras), o.delay, n.every,
                  n.group, n.outer_lr, n.outer_momentum, n.pull, c.every, c.outer_lr, c.outer_momentum,
                  base::enum_name(kStalenessGapNames, c.gap), c.gap_value, c.clip, g.every, base::enum_name(kTopologyNames, g.topology),
                  g.neighbours, base::enum_name(kGossipScheduleNames, g.schedule), g.window_start, g.window_width, replica.seed);
  for (const FullParameter& one : replica.model) text += fmt::format(" {}={}", one.name, one.elements);
  if (options.own.has_value())
    for (const std::string& key : island_keys(options)) text += " " + key;
  // Remote islands may shard the model differently.
  if (!replica.remote_islands)
    for (const mesh::NamedTensor& one : replica.parameters) text += fmt::format(" {}:{}", one.name, one.tensor.numel());
  return base::checksum(std::as_bytes(std::span(text)));
}

int64_t max_message_bytes(const Replica& replica) {
  int64_t elements = 0;
  if (replica.remote_islands)
    for (const FullParameter& one : replica.model) elements += one.elements;
  else
    for (const mesh::NamedTensor& one : replica.parameters) elements += one.tensor.numel();
  return 3 * 4 * elements + 4096;
}

bool is_on_gpu(const Replica& replica) { return !replica.parameters.empty() && replica.parameters.front().tensor.is_cuda(); }

}  // namespace cairn::sync
