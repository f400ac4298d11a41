#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "mesh/named_tensor.h"
#include "snapshot/pretrained.h"

namespace cairn::base {
class Log;
}

namespace cairn::train {

// A model and the rounds of one-byte training that were applied to it.
struct ReplayedLog {
  snapshot::Pretrained base;
  mesh::NamedTensors parameters;            // the model after the last round, on the CPU; an adapter is merged in
  int64_t first_round = 0, last_round = 0;  // from and up to which rounds were applied, the last one excluded
  int64_t hashes = 0;                       // recorded hashes of weights that the replay met, all of them equal
};

// Applies the rounds of a log (rounds.bin) to a model: the base checkpoint of the run, or a snapshot of it, from whose round on it goes on.
// The result is bitwise identical to the weights of the run. Refuses a base that is not that of the log.
ReplayedLog replay_log(const std::string& base, const std::filesystem::path& log, base::Log& warnings);

}  // namespace cairn::train
