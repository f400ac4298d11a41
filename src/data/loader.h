// Prepares batches ahead of time, so that a step finds its batch ready.
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

// An actor that makes the batches of steps first .. end - 1 in order on a thread of its own, with `ahead` registers: that many are made or
// waiting, no more. It runs `make` only, which must not communicate. The destructor drops what is waiting and joins the thread.
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
  Make make_;
  int64_t end_;
  int64_t asked_;  // the step that next() returns next
  std::exception_ptr failure_ = {};
  bool failed_ = false;  // the making thread's: nothing sensible follows a failure
  mesh::Batch taken_ = {};
  std::unique_ptr<base::ActorRuntime> actors_;  // last, so that its thread ends first
};

}  // namespace cairn::data
