// Prepares batches ahead of time, so that a step finds its batch ready.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "mesh/batch.h"

namespace cairn::data {

// One background thread makes the batches of steps first .. end - 1 in order and keeps at most `ahead` of them waiting.
// It runs `make` only, which must not communicate. The destructor drops what is waiting and joins the thread.
class Loader {
 public:
  using Make = std::function<mesh::Batch(int64_t step)>;

  Loader(Make make, int64_t first, int64_t end, int64_t ahead = 2);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch of the next step; waits until it is made, and rethrows what `make` threw for it. Not to be called past the end.
  mesh::Batch next();

 private:
  struct Shared;
  std::unique_ptr<Shared> shared_;
};

}  // namespace cairn::data
