// Whether a saved model is whole: everything that is wrong with it, by file and tensor.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::snapshot {

struct Defect {
  std::string file;    // within the folder
  std::string tensor;  // empty: the file as such
  std::string what;
  bool operator==(const Defect&) const = default;
};

struct VerifyReport {
  std::vector<Defect> defects;
  bool checksums = false;  // there is a manifest, so every byte was compared with what was written
  int64_t files = 0;       // that were looked at
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// Looks at a snapshot or a Hugging Face directory, whole: files, sizes and checksums against the manifest where there is one; headers,
// shards and their index; values that are not finite; texts that are not JSON; the tensors against config.json. Throws nothing about the
// content: all of it is in the result. `progress`, if given, hears of the bytes done and of all.
VerifyReport verify(const std::string& folder, const std::function<void(int64_t done, int64_t of)>& progress = {});

}  // namespace cairn::snapshot
