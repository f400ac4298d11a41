#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/recipe.h"
#include "comm/label.h"

namespace cairn::study {

struct ProofOptions;

using Tensors = std::map<std::string, at::Tensor>;
using Assignments = std::vector<std::string>;  // as --set takes them: "mesh.tp=2"

// A small decoder on little text, as proofs of layouts train it: fp32, nothing written but metrics and snapshots.
base::Recipe small_decoder(const ProofOptions& options, const Assignments& sets);
base::Recipe with(base::Recipe recipe, const Assignments& sets);

// One run of the trainer on ranks that are threads of this process.
struct LayoutRun {
  base::Recipe recipe;
  int ranks = 1;
  std::filesystem::path out;
  bool resume = false;
};

// What it left: metrics.jsonl and the newest snapshot.
struct Trained {
  std::vector<double> losses, norms;
  Tensors parameters, optimizer;
};
Trained train_layout(const LayoutRun& run);

// Copies a run as it was after `step`: what a kill right after that step's snapshot leaves behind.
void copy_up_to(const std::filesystem::path& from, const std::filesystem::path& to, int64_t step);

// The newest snapshot's tensors of a section.
Tensors snapshot_tensors(const std::filesystem::path& run, const std::string& section);

// As a share of the larger one; not a number and other lengths count as infinitely far.
double largest_relative_difference(const std::vector<double>& a, const std::vector<double>& b);
// Of any element of any tensor; other names count as infinitely far.
double largest_difference(const Tensors& a, const Tensors& b);

// What one rank's books say, in bytes. Of tensors that are there, not of formulas.
struct RankStats {
  int64_t parameters = 0, gradients = 0, optimizer = 0;  // between steps
  int64_t gradients_most = 0;                            // during a step
  int64_t gathered_most = 0;                             // of parameters beside those kept, during a step
  int64_t activations_most = 0;
  int64_t checkpoints = 0;                         // inputs that a forward pass keeps where blocks recompute
  std::map<comm::Purpose, int64_t> sent;           // in one step
  std::map<comm::Purpose, int64_t> messages;       // in one step
  std::map<int, int64_t> activations_sent;         // by receiver, in one step
  Tensors kept;                                    // parameters and parts of them
  std::map<std::string, std::vector<int>> copies;  // of those kept: other ranks that hold just the same
  int64_t state() const { return parameters + gradients + optimizer; }
};
struct RunStats {
  int64_t elements = 0;             // of the whole model
  std::vector<int64_t> unit_bytes;  // of what is brought together at once, fp32, the largest first (rank 0)
  std::vector<double> losses;       // of every step
  std::vector<RankStats> ranks;
  Tensors parameters, optimizer;  // whole, at the end (from the first rank)
};
// Steps of the trainer on a virtual network, after one that is not counted; then the books are opened.
struct StatsRun {
  base::Recipe recipe;
  int ranks = 1;
  int64_t steps = 0;                       // 0: only what there is at the start, the uncounted step left out too
  std::filesystem::path resume_from = {};  // a run directory to begin with
  int64_t micro_batches = 0;               // on one rank too; 0: as the recipe says
};
RunStats collect_stats(const StatsRun& run);

}  // namespace cairn::study
