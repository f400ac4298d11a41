// What a store serves, what that depends on, and whether anything of a deleted record is left: read off the disk.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "unlearn/delete_records.h"
#include "unlearn/store.h"

namespace cairn::unlearn {

struct AuditedArtifact {
  std::string name;
  std::vector<Place> depends_on;
  int64_t records = 0;  // those that it was trained on and before
};

struct Audit {
  int64_t records = 0, deleted = 0;
  std::vector<std::vector<AuditedArtifact>> served = {};  // by shard; empty: it abstains
  std::vector<std::vector<int64_t>> live_lengths = {};    // of the orders of each shard
  std::vector<std::string> trouble = {};                  // what must not be; empty: all is well
};

// Checks every artifact's checksum, the checksum of the base model, that no served artifact could have read a deleted record, and that no
// file has one. What only waits to be removed (a deletion was killed) is trouble too: `cairn unlearn repair` removes it.
Audit audit(const Store& store);

std::string to_text(const Audit& audit);
std::string to_json(const Audit& audit);

// How many deletions a store survives from now on before all shards abstain, if each falls into a slice drawn at random.
struct CapacityReport {
  int64_t shards = 0, slices = 0;
  int64_t answering = 0;     // shards
  int64_t first_slices = 0;  // distinct first slices of live orders: when all are hit, the base model is left
  double expected = 0;       // deletions left: shards * slices * H(first_slices)
  double simulated = 0;      // the mean of trials
  double expected_new = 0;   // of a store as it was made
  double expected_sisa = 0;  // of SISA with the same slices and no retraining
};
CapacityReport capacity_of(const Store& store, uint64_t seed, int64_t trials = 2000);
std::string to_text(const CapacityReport& report);

}  // namespace cairn::unlearn
