// The part of Group that knows tensors: contiguous memory in, Spans out; CUDA tensors by way of pinned host memory.
#include "comm/group.h"

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "comm/operation.h"

namespace cairn::comm {
namespace {

Dtype dtype_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return Dtype::f32;
    case at::kDouble:
      return Dtype::f64;
    case at::kBFloat16:
      return Dtype::bf16;
    case at::kHalf:
      return Dtype::f16;
    case at::kInt:
      return Dtype::i32;
    case at::kLong:
      return Dtype::i64;
    case at::kByte:
      return Dtype::u8;
    case at::kBool:
      return Dtype::u8;
    default:
      CAIRN_CHECK(false, "tensors of {} cannot be sent", c10::toString(x.scalar_type()));
  }
}

// A tensor as the raw face sees it. A CUDA tensor is mirrored in pinned host memory.
struct Host {
  Host(const at::Tensor& x, bool read) : tensor(x), host(x) {
    CAIRN_CHECK(x.is_contiguous(), "a tensor that is not contiguous cannot be sent: call contiguous() and keep the result");
    if (x.is_cpu()) return;
    host = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
    if (read) host.copy_(x);  // waits for the device
  }

  Span span() const { return {host.data_ptr(), host.numel(), dtype_of(host)}; }

  at::Tensor tensor;
  at::Tensor host;
};

// An operation's tensors: kept by the operation until it is complete, by its Work until the result is back on the device.
struct Tensors {
  Host out;
  Host in;
};

std::shared_ptr<Tensors> kept(Group::State& group, Host out, Host in) {
  auto tensors = std::make_shared<Tensors>(Tensors{std::move(out), std::move(in)});
  group.keep_next = tensors;
  return tensors;
}

Work brought_back(const Work& work, const std::shared_ptr<Tensors>& tensors) {
  if (tensors->out.tensor.is_cpu()) return work;
  return work.then([tensors] { tensors->out.tensor.copy_(tensors->out.host, /*non_blocking=*/true); });  // ordered on the current stream
}

}  // namespace

Work Group::all_reduce(const at::Tensor& x, Reduce reduce, Label label) {
  if (size() == 1) return Work::done();  // nothing to bring to the host
  const Host both(x, true);
  const auto tensors = kept(*state_, both, both);
  return brought_back(all_reduce(both.span(), reduce, label), tensors);
}

Work Group::coded_all_reduce(const at::Tensor& x, const Codec& codec, Label label) {
  const Host both(x, true);
  const auto tensors = kept(*state_, both, both);
  return brought_back(coded_all_reduce(both.span(), codec, label), tensors);
}

Work Group::reduce(const at::Tensor& x, int root, Reduce how, Label label) {
  if (size() == 1) return Work::done();
  const Host both(x, true);
  const auto tensors = kept(*state_, both, both);
  const Work work = reduce(both.span(), root, how, label);
  return rank() == root ? brought_back(work, tensors) : work;
}

Work Group::broadcast(const at::Tensor& x, int root, Label label) {
  if (size() == 1) return Work::done();
  const Host both(x, rank() == root);
  const auto tensors = kept(*state_, both, both);
  return brought_back(broadcast(both.span(), root, label), tensors);
}

Work Group::all_gather(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> counts) {
  const auto tensors = kept(*state_, Host(out, false), Host(in, true));
  return brought_back(all_gather(tensors->out.span(), tensors->in.span(), label, std::move(counts)), tensors);
}

Work Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduce reduce, Label label, std::vector<int64_t> counts) {
  const auto tensors = kept(*state_, Host(out, false), Host(in, true));
  return brought_back(reduce_scatter(tensors->out.span(), tensors->in.span(), reduce, label, std::move(counts)), tensors);
}

Work Group::gather(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts) {
  const bool here = rank() == root;
  const auto tensors = kept(*state_, Host(here ? out : in, false), Host(in, true));
  const Work work = gather(here ? tensors->out.span() : Span{}, tensors->in.span(), root, label, std::move(counts));
  return here ? brought_back(work, tensors) : work;
}

Work Group::scatter(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts) {
  const bool here = rank() == root;
  const auto tensors = kept(*state_, Host(out, false), Host(here ? in : out, here));
  return brought_back(scatter(tensors->out.span(), here ? tensors->in.span() : Span{}, root, label, std::move(counts)), tensors);
}

Work Group::all_to_all(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> out_counts,
                       std::vector<int64_t> in_counts) {
  const auto tensors = kept(*state_, Host(out, false), Host(in, true));
  return brought_back(all_to_all(tensors->out.span(), tensors->in.span(), label, std::move(out_counts), std::move(in_counts)), tensors);
}

Work Group::send(const at::Tensor& x, int peer, Label label) {
  const Host from(x, true);
  kept(*state_, from, from);
  return send(from.span(), peer, label);
}

Work Group::recv(const at::Tensor& x, int peer, Label label) {
  const Host to(x, false);
  const auto tensors = kept(*state_, to, to);
  return brought_back(recv(to.span(), peer, label), tensors);
}

}  // namespace cairn::comm
