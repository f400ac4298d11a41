#pragma once
#include "mesh/gradients.h"
#include "model/call.h"
#include "model/card.h"
#include "model/saved.h"
#include "model/values.h"

namespace cairn::model {

// A stateless piece of a model over named values. Forward, input gradient and weight gradient are three calls, so that a schedule may
// place them apart. Tensors are [batch, length, ...] at block borders.
class Block {
 public:
  virtual ~Block() = default;
  virtual const Card& card() const = 0;
  // Reads card().reads, writes card().writes. `keep` null: nothing is saved and no gradient will be asked for.
  virtual void forward(Values& values, Saved* keep, const Call& call) const = 0;
  // Takes the gradients of what it wrote, adds the gradients of what it read. Keeps in `saved` what the weight gradient needs.
  virtual void backward_input(Values& gradients, Saved& saved, const Call& call) const = 0;
  virtual void backward_weight(Saved&& saved, mesh::Gradients& into, const Call& call) const = 0;
  // The same function in plain differentiable ATen operations: the truth that the three calls above are checked against, and
  // what second derivatives run on.
  virtual void plain(Values& values, const Call& call) const = 0;
};

}  // namespace cairn::model
