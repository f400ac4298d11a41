#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace cairn::sync {

// Compresses fp32 values for messages between islands (sync.island.wire). Two families:
//
//   codecs        every value becomes a code of fewer bits (comm/codec)
//   topk, randk   only some values travel, in fp32; the others decode to 0, and the rule keeps them as a residual
//
// A compressor has no state: its bytes are a function of the slice and the values. Safe to use from several threads.
class Compressor {
 public:
  // Names a range of values. Identical on all islands, so that randk draws the same indices everywhere.
  struct Slice {
    int64_t step = 0;
    int32_t part = 0;   // of this step
    int64_t first = 0;  // index of the first value in this part
  };

  virtual ~Compressor() = default;
  // Returns the compressed values after `header_bytes` free bytes.
  virtual std::vector<std::byte> encode(const Slice& slice, std::span<const float> values, size_t header_bytes = 0) const = 0;
  // False: `encode` cannot have written these bytes for this many values; `values` is undefined then. The bytes are not trusted.
  virtual bool decode(const Slice& slice, std::span<const std::byte> bytes, std::span<float> values) const = 0;
  // For codecs: the codec's name, and the bytes of this many values. Empty and 0 for topk and randk.
  virtual std::string_view codec() const { return {}; }
  virtual int64_t encoded_bytes(int64_t /*count*/) const { return 0; }
  // A tensor is cut into slices at multiples of this many values.
  virtual int64_t block() const = 0;
  // Up to this many islands, each sends its values to all; beyond, chunks with owners cost less (merge.cpp).
  virtual int all_gather_limit() const = 0;
  // The compressor for merged chunks that their owners send to all.
  virtual const Compressor& result_compressor() const = 0;
};

struct CompressorSpec {
  std::string name = "fp32";  // a codec, "topk" or "randk"
  double keep = 0.05;         // topk and randk: the share of the values that travels
  uint64_t seed = 0;          // of the run: randk draws its indices from it
};
std::unique_ptr<const Compressor> make_compressor(const CompressorSpec& spec);

// The names that make_compressor knows, and whether one of them drops values.
std::vector<std::string> compressor_names();
bool is_sparse(std::string_view compressor);

// The same for a tensor (fp32, one dimension) on any device (compress_tensor.cpp). On a GPU with a kernel for the codec the values are
// encoded there, and only codes are copied to the host. `into` may give memory for the result.
std::vector<std::byte> encode(const Compressor& compressor, const Compressor::Slice& slice, const at::Tensor& values,
                              size_t header_bytes = 0, std::vector<std::byte> into = {});
// Returns `count` values on this device. Undefined: the bytes do not decode to that many.
at::Tensor decode(const Compressor& compressor, const Compressor::Slice& slice, std::span<const std::byte> bytes, int64_t count,
                  const at::Device& device);

}  // namespace cairn::sync
