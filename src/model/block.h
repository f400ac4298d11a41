#pragma once
#include "mesh/gradients.h"
#include "model/call.h"
#include "model/card.h"
#include "model/saved.h"
#include "model/values.h"

namespace cairn::model {

// A part of a model: a function from named values to named values. Blocks are stateless and const: weights, buffers and collectives arrive
// in the call, and what backward needs goes into `saved`. So one block serves many micro-batches in flight. Forward, input gradient and
// weight gradient are three calls, which a pipeline schedule may place apart. Values at block borders are [batch, length, ...].
class Block {
 public:
  virtual ~Block() = default;
  virtual const Card& card() const = 0;
  // Reads card().reads and writes card().writes. `keep` null: nothing is saved, and no gradient is asked for later.
  virtual void forward(Values& values, Saved* keep, const Call& call) const = 0;
  // Takes the gradients of card().writes out of `gradients` and adds (+=) those of card().reads. Puts what the weight gradient needs into
  // `saved`.
  virtual void backward_input(Values& gradients, Saved& saved, const Call& call) const = 0;
  // Contributes the weight gradients to `into`. Comes after backward_input and consumes `saved`.
  virtual void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const = 0;
  // StreamBP (Card::sliceable): for an attention, comes before the calls for the slices of a sequence. Projects queries, keys and values
  // of one slice into Call::sliced. Other blocks compute each token by itself and need none of these four.
  virtual void project(Values& /*values*/, const Call& /*call*/) const {}
  // Where sequences are split along cp, the attention itself is one call for all positions of this rank, between the slices that project
  // and those that go on. backward_input then stops at the gradient of its result; after attend_backward, unproject goes on, slice by
  // slice: it adds the input gradient, to that of the residual path, and contributes the weight gradients that are left.
  virtual void attend(const Call& /*call*/) const {}
  virtual void attend_backward(const Call& /*call*/) const {}
  virtual void unproject(Values& /*values*/, Values& /*gradients*/, mesh::Gradients& /*into*/, const Call& /*call*/) const {}
  // The same function in plain differentiable ATen operations: the reference for the three calls above, and the form that second
  // derivatives use.
  virtual void plain(Values& values, const Call& call) const = 0;
};

}  // namespace cairn::model
