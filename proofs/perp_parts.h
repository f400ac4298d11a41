// The parts of the proof of PERP.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "model/decoder/shape.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "study/prune/prune.h"

namespace cairn::study {

namespace fs = std::filesystem;

inline constexpr int64_t kPerpLayers = 2, kPerpEmbed = 48, kPerpMlp = 192, kPerpRank = 4;

// The dense model of one seed, and the prunings of it.
class PruneTrials {
 public:
  PruneTrials(const ProofOptions& options, base::Log& log);

  base::Recipe recipe(const Assignments& sets) const;
  fs::path dense() const;
  PruneResult prune(const std::string& name, const fs::path& from, const Assignments& sets, int ranks = 1) const;
  const fs::path& scratch() const { return scratch_; }

 private:
  ProofOptions options_;
  base::Log& log_;
  fs::path scratch_;
};

struct OpenedModel {
  model::DecoderShape shape;
  Tensors tensors, kept;  // kept: by weight, true where it is not pruned
};
OpenedModel open_model(const fs::path& folder);
// Pruned weights that are not 0.
int64_t filled(const OpenedModel& model);

// The factors of low-rank forms of all linear layers.
int64_t perp_factors();

void prove_perp_exactly(const ProofOptions& options, const PruneTrials& trials, const fs::path& dense, Findings& findings);
void prove_perp_layouts(const PruneTrials& trials, Findings& findings);

}  // namespace cairn::study
