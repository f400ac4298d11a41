#pragma once
#include <cstdint>
#include <vector>

namespace cairn::mesh {

// The order in which a step uses things (units of parameters), recorded in one step and expected in the next, so that they can be read
// ahead. A use that was not expected ends the expectation: from there on the rest of the step is recorded anew.
//
//   record    the first step, or the rest of a step after a surprise
//   follow    uses are compared with the record. Another pass over the model from its start (an evaluation) is no surprise.
class AccessOrder {
 public:
  // Returns false where it was a surprise.
  bool used(int64_t what);
  // The next use begins a step.
  void end_step();

  // The next `count` different things that will be used, in order. At the end of the record the next step's begin.
  std::vector<int64_t> ahead(size_t count) const;
  bool is_recorded() const { return recorded_; }
  int64_t surprises() const { return surprises_; }

 private:
  std::vector<int64_t> order_;
  size_t next_ = 0;  // in the order; where it is being recorded, its end
  bool recorded_ = false;
  int64_t surprises_ = 0;
};

}  // namespace cairn::mesh
