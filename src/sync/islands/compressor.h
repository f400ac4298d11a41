#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::sync {

// How values travel between islands: each of them as a code (comm/codec.h), or some of them as they are (comm/sparsify.h); the others then
// read as zero, and the rule owes them. No state: the bytes depend on the run and the values alone.
class Compressor {
 public:
  // Which values these are. Alike on all islands, so that where places are drawn all draw the same ones.
  struct Slice {
    int64_t step = 0;
    int32_t part = 0;   // of this step
    int64_t first = 0;  // of the values of this part
  };

  virtual ~Compressor() = default;
  // With so many bytes of room before the code.
  virtual std::vector<std::byte> encode(const Slice& slice, std::span<const float> values, size_t header_bytes = 0) const = 0;
  // False: these bytes cannot have been written by `encode` for a run of this length. `values` then holds anything.
  virtual bool decode(const Slice& slice, std::span<const std::byte> bytes, std::span<float> values) const = 0;
  // Where every value travels as a code: of which codec, and how many bytes so many values take. Empty: not so.
  virtual std::string_view codec() const { return {}; }
  virtual int64_t encoded_bytes(int64_t /*count*/) const { return 0; }
  // Values are cut into runs at multiples of this.
  virtual int64_t block() const = 0;
  // Up to how many islands each sends its values to all. Beyond, or where messages are long, that would cost more than it saves.
  virtual int all_gather_limit() const = 0;
  // How one island that has merged a run tells the others what came of it.
  virtual const Compressor& result_compressor() const = 0;
};

struct CompressorSpec {
  std::string name = "fp32";  // of a codec, "topk" or "randk"
  double keep = 0.05;         // with those two: the share of the values that travels
  uint64_t seed = 0;          // of the run: decides the places of randk
};
std::unique_ptr<const Compressor> make_compressor(const CompressorSpec& facts);

// The names that make_compressor knows, and whether one of them leaves values out.
std::vector<std::string> compressor_names();
bool is_sparse(std::string_view compressor);

}  // namespace cairn::sync
