// Which epochs of a trainer are kept on disk, and where: FOLDER/epochs, FOLDER/last, FOLDER/argmin-LOSS, each with its own snapshots.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/named_tensor.h"
#include "task/task.h"

namespace cairn::comm {
class World;
}
namespace cairn::snapshot {
class OpenSnapshot;
}

namespace cairn::task {

struct SaveOptions;

// The progress of a trainer, as in a checkpoint's training/state.json. Random numbers depend on the seed and these counts only.
struct TrainerState {
  int64_t step = 0, epoch = 0, updates = 0;
  uint64_t seed = 0;
  Metrics best = {};  // the best values so far of the metrics of argmin and argmax
  bool operator==(const TrainerState&) const = default;
};
std::string to_json(const TrainerState& progress);
TrainerState parse_trainer_state(const std::string& json, const std::string& path);  // corrupt_file for anything else

// The folders into which the state after this epoch goes. Updates `best` with new best values. Refuses a metric that the epoch does not
// have.
std::vector<std::string> folders_due(const SaveOptions& save, int64_t epoch, const Metrics& metrics, Metrics& best);

// The newest checkpoint under `folder` that training can resume from (last and epochs), if there is one. All ranks must find the same one.
std::optional<snapshot::OpenSnapshot> newest(comm::World& world, const std::filesystem::path& folder);

// Writes a state into FOLDER/NAME: parameters and the optimizer's tensors as safetensors, `about` as recipe.toml. Call it on one rank.
void write_checkpoint(const std::filesystem::path& folder, const std::string& name, const std::string& about,
                      const mesh::NamedTensors& model, const mesh::NamedTensors& optimizer, const TrainerState& progress);

}  // namespace cairn::task
