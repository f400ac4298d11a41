#pragma once
#include <functional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "comm/work.h"
#include "mesh/box.h"
#include "model/call.h"
#include "model/decoder/norm.h"

namespace cairn::model {

// The residual stream between blocks, and the way into and out of them.
//
// Where ranks along tp share a model's width out, they share the stream's tokens out among them too: [batch, length, embed] elsewhere, the
// stream is then [1, tokens here, embed], in the order of the tokens. Norms and sums on the stream are done once per token; a layer gathers
// the tokens on its way in and leaves a sum over the ranks on its way out, of which each keeps its tokens. The gradient of either is the
// other. A parameter that the ranks all hold sees some of the tokens (or heads) on each, so its gradient is a sum over them.
//
// Without tp nothing is done here and nothing is copied.

// Where a wiring (decoder/wiring.h) lets sums be on their way while other blocks compute, every rank has the whole stream instead: what is
// summed is then whole on all of them, and each does its own tokens of what all would do alike.
enum class TokenLayout { sharded, replicated };

// Samples and positions of the pass, whatever of them is here.
struct BatchShape {
  int64_t batch = 0, length = 0;
  int64_t tokens() const { return batch * length; }
};
BatchShape batch_shape(const at::Tensor& stream, const Call& call);

// Works on rows [begin, begin + count) of a matrix over all tokens.
using OnRows = std::function<void(const at::Tensor& matrix, int64_t begin, int64_t count)>;

// All tokens [tokens, width] from this rank's [tokens here, width]. `use` is called for all of their rows, once each: at the end, or where
// the call overlaps (Call::overlap) for each rank's rows as they come, while the next are on their way.
at::Tensor gather_tokens(const at::Tensor& here, const BatchShape& batch_shape, const Call& call, std::string_view what,
                         const OnRows& use = {}, TokenLayout tokens = TokenLayout::sharded);
// This rank's tokens of the sum over the ranks of `terms` [tokens, width]. `make` is called for all of their rows, once each, before they
// are sent: at the beginning, or where the call overlaps for each rank's rows in turn, while the rows before are on their way. Sums then
// run round the ring, so their rounding differs from that of the plain form.
at::Tensor reduce_scatter_tokens(const at::Tensor& terms, const Call& call, std::string_view what, const OnRows& make = {},
                                 TokenLayout tokens = TokenLayout::sharded);
// This rank's tokens of what every rank has whole [tokens, width]. A view.
at::Tensor local_tokens(const at::Tensor& whole, const Call& call);
// As the stream is written: [batch, length, width], or [1, tokens here, width].
at::Tensor as_stream(const at::Tensor& rows, const BatchShape& batch_shape, const Call& call, TokenLayout tokens = TokenLayout::sharded);

// In place: some of the elements of this rank's tokens [tokens here, width] become 0, the others grow by as much, as a function of token,
// place in the model and step alone. Nothing happens at rate 0 or where nothing is learned.
void apply_dropout(const at::Tensor& here, double rate, const Call& call, std::string_view where,
                   TokenLayout tokens = TokenLayout::sharded);

// x [tokens, width] becomes the sum over the ranks along tp, on all of them; only started here.
comm::Work all_reduce_tp(const at::Tensor& x, const Call& call, std::string_view what);

// The gradient of a norm's weights where every rank has all tokens: each does its own, since what all hold is summed over them.
void local_weight_gradient(const Norm& norm, mesh::Gradients& into, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                           const Call& call);

// The rows of a table of `size` that are here.
mesh::Interval local_rows(mesh::ParamId table, int64_t size, const Call& call);

}  // namespace cairn::model
