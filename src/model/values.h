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

// A gradient of logits that is still the logits: what it takes to make it of them (kernels::cross_entropy_backward, _to_fp8).
struct DeferredLogitsGradient {
  at::Tensor lse, targets, scale;
};

// Logits that are never there as a whole: a loss asks for some rows after the other, and leaves their gradient in the place of each.
class ChunkedLogits {
 public:
  virtual ~ChunkedLogits() = default;
  virtual int64_t chunks() const = 0;
  virtual at::Tensor compute(int64_t chunk) = 0;  // [rows of it, vocab], until the next one
  virtual bool defers_gradient() const = 0;       // as Value::defers_gradient
  // The part that was made last is its gradient now, or still its logits, of which this makes their gradient. `amax` as in Value.
  virtual void accept_gradient(int64_t chunk, const at::Tensor& amax, const DeferredLogitsGradient* deferred_gradient) = 0;
  // Once all have been taken back, and nobody holds them any more: hands on the gradient of the weight that makes logits, and gives that of
  // what they are made from, [rows, embed].
  virtual at::Tensor finish() = 0;
  virtual int64_t bytes() const = 0;  // kept beside the logits: what they are made from, and its gradient
};

// What blocks read and write: a tensor, how it lies on the mesh, and when it may be read.
struct Value {
  at::Tensor tensor = {};
  mesh::Placement placement = {};
  comm::Work ready = comm::Work::done();
  bool differentiable = true;
  bool defers_gradient = false;  // of logits: whoever made them makes their gradient as well, where a loss says how
  std::optional<DeferredLogitsGradient> deferred_gradient = {};  // of their gradient: this is how
  std::shared_ptr<ChunkedLogits> chunked_logits = {};            // of logits, and of their gradient: in the place of a tensor
  at::Tensor amax = {};  // its largest magnitude or more, as to_fp8 takes it (kernels/fp8.h); undefined: not known
};

// Values by name. A name is written once in a pass, so a list of blocks is any acyclic graph: skips, ladders, towers.
// The same record carries gradients backward, under the name of the value that each belongs to.
class Values {
 public:
  void put(const std::string& name, Value value);
  void put(const std::string& name, at::Tensor tensor) { put(name, Value{.tensor = std::move(tensor)}); }
  // A gradient: added where the value has several readers, in the order of these calls. It may be in flight.
  void add(const std::string& name, Value gradient);
  void add(const std::string& name, at::Tensor gradient) { add(name, Value{.tensor = std::move(gradient)}); }

  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // The tensor, once what produces it is done.
  const at::Tensor& get(const std::string& name);
  const Value& value(const std::string& name);
  // As it is now: nothing may read its tensor before `ready` is done.
  const Value& in_flight(const std::string& name) const;
  // Likewise, and forgets it.
  at::Tensor take(const std::string& name);
  void drop(const std::string& name) { values_.erase(name); }

 private:
  struct Entry {
    Value value;
    std::vector<Value> more = {};  // gradients that are yet to be added
  };
  std::map<std::string, Entry> values_;
};

}  // namespace cairn::model
