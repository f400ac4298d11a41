// Small decoders on texts of two Markov sources: trained on one, adapted to the other.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "proofs/layout_run.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;

// A text over 32 letters in which two letters decide what comes next: one of four letters, rarely another. About 0.95 nats a letter.
std::string markov_text(uint64_t source, uint64_t seed, int64_t letters);

// Runs of one shape of decoder on such texts.
class MarkovRuns {
 public:
  struct Shape {
    int64_t layers = 4, embed = 48, heads = 4, mlp = 96, length = 24, batch = 48;
    std::string kind = "llama";
  };
  // Writes both texts into the scratch folder. With options.data its text takes the place of the second source.
  MarkovRuns(const ProofOptions& options, base::Log& log, Shape shape);

  // Trains on the first source.
  std::filesystem::path base(const std::string& name, int64_t steps, const Assignments& sets = {}) const;
  // Trains on the second source from a run.
  std::filesystem::path adapt(const std::string& name, const std::filesystem::path& from, int64_t steps, const Assignments& sets,
                              uint64_t seed) const;
  // A recipe of such a run, to be trained on any ranks.
  base::Recipe recipe(const std::filesystem::path& from, int64_t steps, const Assignments& sets, uint64_t seed) const;

 private:
  std::filesystem::path train(const std::string& name, const base::Recipe& recipe) const;

  const ProofOptions& options_;
  base::Log& log_;
  Shape shape_;
  std::filesystem::path first_, second_;
};

// The last held-out loss of a run.
double held_out_loss(const std::filesystem::path& run);

}  // namespace cairn::study
