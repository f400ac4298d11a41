#pragma once
#include <optional>
#include <string>

#include "model/block.h"
#include "model/decoder/linear.h"
#include "model/decoder/norm.h"
#include "model/decoder/residual_stream.h"

namespace cairn::model {

// The names of a block and of the values it reads and writes.
struct BlockIo {
  std::string name, reads, writes;
  // For a branch whose norm is a separate block. `onto`: the value to which its result is added; empty: it writes its unreduced terms.
  // `with`: the terms of another branch, reduced together with its own.
  std::string onto = {}, with = {};
};

// Drives messages in flight. Called between the kernels of a branch.
void progress_messages(const Call& call);

// The begin and the end of a residual branch h (attention or MLP), which are the same for both. Two kinds:
//
// With its norm (standard wiring): x + h(norm(x)), with sequence parallelism. Tokens of the stream are sharded along tp: they are
// all-gathered at the beginning and reduce-scattered at the end.
//
// Without its norm (ladder and parallel wirings): it reads the result of a separate norm block and adds to `onto`. Tokens are replicated
// along tp. The all-reduce is only started: the value that it writes is in flight, and so is the gradient of what it reads. The all-reduce
// overlaps with everything up to its first reader.
class ResidualBranch {
 public:
  ResidualBranch(BlockIo io, std::optional<Norm> norm, int64_t embed, double dropout);

  const std::string& name() const { return io_.name; }
  const std::string& reads() const { return io_.reads; }
  // Fills in the card: name, values, the norm and the final addition.
  void describe(Card& card) const;
  const std::optional<Norm>& norm() const { return norm_; }

  // The input of the branch, [tokens, width], and its batch and length. `use` as in gather_tokens.
  struct In {
    at::Tensor rows = {};
    at::Tensor x = {};  // the stream, where the branch has its norm
    BatchShape batch_shape = {};
  };
  // `normed` and `dout` receive the amax of the input, or of the output gradient, where it is known.
  In begin_forward(Values& values, Saved* keep, const Call& call, const OnRows& use, Operand* normed = nullptr) const;
  // begin_forward for a slice whose projection is made already (Block::project): keeps what the weight gradient of the projection needs.
  In resume_forward(Values& values, Saved* keep, const Call& call) const;
  // Projects `from` with `out`, reduces the result over tp, adds the bias once, and adds the sum to the stream.
  void end_forward(Values& values, const In& in, const at::Tensor& from, const Linear& out, const Call& call,
                   Operand* made = nullptr) const;

  // The gradient of the branch's output.
  struct Back {
    at::Tensor dy = {};    // of the stream after the branch
    at::Tensor dout = {};  // of the projection, for all tokens: [tokens, embed], after the gradient of dropout
  };
  Back begin_backward(Values& gradients, Saved& saved, const Call& call, const OnRows& use, Operand* dout = nullptr) const;
  // Adds the gradient of what the branch read. `make` computes its terms [tokens, embed], rows by rows.
  void end_backward(Values& gradients, Saved& saved, const Back& back, const at::Tensor& din, const OnRows& make, const Call& call) const;
  void weight_gradients(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const;
  // The two halves of it: of the bias of `out` and of the norm.
  void bias_gradient(Saved& saved, mesh::Gradients& into, const Linear& out, const Call& call) const;
  void norm_gradients(Saved& saved, mesh::Gradients& into, const Call& call) const;

  // The begin and the end in plain operations.
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
