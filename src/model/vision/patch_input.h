#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::model {

// How a transformer reads pictures (ViT): squares of patch x patch pixels are its tokens, row by row, behind one that stands for the whole
// picture and is what the head reads.
struct PatchInput {
  int64_t channels = 0;  // 0: it reads token ids
  int64_t size = 0;      // height and width of a picture
  int64_t patch = 0;
  std::vector<std::string> labels = {};  // names of the classes; empty: they have numbers only

  int64_t per_side() const { return size / patch; }
  int64_t patches() const { return per_side() * per_side(); }
  int64_t positions() const { return patches() + 1; }
  int64_t values() const { return channels * patch * patch; }  // of one patch
  bool operator==(const PatchInput&) const = default;
};

}  // namespace cairn::model
