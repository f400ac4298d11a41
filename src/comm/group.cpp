// The part of Group with tensors: turns contiguous tensors into Spans. CUDA tensors stay on the device if the group communicates from
// device to device, else they go through pinned host memory.
#include "comm/group.h"

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "base/check.h"
#include "comm/affine_map.h"
#include "comm/device_stream.h"
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
      return Dtype::u8;  // not reached, which g++ does not see with the thread sanitizer
  }
}

// Whether the tensor goes from device to device.
bool direct(Group::State& group, const at::Tensor& x) {
  if (!x.is_cuda()) return false;
  const DeviceGroup* devices = group.device_group();
  if (!devices) return false;
  CAIRN_CHECK(x.get_device() == devices->device(), "a tensor of cuda:{} in a world whose rank has cuda:{}", x.get_device(),
              devices->device());
  return true;
}

// A group of one rank has nothing to do.
bool nothing_to_do(Group::State& group, const at::Tensor& x) { return group.ranks.size() == 1 && !direct(group, x); }

// A tensor and the memory that is sent: its own, or a mirror in pinned host memory.
struct Host {
  Host(Group::State& group, const at::Tensor& x, bool read) : Host(x, read, direct(group, x)) {}
  Host(const at::Tensor& x, bool read, bool as_it_is) : tensor(x), host(x), on_device(as_it_is) {
    CAIRN_CHECK(x.is_contiguous(), "a tensor that is not contiguous cannot be sent. Call contiguous() and keep the result.");
    if (!mirrored()) return;
    host = at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(true));
    if (read) host.copy_(x);  // synchronises with the device
  }

  bool mirrored() const { return !on_device && !tensor.is_cpu(); }
  Span span() const { return {host.data_ptr(), host.numel(), dtype_of(host), on_device ? &current_device_stream : nullptr}; }

  at::Tensor tensor;
  at::Tensor host;
  bool on_device;
};

// The tensors of an operation. The operation keeps them until it is complete, its Work until the result is back on the device.
struct Tensors {
  Host out;
  Host in;
};

std::shared_ptr<Tensors> kept(Group::State& group, Host out, Host in) {
  CAIRN_CHECK(out.on_device == in.on_device, "an operation from a tensor of {} to one of {}: both must be on the device or neither",
              in.tensor.device().str(), out.tensor.device().str());
  auto tensors = std::make_shared<Tensors>(Tensors{std::move(out), std::move(in)});
  group.keep_next = tensors;
  return tensors;
}

Work brought_back(const Work& work, const std::shared_ptr<Tensors>& tensors) {
  if (!tensors->out.mirrored()) return work;
  return work.then([tensors] { tensors->out.tensor.copy_(tensors->out.host, /*non_blocking=*/true); });  // ordered on the current stream
}

}  // namespace

Work Group::all_reduce(const at::Tensor& x, Reduce reduce, Label label) {
  if (nothing_to_do(*state_, x)) return Work::done();  // no copy to the host either
  const Host both(*state_, x, true);
  const auto tensors = kept(*state_, both, both);
  return brought_back(all_reduce(both.span(), reduce, label), tensors);
}

Work Group::coded_all_reduce(const at::Tensor& x, const Codec& codec, Label label) {
  const Host both(x, true, /*as_it_is=*/false);  // codecs run on the host
  const auto tensors = kept(*state_, both, both);
  return brought_back(coded_all_reduce(both.span(), codec, label), tensors);
}

Work Group::reduce(const at::Tensor& x, int root, Reduce how, Label label) {
  if (nothing_to_do(*state_, x)) return Work::done();
  const Host both(*state_, x, true);
  const auto tensors = kept(*state_, both, both);
  const Work work = reduce(both.span(), root, how, label);
  return rank() == root ? brought_back(work, tensors) : work;
}

Work Group::broadcast(const at::Tensor& x, int root, Label label) {
  if (nothing_to_do(*state_, x)) return Work::done();
  const Host both(*state_, x, rank() == root);
  const auto tensors = kept(*state_, both, both);
  return brought_back(broadcast(both.span(), root, label), tensors);
}

Work Group::all_gather(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> counts) {
  const auto tensors = kept(*state_, Host(*state_, out, false), Host(*state_, in, true));
  return brought_back(all_gather(tensors->out.span(), tensors->in.span(), label, std::move(counts)), tensors);
}

Work Group::reduce_scatter(const at::Tensor& out, const at::Tensor& in, Reduce reduce, Label label, std::vector<int64_t> counts) {
  const auto tensors = kept(*state_, Host(*state_, out, false), Host(*state_, in, true));
  return brought_back(reduce_scatter(tensors->out.span(), tensors->in.span(), reduce, label, std::move(counts)), tensors);
}

Work Group::gather(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts) {
  const bool here = rank() == root;
  const auto tensors = kept(*state_, Host(*state_, here ? out : in, false), Host(*state_, in, true));
  const Work work = gather(here ? tensors->out.span() : Span{}, tensors->in.span(), root, label, std::move(counts));
  return here ? brought_back(work, tensors) : work;
}

Work Group::scatter(const at::Tensor& out, const at::Tensor& in, int root, Label label, std::vector<int64_t> counts) {
  const bool here = rank() == root;
  const auto tensors = kept(*state_, Host(*state_, out, false), Host(*state_, here ? in : out, here));
  return brought_back(scatter(tensors->out.span(), here ? tensors->in.span() : Span{}, root, label, std::move(counts)), tensors);
}

Work Group::all_to_all(const at::Tensor& out, const at::Tensor& in, Label label, std::vector<int64_t> out_counts,
                       std::vector<int64_t> in_counts) {
  const auto tensors = kept(*state_, Host(*state_, out, false), Host(*state_, in, true));
  return brought_back(all_to_all(tensors->out.span(), tensors->in.span(), label, std::move(out_counts), std::move(in_counts)), tensors);
}

Work Group::all_scan(const at::Tensor& before, const at::Tensor& state, const at::Tensor& factors, ScanOptions options, Label label) {
  const int64_t rows = factors.numel(), width = rows > 0 ? state.numel() / rows : 0;
  CAIRN_CHECK(state.dim() == factors.dim() + 1 && state.numel() == rows * width && factors.scalar_type() == state.scalar_type(),
              "all_scan of {} by factors of {}", c10::str(state.sizes()), c10::str(factors.sizes()));
  struct Kept {
    Host before, state, factors;
  };
  const auto kept = std::make_shared<Kept>(Kept{{before, false, false}, {state, true, false}, {factors, true, false}});
  state_->keep_next = kept;
  const Work work = all_scan(kept->before.span(), kept->state.span(),
                             make_diagonal_map(kept->factors.host.data_ptr(), rows, width, dtype_of(state)), options, label);
  if (!kept->before.mirrored()) return work;
  return work.then([kept] {
    kept->before.tensor.copy_(kept->before.host, /*non_blocking=*/true);
    kept->state.tensor.copy_(kept->state.host, /*non_blocking=*/true);
  });
}

Work Group::send(const at::Tensor& x, int peer, Label label) {
  const Host from(*state_, x, true);
  kept(*state_, from, from);
  return send(from.span(), peer, label);
}

Work Group::recv(const at::Tensor& x, int peer, Label label) {
  const Host to(*state_, x, false);
  const auto tensors = kept(*state_, to, to);
  return brought_back(recv(to.span(), peer, label), tensors);
}

}  // namespace cairn::comm
