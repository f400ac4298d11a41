#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/placement.h"

namespace cairn::model {

// How to make the gradient of logits from the logits (the arguments of kernels::cross_entropy_backward and cross_entropy_to_fp8), for a
// gradient that is not computed yet.
struct DeferredLogitsGradient {
  at::Tensor lse, targets, scale;
};

// Chunked cross entropy: logits that never exist as a whole. The head block makes one; the loss calls, for each chunk in order, compute()
// and then accept_gradient(). All chunks share one buffer. compute() may be called for all chunks before that, for losses alone. Chunks that
// are not needed are left out in both.
class ChunkedLogits {
 public:
  virtual ~ChunkedLogits() = default;
  virtual int64_t chunks() const = 0;
  struct Rows {
    int64_t begin, count;
    bool needed;  // false: none of them has a target, so their losses and gradients are 0
  };
  virtual Rows rows(int64_t chunk) const = 0;
  virtual at::TensorOptions options() const = 0;  // dtype and device of the logits
  virtual at::Tensor compute(int64_t chunk) = 0;  // logits [rows of the chunk, vocab]; valid until the next call
  virtual bool defers_gradient() const = 0;       // as Value::defers_gradient
  // The loss has overwritten the last chunk with its gradient; or, with `deferred_gradient`, it is still logits and the head makes the
  // gradient. `amax` as in Value. Computes the chunk's input and weight gradients.
  virtual void accept_gradient(int64_t chunk, const at::Tensor& amax, const DeferredLogitsGradient* deferred_gradient) = 0;
  // After the last chunk: contributes the weight gradient of the head and returns the gradient of its input, [rows, embed].
  virtual at::Tensor finish() = 0;
  virtual int64_t bytes() const = 0;  // held beside the buffer of logits: the head's input and its gradient
};

// What blocks read and write: a tensor, its placement on the mesh, and when it may be read.
struct Value {
  at::Tensor tensor = {};
  mesh::Placement placement = {};
  comm::Work ready = comm::Work::done();
  bool differentiable = true;
  bool defers_gradient = false;  // logits: their maker also makes their gradient, where the loss gives deferred_gradient
  std::optional<DeferredLogitsGradient> deferred_gradient = {};  // a gradient of logits that is still logits
  std::shared_ptr<ChunkedLogits> chunked_logits = {};            // logits or their gradient, in place of `tensor`
  at::Tensor amax = {};  // an upper bound of its magnitudes, as to_fp8 takes it (kernels/fp8.h); undefined: not known
};

// Values by name. Each name is written once in a pass, so a list of blocks can be any acyclic graph: skips, ladders, towers. The same type
// carries gradients backward, each under the name of its value. For one thread.
class Values {
 public:
  void put(const std::string& name, Value value);
  void put(const std::string& name, at::Tensor tensor) { put(name, Value{.tensor = std::move(tensor)}); }
  // Adds a gradient. Gradients of several readers are summed in the order of these calls. It may be in flight.
  void add(const std::string& name, Value gradient);
  void add(const std::string& name, at::Tensor gradient) { add(name, Value{.tensor = std::move(gradient)}); }

  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // Waits until the value is complete.
  const at::Tensor& get(const std::string& name);
  const Value& value(const std::string& name);
  // Without waiting: the tensor must not be read before `ready` is done.
  const Value& in_flight(const std::string& name) const;
  // Waits, and removes the value.
  at::Tensor take(const std::string& name);
  void drop(const std::string& name) { values_.erase(name); }

 private:
  struct Entry {
    Value value;
    std::vector<Value> more = {};  // gradients that are not summed yet
  };
  std::map<std::string, Entry> values_;
};

}  // namespace cairn::model
