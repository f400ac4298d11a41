#include "sync/wire_tensor.h"

#include <ATen/ops/from_blob.h>

#include "kernels/aten.h"
#include "kernels/codec.h"

namespace cairn::sync {
namespace {

bool goes_as_it_is(const Wire& wire) { return wire.codec() == "fp32"; }
bool codes_on_gpu(const Wire& wire) { return goes_as_it_is(wire) || kernels::has_cuda_codec(wire.codec()); }

// Bytes as a tensor, which they must outlive.
at::Tensor as_tensor(std::span<const std::byte> bytes) {
  return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<int64_t>(bytes.size())}, at::kByte);
}

}  // namespace

std::vector<std::byte> encode(const Wire& wire, const Wire::Run& run, const at::Tensor& values, size_t room) {
  if (!values.is_cuda() || !codes_on_gpu(wire)) {
    const at::Tensor host = values.cpu();
    std::vector<std::byte> bytes = wire.encode(run, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())});
    if (room > 0) bytes.insert(bytes.begin(), room, std::byte{0});
    return bytes;
  }
  std::vector<std::byte> bytes(room + static_cast<size_t>(wire.encoded_bytes(values.numel())));
  if (bytes.size() == room) return bytes;
  const at::Tensor codes = goes_as_it_is(wire) ? values.view(at::kByte)
                                               : kernels::encode_on_cuda(wire.codec(), values, static_cast<int64_t>(bytes.size() - room));
  as_tensor(std::span(bytes).subspan(room)).copy_(codes);
  return bytes;
}

at::Tensor decode(const Wire& wire, const Wire::Run& run, std::span<const std::byte> bytes, int64_t count, const at::Device& device) {
  if (device.is_cuda() && codes_on_gpu(wire)) {
    if (static_cast<int64_t>(bytes.size()) != wire.encoded_bytes(count)) return {};
    if (count == 0) return at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(device));
    const at::Tensor codes = as_tensor(bytes).to(device);
    return goes_as_it_is(wire) ? codes.view(at::kFloat) : kernels::decode_on_cuda(wire.codec(), codes, count);
  }
  at::Tensor values = at::empty({count}, at::kFloat);
  if (!wire.decode(run, bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(count)})) return {};
  return values.to(device);
}

}  // namespace cairn::sync
