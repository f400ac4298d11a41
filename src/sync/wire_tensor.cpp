#include "sync/wire_tensor.h"

#include <cstring>

#include "kernels/aten.h"
#include "kernels/codec.h"

namespace cairn::sync {

std::vector<std::byte> encode(const Wire& wire, const Wire::Run& run, const at::Tensor& values) {
  const auto on_host = [](const at::Tensor& tensor) {
    return std::span<const float>(tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel()));
  };
  if (!values.is_cuda()) return wire.encode(run, on_host(values));
  if (!kernels::has_cuda_codec(wire.codec())) return wire.encode(run, on_host(values.cpu()));
  const at::Tensor codes = kernels::encode_on_cuda(wire.codec(), values, wire.encoded_bytes(values.numel())).cpu();
  std::vector<std::byte> bytes(static_cast<size_t>(codes.numel()));
  if (!bytes.empty()) std::memcpy(bytes.data(), codes.const_data_ptr(), bytes.size());
  return bytes;
}

at::Tensor decode(const Wire& wire, const Wire::Run& run, std::span<const std::byte> bytes, int64_t count, const at::Device& device) {
  if (device.is_cuda() && kernels::has_cuda_codec(wire.codec())) {
    if (static_cast<int64_t>(bytes.size()) != wire.encoded_bytes(count)) return {};
    at::Tensor codes = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
    if (!bytes.empty()) std::memcpy(codes.mutable_data_ptr(), bytes.data(), bytes.size());
    return kernels::decode_on_cuda(wire.codec(), codes.to(device), count);
  }
  at::Tensor values = at::empty({count}, at::kFloat);
  if (!wire.decode(run, bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(count)})) return {};
  return values.to(device);
}

}  // namespace cairn::sync
