#pragma once
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace cairn::base {

// "512MiB", "1.5 GB", "4096": a number of bytes. Nothing where the text is none.
inline std::optional<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  static constexpr std::array<std::pair<std::string_view, double>, 11> kUnits = {{{"", 1.0},
                                                                                  {"B", 1.0},
                                                                                  {"KiB", 0x1p10},
                                                                                  {"MiB", 0x1p20},
                                                                                  {"GiB", 0x1p30},
                                                                                  {"TiB", 0x1p40},
                                                                                  {"KB", 1e3},
                                                                                  {"kB", 1e3},
                                                                                  {"MB", 1e6},
                                                                                  {"GB", 1e9},
                                                                                  {"TB", 1e12}}};
  for (const auto& [name, bytes] : kUnits)
    if (unit == name && number * bytes < 0x1p62) return static_cast<int64_t>(number * bytes);
  return std::nullopt;
}

}  // namespace cairn::base
