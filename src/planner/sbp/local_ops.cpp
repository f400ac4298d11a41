// One rank's part of each kind of operation, in plain ATen.
#include <cmath>

#include <ATen/core/IListRef.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "planner/sbp/execute.h"

namespace cairn::planner {
namespace {

// A tensor with these letters, ready to be combined with one that has `others`: dims that it lacks have size 1.
at::Tensor aligned(const at::Tensor& tensor, const std::string& mine, const std::string& others) {
  std::vector<int64_t> order;
  for (const char letter : others)
    if (const size_t dim = mine.find(letter); dim != std::string::npos) order.push_back(static_cast<int64_t>(dim));
  at::Tensor result = tensor.permute(order);
  for (size_t i = 0; i < others.size(); ++i)
    if (mine.find(others[i]) == std::string::npos) result = result.unsqueeze(static_cast<int64_t>(i));
  return result;
}

at::Tensor activation(const at::Tensor& x, const std::string& name) {
  if (name == "gelu") return at::gelu(x, "tanh");
  if (name == "silu") return at::silu(x);
  if (name == "relu") return at::relu(x);
  if (name == "tanh") return at::tanh(x);
  CAIRN_CHECK(name.empty() || name == "same", "no such function: {}", name);
  return x;
}

// Rotary positions: of each head's first and second half, pairs are turned by position times a frequency.
at::Tensor rotated(const at::Tensor& x, int64_t width, mesh::Interval positions) {
  const at::Tensor frequencies = at::pow(10000.0, at::arange(width / 2, x.options()).mul(-2.0 / static_cast<double>(width)));
  const at::Tensor angles = at::outer(at::arange(positions.begin, positions.end, x.options()), frequencies).unsqueeze(1);
  const at::Tensor heads = x.reshape({x.size(0), x.size(1), -1, width}), cos = angles.cos(), sin = angles.sin();
  const at::Tensor first = heads.narrow(3, 0, width / 2), second = heads.narrow(3, width / 2, width / 2);
  return at::cat(std::vector<at::Tensor>{first * cos - second * sin, second * cos + first * sin}, 3).reshape(x.sizes());
}

at::Tensor norm(const GraphOp& op, const std::vector<at::Tensor>& held) {
  const at::Tensor& x = held[0];
  const at::Tensor centred = op.detail == "layer" ? x - x.mean(-1, /*keepdim=*/true) : x;
  at::Tensor y = centred * at::rsqrt(centred.pow(2).mean(-1, /*keepdim=*/true) + 1e-5);
  if (held.size() > 1) y = y * held[1];
  return held.size() > 2 ? y + held[2] : y;
}

// Queries, keys and values [batch, length, heads * width] each, or all three stacked along the last dim.
at::Tensor attention(const OpGraph& graph, const GraphOp& op, const std::vector<at::Tensor>& held) {
  const GraphTensor& whole = graph.tensors[static_cast<size_t>(op.output)];
  const int64_t width = whole.shape.back() / op.heads, share = op.heads / op.key_heads;
  CAIRN_CHECK(held.size() == 1 || held.size() >= 3, "{}: {} inputs", op.name, held.size());
  at::Tensor q, k, v;
  if (held.size() == 1) {
    const int64_t keys = held[0].size(2) / (width * (share + 2));
    q = held[0].narrow(2, 0, keys * share * width);
    k = held[0].narrow(2, keys * share * width, keys * width);
    v = held[0].narrow(2, keys * (share + 1) * width, keys * width);
  } else {
    q = held[0], k = held[1], v = held[2];
  }
  const auto heads = [&](const at::Tensor& x) { return x.reshape({x.size(0), x.size(1), -1, width}).transpose(1, 2); };
  const int64_t queries = q.size(2) / width, keys = k.size(2) / width;
  const at::Tensor kh = heads(k).repeat_interleave(queries / keys, 1), vh = heads(v).repeat_interleave(queries / keys, 1);
  at::Tensor scores = at::matmul(heads(q), kh.transpose(2, 3)) / std::sqrt(static_cast<double>(width));
  if (held.size() == 4) scores = scores + held[3].permute({2, 0, 1});  // a bias for each query, key and head
  if (op.causal) {
    const at::Tensor later = at::ones({q.size(1), k.size(1)}, at::kBool).triu(1);
    scores = scores.masked_fill(later, -INFINITY);
  }
  return at::matmul(at::softmax(scores, -1), vh).transpose(1, 2).reshape({q.size(0), q.size(1), -1});
}

at::Tensor lookup(const at::Tensor& table, const at::Tensor& ids, mesh::Interval rows) {
  const at::Tensor flat = ids.flatten(), elsewhere = flat.lt(rows.begin).logical_or(flat.ge(rows.end));
  const at::Tensor found = table.index_select(0, (flat - rows.begin).masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(1), 0);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(table.size(1));
  return found.view(shape);
}

at::Tensor mean(const OpGraph& graph, const GraphOp& op, const at::Tensor& x) {
  const std::vector<std::string> all = subscripts(op);
  std::vector<int64_t> dims;
  double count = 1;  // of the whole tensor: what is here may be a part of it
  for (size_t dim = 0; dim < all[0].size(); ++dim)
    if (all[1].find(all[0][dim]) == std::string::npos) {
      dims.push_back(static_cast<int64_t>(dim));
      count *= static_cast<double>(graph.tensors[static_cast<size_t>(op.inputs[0])].shape[dim]);
    }
  return x.sum(dims) / count;
}

}  // namespace

at::Tensor compute(const OpGraph& graph, const GraphOp& op, const std::vector<at::Tensor>& held, const LocalRanges& here) {
  const std::vector<std::string> all = subscripts(op);
  switch (op.kind) {
    case GraphOp::Kind::product:
      return at::einsum(op.indices, held);
    case GraphOp::Kind::attention:
      return attention(graph, op, held);
    case GraphOp::Kind::norm:
      return norm(op, held);
    case GraphOp::Kind::elementwise:
      if (op.detail == "rotary") return rotated(held[0], graph.tensors[static_cast<size_t>(op.output)].grains.back().unit, here.positions);
      return activation(held[0], op.detail);
    case GraphOp::Kind::multiply:
      CAIRN_CHECK(held.size() == 2, "{}: {} inputs: those of one stacked product are the block's own affair", op.name, held.size());
      return activation(held[0], op.detail == "swiglu" ? "silu" : "") * aligned(held[1], all[1], all[0]);
    case GraphOp::Kind::add:
    case GraphOp::Kind::bias: {
      at::Tensor sum = aligned(held[0], all[0], all.back());
      for (size_t i = 1; i < held.size(); ++i) sum = sum + aligned(held[i], all[i], all.back());
      return sum;
    }
    case GraphOp::Kind::scale:
      return held[0] * std::stod(op.detail);
    case GraphOp::Kind::lookup:
      return lookup(held[0], held[1], here.rows);
    case GraphOp::Kind::mean:
      return mean(graph, op, held[0]);
    case GraphOp::Kind::softmax:
      return at::softmax(held[0], static_cast<int64_t>(all[0].find(op.whole[0])));
    case GraphOp::Kind::cross_entropy:
      return at::logsumexp(held[0], -1) - held[0].gather(-1, held[1].unsqueeze(-1)).squeeze(-1);
    case GraphOp::Kind::other:
      break;
  }
  base::fail_input("{}: an operation of no known kind cannot be run from its card", op.name);
}

}  // namespace cairn::planner
