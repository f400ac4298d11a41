// What may be served: a pure function of the log of deletions and the artifacts that are there. There is no other switch to turn, so a
// deletion is in force the moment its line is on disk, and a crash at any later moment changes nothing about it.
//
// An artifact is live if it was trained without every record that its slices have lost by now, and if the artifact that it was trained upon
// is live. An order is live up to the first stage without a live artifact; what comes after that depends on it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "unlearn/artifact.h"
#include "unlearn/store.h"

namespace cairn::unlearn {

struct LiveOrder {
  Order order;
  std::vector<Artifact> chain = {};  // of each live stage
};

struct LiveShard {
  std::vector<LiveOrder> orders = {};
  int64_t serving = -1;  // the order that answers; -1: none, the shard abstains
  int64_t length = 0;    // so many of its stages
};

// [shard][slice]: how many of its records are deleted.
using DeletedCounts = std::vector<std::vector<int64_t>>;

// The name that the artifact of a beginning of an order must have to be live.
ArtifactName live_name(int64_t shard, const Order& slices, const DeletedCounts& deleted);

std::vector<LiveShard> live_shards(const StoreSpec& spec, const DeletedCounts& deleted, const std::map<std::string, Artifact>& artifacts);

// What a store serves now.
struct Served {
  int64_t deletions = 0;  // lines of the log that were known
  std::vector<LiveShard> shards = {};

  int64_t answering() const;  // shards
  // The artifacts of a shard that answers, the first stage first.
  std::vector<Artifact> chain(int64_t shard) const;
};
Served served_by(const Store& store);

// The adapters of a shard that answers, together: those of all its stages (s3t), or of the last one (sisa).
mesh::NamedTensors served_tensors(const Store& store, const std::vector<Artifact>& chain);

}  // namespace cairn::unlearn
