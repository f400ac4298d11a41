#include "data/corpus/text_encoding.h"

#include <array>
#include <cstdint>

#include "base/check.h"
#include "base/text.h"

namespace cairn::data {
namespace {

// Whether the two-byte units after a byte-order mark are text: some are ASCII, or most are Chinese, Japanese or Korean. The more
// significant byte of a unit stands at `high`.
bool seems_utf16(std::string_view head, size_t high) {
  size_t ascii = 0, east_asian = 0;
  const size_t units = head.size() / 2;
  for (size_t unit = 1; unit < units; ++unit) {
    const auto byte = static_cast<uint8_t>(head[2 * unit + high]);
    ascii += byte == 0;
    east_asian += byte >= 0x30 && byte <= 0xd7;
  }
  return ascii > 0 || east_asian * 2 > units;
}

}  // namespace

std::string wide_encoding(std::string_view head) {
  using namespace std::string_view_literals;
  // With a byte-order mark: iconv then reads the order from it, and leaves it out.
  if (head.starts_with("\xff\xfe\0\0"sv) || head.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (head.starts_with("\xff\xfe") && seems_utf16(head, 1)) return "UTF-16";
  if (head.starts_with("\xfe\xff") && seems_utf16(head, 0)) return "UTF-16";
  // Without a mark: most characters of most texts have a zero in the same half.
  std::array<size_t, 2> zeros{};
  for (size_t i = 0; i < head.size(); ++i) zeros[i % 2] += head[i] == '\0';
  const size_t pairs = head.size() / 2;
  if (pairs < 2) return "";
  if (zeros[1] * 10 > pairs * 6 && zeros[0] * 20 < pairs) return "UTF-16LE";
  if (zeros[0] * 10 > pairs * 6 && zeros[1] * 20 < pairs) return "UTF-16BE";
  return "";
}

std::string narrow_encoding(std::string_view head) {
  constexpr size_t kEnough = 8;  // a few wrong bytes are no encoding
  size_t high = 0;
  bool windows = false;  // bytes that only Windows gives a character
  for (size_t at = 0; at < head.size(); ++at) {
    const auto byte = static_cast<uint8_t>(head[at]);
    if (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r' && byte != '\f') return "";
    if (byte < 0x80) continue;
    if (base::utf8_length(head, at) > 0) return "";
    if (byte == 0x81 || byte == 0x8d || byte == 0x8f || byte == 0x90 || byte == 0x9d) return "";
    windows = windows || byte < 0xa0;
    ++high;
  }
  if (high < kEnough || high * 10 > head.size() * 4) return "";
  return windows ? "WINDOWS-1252" : "ISO-8859-1";
}

void refuse_encoding(const std::string& key, const std::string& path, const std::string& encoding) {
  base::fail_input("{} = {}: is {}; Cairn reads UTF-8. Convert it: iconv -f {} -t UTF-8 {} > NEW.txt", key, path, encoding, encoding, path);
}

}  // namespace cairn::data
