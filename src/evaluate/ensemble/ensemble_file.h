// ensemble.json: the experts of an ensemble and how they are weighted.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "evaluate/ensemble/posterior.h"

namespace cairn::evaluate {

inline constexpr const char* kEnsembleFile = "ensemble.json";

struct EnsembleExpert {
  std::string name;
  std::string path;                       // a run, a snapshot or a Hugging Face directory; in the file it may be relative to the file
  std::vector<std::string> domains = {};  // what it was trained on, in order; informative only
  bool operator==(const EnsembleExpert&) const = default;
};

struct EnsembleFile {
  std::vector<EnsembleExpert> experts;
  std::string prior = "uniform";                      // "uniform", "cached" (of the domain given), "simple_average"
  std::map<std::string, std::vector<double>> priors;  // by domain: one weight per expert
  int64_t top_k = 0, refresh = 32;
  uint64_t tokenizer = 0;  // its hash: all experts share one tokenizer
  bool operator==(const EnsembleFile&) const = default;

  // The weighting of experts for a text of this domain; empty: an unknown domain, which starts uniform.
  MixtureOptions mix(const std::string& domain) const;
};

// Whether a path names an ensemble: the file itself, or a folder that holds one.
bool is_ensemble(const std::filesystem::path& path);

// Expert paths are resolved against the file. Refuses anything else than such a file, with the reason.
EnsembleFile read_ensemble(const std::filesystem::path& path);

// Writes FOLDER/ensemble.json. Expert paths are relative where possible, so that a study can be moved as a whole.
void write_ensemble(const std::filesystem::path& folder, const EnsembleFile& file);

// Removes an expert, and its weight in every prior.
void leave_out(EnsembleFile& file, size_t expert);

}  // namespace cairn::evaluate
