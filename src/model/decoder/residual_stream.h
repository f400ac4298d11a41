#pragma once
#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/box.h"
#include "model/call.h"
#include "model/card.h"
#include "model/decoder/norm.h"

namespace cairn::model {

// The residual stream between blocks under tensor parallelism, with sequence parallelism (Megatron-LM, arXiv:2205.05198).
//
// Without tp the stream is [batch, length, embed], and nothing here communicates or copies. With tp, ranks split the layers' widths, and
// the stream's tokens are sharded too: [1, local tokens, embed], in the order of the tokens. Norms and residual additions then run once per
// token. A layer all-gathers the tokens before its first linear layer and reduce-scatters its output; the gradient of either is the other.
// A replicated parameter sees only some of the tokens (or heads) on each rank, so its gradient is summed over tp.

// That is TokenLayout::sharded (card.h). replicated: every rank has the whole stream, and layers end with an all-reduce, which ladder and
// parallel wirings (decoder/wiring.h) overlap with other blocks. Gradients of replicated parameters are then computed for local tokens
// only and summed.
// Decoding (Call::cache) always replicates the stream, whatever the wiring: a step has one token per sequence. So do passes in slices
// (PassOptions::slice): the positions of a slice would lie on some ranks only.

// The layout in this call of a value that is laid out like `tokens` otherwise.
TokenLayout layout_in(const Call& call, TokenLayout tokens);
// Whether every rank along tp (there are several) has all tokens. Then it contributes gradients of replicated parameters from its local
// tokens only.
bool replicated_over_tp(const Call& call, TokenLayout tokens);

// Samples and positions of the pass, on all ranks along tp together.
struct BatchShape {
  int64_t batch = 0, length = 0;
  int64_t tokens() const { return batch * length; }
};
BatchShape batch_shape(const at::Tensor& stream, const Call& call);

// A function of rows [begin, begin + count) of a matrix over all tokens.
using OnRows = std::function<void(const at::Tensor& matrix, int64_t begin, int64_t count)>;

// All-gathers the tokens: [tokens, width] from this rank's [local tokens, width]. `use` is called once for every row: for all rows at the
// end, or with PassOptions::overlap for each rank's rows as they arrive, while the next are in flight.
at::Tensor gather_tokens(const at::Tensor& here, const BatchShape& batch_shape, const Call& call, std::string_view what,
                         const OnRows& use = {}, TokenLayout tokens = TokenLayout::sharded);
// Reduce-scatters `terms` [tokens, width]: this rank's tokens of the sum over tp. `make` computes the terms, once for every row: for all
// rows at the beginning, or with PassOptions::overlap for each rank's rows in turn, while the rows before are in flight. The sum is in rank
// order and rounded once either way.
at::Tensor reduce_scatter_tokens(const at::Tensor& terms, const Call& call, std::string_view what, const OnRows& make = {},
                                 TokenLayout tokens = TokenLayout::sharded);
// A view of this rank's tokens of a replicated matrix [tokens, width].
at::Tensor local_tokens(const at::Tensor& whole, const Call& call);
// The stream's shape: [batch, length, width], or [1, local tokens, width].
at::Tensor as_stream(const at::Tensor& rows, const BatchShape& batch_shape, const Call& call, TokenLayout tokens = TokenLayout::sharded);

// Dropout in place on this rank's tokens [local tokens, width]. The mask is a function of token, name and step, so it does not depend on
// the layout. Does nothing at rate 0 or outside of training.
void apply_dropout(const at::Tensor& here, double rate, const Call& call, std::string_view where,
                   TokenLayout tokens = TokenLayout::sharded);

// Starts an all-reduce of x [tokens, width] along tp, in place.
comm::Work all_reduce_tp(const at::Tensor& x, const Call& call, std::string_view what);

// The gradient of a norm's weights with a replicated stream: each rank contributes its local tokens, and the sink sums over tp.
void local_weight_gradient(const Norm& norm, mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                           const Call& call);

// The rows of a table of `size` rows that this rank holds.
mesh::Interval local_rows(mesh::ParamId table, int64_t size, const Call& call);

}  // namespace cairn::model
