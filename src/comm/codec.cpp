// The list of codecs.
#include "comm/codec.h"

#include "base/nearest.h"

namespace cairn::comm {

std::unique_ptr<const Codec> make_fp32_codec();
std::unique_ptr<const Codec> make_bf16_codec();
std::unique_ptr<const Codec> make_fp16_codec();
std::unique_ptr<const Codec> make_fp8_e4m3_codec();
std::unique_ptr<const Codec> make_fp8_e5m2_codec();
std::unique_ptr<const Codec> make_int8_codec();

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<const Codec> (*make)();
};

// A new codec is a format (codec_block.h says what that is) and one line here.
constexpr Entry kCodecs[] = {
    {"fp32", make_fp32_codec},    {"bf16", make_bf16_codec},         {"fp16", make_fp16_codec},
    {"fp8", make_fp8_e4m3_codec}, {"fp8_e5m2", make_fp8_e5m2_codec}, {"int8", make_int8_codec},
};

}  // namespace

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kCodecs) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<const Codec> make_codec(std::string_view name) {
  for (const Entry& entry : kCodecs) {
    if (name == entry.name) return entry.make();
  }
  base::fail_unknown("codec", name, codec_names());
}

}  // namespace cairn::comm
