// Runs of the trainer that proofs of samplers compare: points labelled by a teacher, and a small decoder in many layouts.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "proofs/layout_run.h"

namespace cairn::study {

struct ProofOptions;

// Gaussian points in 32 dims with the largest of 10 outputs of a random two-layer network as their class, as CSV files in `folder`.
struct TeacherPoints {
  std::filesystem::path folder;
  int64_t training = 0;
  int64_t test = 4000;
  double flipped = 0;  // share of the training labels that are replaced by random ones
  uint64_t seed = 1;
};
void write_teacher_points(const TeacherPoints& points);

// A perceptron 32-128-10 on them: SGD 0.1 with Nesterov momentum 0.9 and weight decay 5e-4, cosine to 1e-4, batches of 64.
base::Recipe points_recipe(const std::filesystem::path& folder, uint64_t seed, const Assignments& sets);

// What a run wrote.
struct SampledRun {
  std::vector<std::string> samples;                    // the checksum of the ids of each step's batch
  std::vector<double> losses, rates;                   // of each step
  std::map<int64_t, double> accuracy;                  // held-out, by step
  std::map<std::string, std::vector<double>> sampler;  // "kept_share" and the like, one value for each epoch
  std::vector<int64_t> epoch_steps;                    // the first step of each epoch
  int64_t steps() const { return static_cast<int64_t>(samples.size()); }
  double last_accuracy() const { return accuracy.rbegin()->second; }
};
SampledRun read_sampled_run(const std::filesystem::path& out);
SampledRun train_sampled(const base::Recipe& recipe, const std::filesystem::path& out, int ranks = 1, bool resume = false);

// Calls `act` for 0 .. jobs - 1, on two threads.
void in_parallel(int64_t jobs, const std::function<void(int64_t job)>& act);

// A small decoder on text: documents of --data (again and again where it is short), or the built-in stories, together about `bytes` long.
// `sampler_texts` are the keys that name them.
Assignments sampler_texts(const ProofOptions& options, int64_t bytes);
base::Recipe sampler_decoder(const ProofOptions& options, int64_t bytes, const Assignments& sets);

// Adapters on 80 chats in batches of 8, over a small model that is trained in `folder` first.
base::Recipe sampled_chats(const ProofOptions& options, const std::filesystem::path& folder);

// Layouts that must draw the same samples.
struct SamplerLayout {
  std::string name;
  int ranks = 1;
  Assignments sets = {};
};
const std::vector<SamplerLayout>& sampler_layouts();

// Of two runs' samples: how many steps from .. to - 1 have others, or are missing.
double steps_differing(const std::vector<std::string>& a, const std::vector<std::string>& b, size_t from = 0,
                       size_t to = std::numeric_limits<size_t>::max());

// A copy of a run with the snapshot of `step` alone: what a kill right after it leaves behind.
void copy_run_at(const std::filesystem::path& run, const std::filesystem::path& to, int64_t step);

// `cairn train` with these keys as processes, killed with SIGKILL when the run has a snapshot of `after_step`. Returns whether it was
// killed before it ended. Further runs resume it; `kill` = false: to its end.
struct KilledRun {
  std::string program;
  std::filesystem::path out;
  int ranks = 1;
  Assignments sets = {};
  int64_t after_step = 0;
  bool kill = true;
};
bool run_and_kill(const KilledRun& run);

}  // namespace cairn::study
