// ensemble.json: which models make an ensemble, and how they are weighed.
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
  std::string path;                       // a run, a snapshot or a Hugging Face directory; in the file it may be relative to it
  std::vector<std::string> domains = {};  // what it was trained on, in order: for people
  bool operator==(const EnsembleExpert&) const = default;
};

struct EnsembleFile {
  std::vector<EnsembleExpert> experts;
  std::string prior = "uniform";                      // "uniform", "cached" (of a domain that is named), "simple_average"
  std::map<std::string, std::vector<double>> priors;  // by domain: one number for each expert
  int64_t top_k = 0, refresh = 32;
  uint64_t tokenizer = 0;  // its hash: all experts have the same
  bool operator==(const EnsembleFile&) const = default;

  // How the experts are weighed for a text of this domain; empty: of any, which is uniform before something is read.
  MixtureOptions mix(const std::string& domain) const;
};

// Whether a path names an ensemble: the file itself, or a folder that holds one.
bool is_ensemble(const std::filesystem::path& path);

// The paths of experts come back as they can be opened from here. Anything but such a file is refused, saying why.
EnsembleFile read_ensemble(const std::filesystem::path& path);

// Writes FOLDER/ensemble.json; experts are named relative to it where they lie on the same disk, so that a study can be moved as a whole.
void write_ensemble(const std::filesystem::path& folder, const EnsembleFile& file);

// Leaves an expert out, and its part of every prior.
void leave_out(EnsembleFile& file, size_t expert);

}  // namespace cairn::evaluate
