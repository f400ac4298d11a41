// Compression of tensors, on the GPU where there is a kernel for the codec.
#include <algorithm>
#include <cstring>

#include "kernels/aten.h"
#include "kernels/codec.h"
#include "sync/islands/compressor.h"

namespace cairn::sync {
namespace {

bool is_uncompressed(const Compressor& compressor) { return compressor.codec() == "fp32"; }
bool has_gpu_codec(const Compressor& compressor) { return is_uncompressed(compressor) || kernels::has_cuda_codec(compressor.codec()); }

// Copies between a GPU and pageable memory are staged in pinned memory, in long pieces. The driver would stage short ones, each of which
// queues behind other processes on the same GPU.
constexpr int64_t kPiece = int64_t{32} << 20;

template <typename CopyPiece>  // (pinned memory, first, count)
void copy_staged(int64_t bytes, const CopyPiece& copy) {
  const at::Tensor pinned = at::empty({std::min(bytes, kPiece)}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  for (int64_t first = 0; first < bytes; first += kPiece) {
    const int64_t count = std::min(kPiece, bytes - first);
    copy(pinned.narrow(0, 0, count), first, count);
  }
}

void to_host(const at::Tensor& codes, std::span<std::byte> bytes) {
  copy_staged(codes.numel(), [&](const at::Tensor& pinned, int64_t first, int64_t count) {
    pinned.copy_(codes.narrow(0, first, count));  // waits
    std::memcpy(bytes.data() + first, pinned.const_data_ptr(), static_cast<size_t>(count));
  });
}

at::Tensor to_gpu(std::span<const std::byte> bytes, const at::Device& device) {
  at::Tensor codes = at::empty({static_cast<int64_t>(bytes.size())}, at::TensorOptions().dtype(at::kByte).device(device));
  copy_staged(codes.numel(), [&](const at::Tensor& pinned, int64_t first, int64_t count) {
    std::memcpy(pinned.mutable_data_ptr(), bytes.data() + first, static_cast<size_t>(count));
    codes.narrow(0, first, count).copy_(pinned);  // waits
  });
  return codes;
}

}  // namespace

std::vector<std::byte> encode(const Compressor& compressor, const Compressor::Slice& slice, const at::Tensor& values, size_t header_bytes,
                              std::vector<std::byte> into) {
  if (!values.is_cuda() || !has_gpu_codec(compressor)) {
    const at::Tensor host = values.cpu();
    return compressor.encode(slice, {host.const_data_ptr<float>(), static_cast<size_t>(host.numel())}, header_bytes);
  }
  std::vector<std::byte> bytes = std::move(into);
  bytes.resize(header_bytes + static_cast<size_t>(compressor.encoded_bytes(values.numel())));
  if (bytes.size() == header_bytes) return bytes;
  const at::Tensor codes = is_uncompressed(compressor)
                               ? values.view(at::kByte)
                               : kernels::encode_on_cuda(compressor.codec(), values, static_cast<int64_t>(bytes.size() - header_bytes));
  to_host(codes, std::span(bytes).subspan(header_bytes));
  return bytes;
}

at::Tensor decode(const Compressor& compressor, const Compressor::Slice& slice, std::span<const std::byte> bytes, int64_t count,
                  const at::Device& device) {
  if (device.is_cuda() && has_gpu_codec(compressor)) {
    if (static_cast<int64_t>(bytes.size()) != compressor.encoded_bytes(count)) return {};
    if (count == 0) return at::empty({0}, at::TensorOptions().dtype(at::kFloat).device(device));
    const at::Tensor codes = to_gpu(bytes, device);
    return is_uncompressed(compressor) ? codes.view(at::kFloat) : kernels::decode_on_cuda(compressor.codec(), codes, count);
  }
  at::Tensor values = at::empty({count}, at::kFloat);
  if (!compressor.decode(slice, bytes, {values.mutable_data_ptr<float>(), static_cast<size_t>(count)})) return {};
  return values.to(device);
}

}  // namespace cairn::sync
