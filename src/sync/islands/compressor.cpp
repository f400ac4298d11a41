#include "sync/islands/compressor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/random.h"
#include "comm/codec.h"
#include "comm/sparsify.h"

namespace cairn::sync {
namespace {

constexpr uint32_t kInfiniteBits = 0x7F800000;

class CodecCompressor final : public Compressor {
 public:
  explicit CodecCompressor(const std::string& codec) : codec_(comm::make_codec(codec)) {
    // Merged values travel in bf16, unless the codec is at least as precise.
    if (codec != "fp32" && codec != "bf16") result_compressor_ = std::make_unique<CodecCompressor>("bf16");
  }

  std::vector<std::byte> encode(const Slice&, std::span<const float> values, size_t header_bytes) const override {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> bytes(header_bytes + static_cast<size_t>(codec_->encoded_bytes(count)));
    codec_->encode(values.data(), count, bytes.data() + header_bytes);
    return bytes;
  }
  bool decode(const Slice&, std::span<const std::byte> bytes, std::span<float> values) const override {
    const auto count = static_cast<int64_t>(values.size());
    if (static_cast<int64_t>(bytes.size()) != codec_->encoded_bytes(count)) return false;
    codec_->decode(bytes.data(), count, values.data());
    return true;
  }
  std::string_view codec() const override { return codec_->name(); }
  int64_t encoded_bytes(int64_t count) const override { return codec_->encoded_bytes(count); }
  int64_t block() const override { return codec_->block(); }
  int all_gather_limit() const override { return codec_->name() == "fp32" ? 2 : 8; }
  const Compressor& result_compressor() const override { return result_compressor_ ? *result_compressor_ : *this; }

 private:
  std::unique_ptr<const comm::Codec> codec_;
  std::unique_ptr<const Compressor> result_compressor_;  // null: itself
};

bool is_finite_slice(std::span<const float> values) {
  uint32_t not_finite = 0;
  for (const float x : values) not_finite |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x) & kInfiniteBits) == kInfiniteBits);
  return not_finite == 0;
}

// The values at these indices. If any value of the slice is not finite all of these become NaN, so that the other islands drop this one
// whichever indices they see.
std::vector<float> values_or_nan(std::span<const float> values, const comm::Indices& indices) {
  std::vector<float> out(indices.size(), std::numeric_limits<float>::quiet_NaN());
  if (is_finite_slice(values)) comm::values_at(values, indices, out);
  return out;
}

void scatter_values(std::span<float> values, const comm::Indices& indices, std::span<const float> travelled) {
  std::fill(values.begin(), values.end(), 0.0F);
  comm::set_at(values, indices, travelled);
}

// The largest values, with their indices.
class TopKCompressor final : public Compressor {
 public:
  explicit TopKCompressor(double keep) : keep_(keep), result_compressor_("bf16") {}

  std::vector<std::byte> encode(const Slice&, std::span<const float> values, size_t header_bytes) const override {
    const int64_t kept = comm::kept_count(static_cast<int64_t>(values.size()), keep_);
    comm::Indices indices(static_cast<size_t>(kept));
    std::iota(indices.begin(), indices.end(), int64_t{0});
    if (is_finite_slice(values)) indices = comm::top_k_indices(values, kept);
    std::vector<std::byte> bytes = comm::encode_sparse(indices, values_or_nan(values, indices));
    bytes.insert(bytes.begin(), header_bytes, std::byte{0});
    return bytes;
  }
  bool decode(const Slice&, std::span<const std::byte> bytes, std::span<float> values) const override {
    const auto count = static_cast<int64_t>(values.size());
    try {
      const comm::Sparse sparse = comm::decode_sparse(bytes, count);
      if (static_cast<int64_t>(sparse.indices.size()) != comm::kept_count(count, keep_)) return false;
      scatter_values(values, sparse.indices, sparse.values);
    } catch (const Error&) {  // damaged or forged
      return false;
    }
    return true;
  }
  int64_t block() const override { return 1; }
  // A kept value takes about five bytes. With an all-gather it goes to each island; with chunks to one owner, and two bytes of every merged
  // value go to all.
  int all_gather_limit() const override { return 2 + static_cast<int>(std::min(2 / (5 * keep_), 1e6)); }
  const Compressor& result_compressor() const override { return result_compressor_; }

 private:
  const double keep_;
  const CodecCompressor result_compressor_;
};

// Values at random indices that all islands draw from the same key: no index travels.
class RandKCompressor final : public Compressor {
 public:
  RandKCompressor(double keep, uint64_t seed) : keep_(keep), seed_(seed) {}

  std::vector<std::byte> encode(const Slice& slice, std::span<const float> values, size_t header_bytes) const override {
    const std::vector<float> kept = values_or_nan(values, indices(slice, values.size()));
    std::vector<std::byte> bytes(header_bytes + kept.size() * sizeof(float));
    if (!kept.empty()) std::memcpy(bytes.data() + header_bytes, kept.data(), bytes.size() - header_bytes);
    return bytes;
  }
  bool decode(const Slice& slice, std::span<const std::byte> bytes, std::span<float> values) const override {
    const comm::Indices all = indices(slice, values.size());
    if (bytes.size() != all.size() * sizeof(float)) return false;
    std::vector<float> kept(all.size());
    if (!kept.empty()) std::memcpy(kept.data(), bytes.data(), bytes.size());
    scatter_values(values, all, kept);
    return true;
  }
  int64_t block() const override { return 1; }
  int all_gather_limit() const override { return 2; }
  const Compressor& result_compressor() const override { return *this; }  // merged values are 0 at all other indices

 private:
  comm::Indices indices(const Slice& slice, size_t count) const {
    const auto elements = static_cast<int64_t>(count);
    const base::Random random = base::Random(seed_)
                                    .for_purpose("places that travel between islands")
                                    .for_index(static_cast<uint64_t>(slice.step))
                                    .for_index(static_cast<uint64_t>(slice.part))
                                    .for_index(static_cast<uint64_t>(slice.first));
    return comm::random_indices(random, elements, comm::kept_count(elements, keep_));
  }

  const double keep_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<const Compressor> make_compressor(const CompressorSpec& spec) {
  if (spec.name == "topk") return std::make_unique<TopKCompressor>(spec.keep);
  if (spec.name == "randk") return std::make_unique<RandKCompressor>(spec.keep, spec.seed);
  return std::make_unique<CodecCompressor>(spec.name);
}

std::vector<std::string> compressor_names() {
  std::vector<std::string> names = comm::codec_names();
  names.insert(names.end(), {"topk", "randk"});
  return names;
}

bool is_sparse(std::string_view compressor) { return compressor == "topk" || compressor == "randk"; }

}  // namespace cairn::sync
