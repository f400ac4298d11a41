// Values of the residual stream cut along tp, for what waits (inputs of recomputed blocks) and what is sent (stage boundaries).
//
// A replicated value is the same on every rank along tp: each may keep or send its part of the flattened elements, and an all-gather along
// tp makes it whole (ZeRO-R's partitioned activations, Megatron-LM's scatter/gather of stage boundaries). A sharded value (sequence
// parallelism) is in parts already; it can be made whole to measure what that costs.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/axes.h"
#include "model/card.h"
#include "model/pass_options.h"

namespace cairn::comm {
class Group;
}
namespace cairn::model {
class Model;
}

namespace cairn::parallel {

// How a value is kept or sent, against how blocks read it.
enum class StreamForm {
  same,   // as blocks read it
  part,   // it is replicated along tp: this rank's part of the flattened elements
  whole,  // it is sharded along tp: all tokens
};

// The values of a model's residual stream, and how they lie along tp. Empty where there is no tp.
class StreamParts {
 public:
  // `options`: passes in slices replicate the stream.
  StreamParts(const model::Model& model, const mesh::Axes& axes, const model::PassOptions& options = model::kDefaultPassOptions);

  // The form in which a value is in parts (`in_parts`), or whole on every rank.
  StreamForm form(const std::string& value, bool in_parts) const;
  // The form in which a recomputed block keeps a value.
  StreamForm kept_form(const std::string& value, model::PartitionActivations rule) const;
  // From what blocks read to the form. `tokens`: of the batch, on all ranks along tp together. A part is a copy.
  at::Tensor to_form(const at::Tensor& value, StreamForm form, int64_t tokens, std::string_view what) const;
  // And back; `shape` is that of what blocks read, where the form is a part.
  at::Tensor from_form(const at::Tensor& kept, StreamForm form, const std::vector<int64_t>& shape, std::string_view what) const;
  // Elements of this rank's part of so many.
  int64_t part_elements(int64_t elements) const;

 private:
  comm::Group* tp_ = nullptr;
  std::map<std::string, model::TokenLayout> layouts_;
};

}  // namespace cairn::parallel
