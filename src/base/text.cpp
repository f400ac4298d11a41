#include "base/text.h"

#include <cmath>

#include <fmt/format.h>

namespace cairn::base {
namespace {

// Three significant digits of a value in [0, 1000) or so.
std::string three_digits(double value) {
  if (value >= 99.95) return fmt::format("{:.0f}", value);
  if (value >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

std::string human_bytes(int64_t bytes) {
  if (bytes < 0) return "-" + (bytes == INT64_MIN ? std::string("8.00 EiB") : human_bytes(-bytes));
  if (bytes < 1024) return fmt::format("{} B", bytes);
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1023.5 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(value), kUnits[unit]);
}

std::string human_count(double count) {
  if (!std::isfinite(count)) return fmt::format("{}", count);
  if (count < 0) return "-" + human_count(-count);
  if (count < 999.5) return count == std::floor(count) ? fmt::format("{:.0f}", count) : three_digits(count);
  static constexpr const char* kUnits[] = {"k", "M", "B", "T"};
  count /= 1000;
  int unit = 0;
  while (count >= 999.5 && unit < 3) {
    count /= 1000;
    ++unit;
  }
  return three_digits(count) + kUnits[unit];
}

std::string human_duration(std::chrono::nanoseconds span) {
  const double s = std::chrono::duration<double>(span).count();
  if (s < 0) return "-" + human_duration(-span);
  if (s == 0) return "0 s";
  if (s < 0.9995e-3) return fmt::format("{} us", three_digits(s * 1e6));
  if (s < 0.9995) return fmt::format("{} ms", three_digits(s * 1e3));
  if (s < 59.95) return fmt::format("{:.1f} s", s);
  const int64_t whole = std::llround(s);
  if (whole < 3600) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  const int64_t minutes = (whole + 30) / 60;
  if (minutes < 24 * 60) return fmt::format("{}h {:02}m", minutes / 60, minutes % 60);
  const int64_t hours = (whole + 1800) / 3600;
  return fmt::format("{}d {:02}h", hours / 24, hours % 24);
}

std::string plural(int64_t count, const std::string& noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

namespace {

struct Utf8Part {
  size_t bytes;
  bool whole;
};

// The character at the beginning of a text, or the maximal part of one that is ill-formed there (Unicode 15, table 3-7 and section 3.9).
Utf8Part first_part(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, true};
  if (lead < 0xc2 || lead > 0xf4) return {1, false};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  unsigned char low = 0x80, high = 0xbf;  // of the second byte
  if (lead == 0xe0) low = 0xa0;
  if (lead == 0xed) high = 0x9f;
  if (lead == 0xf0) low = 0x90;
  if (lead == 0xf4) high = 0x8f;
  size_t have = 1;
  for (; have < length && have < text.size(); ++have) {
    const auto byte = static_cast<unsigned char>(text[have]);
    if (byte < low || byte > high) break;
    low = 0x80, high = 0xbf;
  }
  return {have, have == length};
}

}  // namespace

size_t utf8_length(std::string_view text, size_t at) {
  const Utf8Part part = first_part(text.substr(at));
  return part.whole ? part.bytes : 0;
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Part part = first_part(text);
    if (part.whole)
      out += text.substr(0, part.bytes);
    else
      out += "\xef\xbf\xbd";
    text.remove_prefix(part.bytes);
  }
  return out;
}

}  // namespace cairn::base
