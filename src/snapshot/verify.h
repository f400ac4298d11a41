// Whether a saved model is intact: everything that is wrong with it, by file and tensor.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace cairn::snapshot {

struct Defect {
  std::string file;    // within the folder
  std::string tensor;  // empty: the file as a whole
  std::string what;
  bool operator==(const Defect&) const = default;
};

struct VerifyReport {
  std::vector<Defect> defects;
  bool checksums = false;  // there is a manifest, so every byte was checked
  int64_t files = 0;       // examined
  int64_t tensors = 0;
  int64_t bytes = 0;
};

// Examines a snapshot or a Hugging Face directory completely: files, sizes and checksums against the manifest, if there is one; safetensors
// headers, shards and their index; values that are not finite; texts that are not JSON; tensors against config.json. Does not throw about
// the content: everything is in the report. `progress`, if given, is called with bytes done and bytes in total.
VerifyReport verify(const std::string& folder, const std::function<void(int64_t done, int64_t of)>& progress = {});

}  // namespace cairn::snapshot
