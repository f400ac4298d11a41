#include "sync/wire.h"

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

class CodedWire final : public Wire {
 public:
  explicit CodedWire(const std::string& codec) : codec_(comm::make_codec(codec)) {
    // Exactly where values travel exactly.
    if (codec != "fp32" && codec != "bf16") results_ = std::make_unique<CodedWire>("bf16");
  }

  std::vector<std::byte> encode(const Run&, std::span<const float> values, size_t room) const override {
    const auto count = static_cast<int64_t>(values.size());
    std::vector<std::byte> bytes(room + static_cast<size_t>(codec_->encoded_bytes(count)));
    codec_->encode(values.data(), count, bytes.data() + room);
    return bytes;
  }
  bool decode(const Run&, std::span<const std::byte> bytes, std::span<float> values) const override {
    const auto count = static_cast<int64_t>(values.size());
    if (static_cast<int64_t>(bytes.size()) != codec_->encoded_bytes(count)) return false;
    codec_->decode(bytes.data(), count, values.data());
    return true;
  }
  std::string_view codec() const override { return codec_->name(); }
  int64_t encoded_bytes(int64_t count) const override { return codec_->encoded_bytes(count); }
  int64_t block() const override { return codec_->block(); }
  int gather_most() const override { return codec_->name() == "fp32" ? 2 : 8; }
  const Wire& results() const override { return results_ ? *results_ : *this; }

 private:
  std::unique_ptr<const comm::Codec> codec_;
  std::unique_ptr<const Wire> results_;  // null: itself
};

bool sound(std::span<const float> values) {
  uint32_t unsound = 0;
  for (const float x : values) unsound |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x) & kInfiniteBits) == kInfiniteBits);
  return unsound == 0;
}

// The values at these places. Where any value of the run is not finite none of these is, so that the others leave the island out, whichever
// places are looked at.
std::vector<float> taken(std::span<const float> values, const comm::Places& places) {
  std::vector<float> out(places.size(), std::numeric_limits<float>::quiet_NaN());
  if (sound(values)) comm::values_at(values, places, out);
  return out;
}

void give_back(std::span<float> values, const comm::Places& places, std::span<const float> travelled) {
  std::fill(values.begin(), values.end(), 0.0F);
  comm::set_at(values, places, travelled);
}

// The largest values, with their places.
class TopWire final : public Wire {
 public:
  explicit TopWire(double keep) : keep_(keep), results_("bf16") {}

  std::vector<std::byte> encode(const Run&, std::span<const float> values, size_t room) const override {
    const int64_t kept = comm::kept_of(static_cast<int64_t>(values.size()), keep_);
    comm::Places places(static_cast<size_t>(kept));
    std::iota(places.begin(), places.end(), int64_t{0});
    if (sound(values)) places = comm::top_places(values, kept);
    std::vector<std::byte> bytes = comm::encode_sparse(places, taken(values, places));
    bytes.insert(bytes.begin(), room, std::byte{0});
    return bytes;
  }
  bool decode(const Run&, std::span<const std::byte> bytes, std::span<float> values) const override {
    const auto count = static_cast<int64_t>(values.size());
    try {
      const comm::Sparse sparse = comm::decode_sparse(bytes, count);
      if (static_cast<int64_t>(sparse.places.size()) != comm::kept_of(count, keep_)) return false;
      give_back(values, sparse.places, sparse.values);
    } catch (const Error&) {  // damaged, or a lie
      return false;
    }
    return true;
  }
  int64_t block() const override { return 1; }
  // A kept value takes about five bytes, and goes to each of the others; merged in parts it goes to one, and two bytes of each result come
  // back to all.
  int gather_most() const override { return 2 + static_cast<int>(std::min(2 / (5 * keep_), 1e6)); }
  const Wire& results() const override { return results_; }

 private:
  const double keep_;
  const CodedWire results_;
};

// Values at places that all islands draw alike: no place travels.
class RandomWire final : public Wire {
 public:
  RandomWire(double keep, uint64_t seed) : keep_(keep), seed_(seed) {}

  std::vector<std::byte> encode(const Run& run, std::span<const float> values, size_t room) const override {
    const std::vector<float> kept = taken(values, places(run, values.size()));
    std::vector<std::byte> bytes(room + kept.size() * sizeof(float));
    if (!kept.empty()) std::memcpy(bytes.data() + room, kept.data(), bytes.size() - room);
    return bytes;
  }
  bool decode(const Run& run, std::span<const std::byte> bytes, std::span<float> values) const override {
    const comm::Places all = places(run, values.size());
    if (bytes.size() != all.size() * sizeof(float)) return false;
    std::vector<float> kept(all.size());
    if (!kept.empty()) std::memcpy(kept.data(), bytes.data(), bytes.size());
    give_back(values, all, kept);
    return true;
  }
  int64_t block() const override { return 1; }
  int gather_most() const override { return 2; }
  const Wire& results() const override { return *this; }  // what was merged is zero at all other places

 private:
  comm::Places places(const Run& run, size_t count) const {
    const auto elements = static_cast<int64_t>(count);
    const base::Random random = base::Random(seed_)
                                    .for_purpose("places that travel between islands")
                                    .for_index(static_cast<uint64_t>(run.step))
                                    .for_index(static_cast<uint64_t>(run.part))
                                    .for_index(static_cast<uint64_t>(run.first));
    return comm::random_places(random, elements, comm::kept_of(elements, keep_));
  }

  const double keep_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<const Wire> make_wire(const WireFacts& facts) {
  if (facts.name == "topk") return std::make_unique<TopWire>(facts.keep);
  if (facts.name == "randk") return std::make_unique<RandomWire>(facts.keep, facts.seed);
  return std::make_unique<CodedWire>(facts.name);
}

std::vector<std::string> wire_names() {
  std::vector<std::string> names = comm::codec_names();
  names.insert(names.end(), {"topk", "randk"});
  return names;
}

bool leaves_out(std::string_view wire) { return wire == "topk" || wire == "randk"; }

}  // namespace cairn::sync
