// The registry of codecs.
#include "comm/codec.h"

#include <iterator>

#include "base/did_you_mean.h"

namespace cairn::comm {

std::unique_ptr<const Codec> make_fp32_codec();
std::unique_ptr<const Codec> make_bf16_codec();
std::unique_ptr<const Codec> make_fp16_codec();
std::unique_ptr<const Codec> make_fp8_e4m3_codec();
std::unique_ptr<const Codec> make_fp8_e5m2_codec();
std::unique_ptr<const Codec> make_int8_codec();
std::unique_ptr<const Codec> make_e3m0_codec();

namespace {

struct Entry {
  const char* name;
  std::unique_ptr<const Codec> (*make)();
};

// To add a codec: write its format (codec/block.h) and add one line here.
constexpr Entry kCodecs[] = {
    {"fp32", make_fp32_codec},         {"bf16", make_bf16_codec}, {"fp16", make_fp16_codec}, {"fp8", make_fp8_e4m3_codec},
    {"fp8_e5m2", make_fp8_e5m2_codec}, {"int8", make_int8_codec}, {"e3m0", make_e3m0_codec},
};

}  // namespace

std::vector<std::string> codec_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kCodecs) names.emplace_back(entry.name);
  return names;
}

uint8_t codec_number(std::string_view name) {
  for (size_t i = 0; i < std::size(kCodecs); ++i) {
    if (name == kCodecs[i].name) return static_cast<uint8_t>(i + 1);
  }
  base::fail_unknown("codec", name, codec_names());
}

std::string codec_name(uint8_t number) {
  if (number >= 1 && number <= std::size(kCodecs)) return kCodecs[number - 1].name;
  return "codec " + std::to_string(number);
}

std::unique_ptr<const Codec> make_codec(std::string_view name) {
  for (const Entry& entry : kCodecs) {
    if (name == entry.name) return entry.make();
  }
  base::fail_unknown("codec", name, codec_names());
}

}  // namespace cairn::comm
