#pragma once
#include <optional>
#include <string>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_stream.h"

namespace cairn::model {

// Where a block stands among the values of a model.
struct BlockIo {
  std::string name, reads, writes;
  // Of a branch whose norm is a block of its own: what its result is added to (empty: it writes its terms alone), and terms of another
  // branch that are summed up with its own.
  std::string onto = {}, with = {};
};

// Lets what is on its way along tp advance. Called between the kernels of a branch.
void progress_tp(const Call& call);

// The way into a branch of the residual stream and out of it, the same for whatever the branch computes in between. Two kinds:
//
// With its norm: x + h(norm(x)). Ranks along tp share the stream's tokens out; they are gathered on the way in and summed on the way out.
//
// Without: reads what a norm block made of some earlier value of the stream, `onto` it adds. Every rank has all tokens. The sum over the
// ranks is only started here: the value that is written is in flight, and complete for whoever reads it. The gradient of what it read
// likewise. So it hides behind whatever comes before its first reader.
class ResidualBranch {
 public:
  ResidualBranch(BlockIo io, std::optional<Norm> norm, int64_t embed, double dropout);

  const std::string& name() const { return io_.name; }
  const std::string& reads() const { return io_.reads; }
  // Puts its name, its values, its norm and what it adds its result to on the block's card.
  void describe(Card& card) const;
  const std::optional<Norm>& norm() const { return norm_; }

  // What the branch computes with: [tokens, width], and how many samples and positions these are. `use` as in gather_tokens.
  struct In {
    at::Tensor rows = {};
    at::Tensor x = {};  // the stream, where the norm is here
    BatchShape batch_shape = {};
  };
  // `normed` and `dout`: gain the largest magnitude of what the branch, or its gradient, computes with, where it is known by then.
  In begin_forward(Values& values, Saved* keep, const Call& call, const OnRows& use, Operand* normed = nullptr) const;
  // Adds the branch's result, whose terms [tokens, embed] are `out` of `from`, whose bias is added once.
  void end_forward(Values& values, const In& in, const at::Tensor& from, const Linear& out, const Call& call,
                   Operand* made = nullptr) const;

  // The gradient of the branch's result, for all tokens: [tokens, embed].
  struct Back {
    at::Tensor dy = {};    // as it came
    at::Tensor dout = {};  // for all tokens, through the dropout
  };
  Back begin_backward(Values& gradients, Saved& saved, const Call& call, const OnRows& use, Operand* dout = nullptr) const;
  // Hands on the gradient of what the branch read; `make` makes its terms [tokens, embed].
  void end_backward(Values& gradients, Saved& saved, const Back& back, const at::Tensor& din, const OnRows& make, const Call& call) const;
  void weight_gradients(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const;

  // In plain operations: what it reads, and what it writes.
  at::Tensor plain_in(Values& values, const Call& call) const;
  void plain_out(Values& values, const at::Tensor& result) const;

 private:
  void finish(const at::Tensor& sums, const Value& onto, const Call& call) const;

  BlockIo io_;
  std::optional<Norm> norm_;
  int64_t embed_;
  double dropout_;
};

}  // namespace cairn::model
