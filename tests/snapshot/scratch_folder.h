#pragma once
#include <string>

#include "harness/scratch_folder.h"

namespace cairn::snapshot {

// A folder of a test's own, with strings for paths, as the snapshot room takes them.
class ScratchFolder {
 public:
  std::string path() const { return folder_.path().string(); }
  std::string operator/(const std::string& name) const { return (folder_ / name).string(); }

 private:
  harness::ScratchFolder folder_;
};

}  // namespace cairn::snapshot
