#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>

#include "base/recipe.h"
#include "train/start.h"

namespace cairn::train {

// The memory of one rank in bytes, by purpose, estimated from the model's cards.
struct Footprint {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t activations = 0;
  int64_t host = 0;                         // on a CPU: what lies in the host tier, and what is on its way from and to the disk
  int64_t program = 0;                      // libtorch and the rest of the process, or the CUDA context on a GPU
  int64_t gradients_with_activations = -1;  // gradients that exist while all activations exist; -1: all gradients
  int64_t activations_with_gradients = 0;   // activations that exist while all gradients exist (those of one block)
  int64_t total() const {
    const int64_t first = gradients_with_activations < 0 ? gradients : gradients_with_activations;
    return parameters + optimizer + host + program + std::max(gradients + activations_with_gradients, activations + first);
  }
};

// A run as it would be, and whether it fits.
struct DryRun {
  std::string text;            // model, data, layout, FLOPs of a step, memory of a rank beside that of this machine
  std::string misfit;          // why the run does not fit into memory and what would; empty: it fits, or the memory is not known
  int64_t snapshot_bytes = 0;  // of one snapshot, at least: parameters and optimizer state of the whole model
  int64_t snapshots_kept = 0;  // on disk at once, with the one that is being written; 0: none is saved
};

// The memory of the machine or of a GPU, and what shares it: on a CPU all ranks of this machine.
struct DeviceMemory {
  int64_t bytes = 0;  // 0: not known
  int ranks = 1;
  int processes = 1;  // fewer than ranks where these are threads
};
// The memory of the device "cpu" or "cuda". Starts CUDA for the latter.
int64_t device_memory_bytes(const std::string& device);

// Trains and writes nothing.
DryRun dry_run(base::Recipe recipe, const Start& start, int ranks, const DeviceMemory& memory);

// Refuses a run of which not even one snapshot fits on the disk of `out`; without `refuses` that is a warning. Returns a warning where one
// fits but not all that are kept; else nothing.
std::string check_disk(const DryRun& run, const std::filesystem::path& out, int64_t free_bytes, bool refuses = true);

}  // namespace cairn::train
