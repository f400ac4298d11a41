// Keeps deletions, and artifacts that become visible, one after the other.
#pragma once
#include "base/check.h"
#include "data/corpus/file_lock.h"
#include "unlearn/store.h"

namespace cairn::unlearn {

// Held for milliseconds: nothing is trained meanwhile. The system frees it when its holder dies.
class StoreLock {
 public:
  explicit StoreLock(const Store& store)
      : lock_((store.folder() / "tombstones.lock").string(), [&](double waited_s, const std::string& holder) {
          if (waited_s > kPatience_s)
            base::fail_input("{}: {} has held tombstones.lock for {:.0f} s. End that process, or wait for it.", store.folder().string(),
                             holder, waited_s);
        }) {}

 private:
  static constexpr double kPatience_s = 60;
  data::FileLock lock_;
};

}  // namespace cairn::unlearn
