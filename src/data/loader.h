// Prefetches batches on a thread, so that a step finds its batch ready.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>

#include "mesh/batch.h"

namespace cairn::base {
class ActorRuntime;
}

namespace cairn::data {

// Makes the batches of steps first .. end - 1 in order on a thread of its own, as an actor with `ahead` registers: at most that many
// batches are made or waiting. The thread runs `make` only, which must not communicate. The destructor drops waiting batches and joins the
// thread.
class Loader {
 public:
  using Make = std::function<mesh::Batch(int64_t step)>;

  Loader(Make make, int64_t first, int64_t end, int64_t ahead = 2);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The batch of the next step. Waits until it is made; rethrows what `make` threw for it. Must not be called past the end.
  mesh::Batch next();

 private:
  Make make_;
  int64_t end_;
  int64_t asked_;  // the step that next() returns next
  std::exception_ptr failure_ = {};
  bool failed_ = false;  // used by the loader's thread: nothing is made after a failure
  mesh::Batch taken_ = {};
  std::unique_ptr<base::ActorRuntime> actors_;  // last, so that its thread ends first
};

}  // namespace cairn::data
