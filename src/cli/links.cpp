#include "cli/links.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace cairn::cli {
namespace {

struct Unit {
  const char* name;
  double value;
  bool time;
};
constexpr std::array<Unit, 6> kUnits = {
    {{"us", 1e-6, true}, {"ms", 1e-3, true}, {"kbit", 1e3, false}, {"Mbit", 1e6, false}, {"Gbit", 1e9, false}, {"s", 1, true}}};

[[noreturn]] void refuse(const std::string& text, std::string_view word) {
  base::fail_input(
      "--links {}: \"{}\" is no link: write latency and bandwidth with their units, as 20ms,100Mbit (us, ms, s; kbit, Mbit, Gbit)", text,
      word);
}

}  // namespace

std::optional<comm::LinkModel> links_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  comm::LinkModel link;
  link.jitter = 0;
  link.latency = std::chrono::nanoseconds(0);
  link.bytes_per_s = 1e12;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view word = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (word == "card") {
      link.share = comm::LinkModel::Share::card;
      continue;
    }
    double number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const std::string_view unit(rest, static_cast<size_t>(word.data() + word.size() - rest));
    const Unit* found = nullptr;
    for (const Unit& one : kUnits)
      if (unit == one.name) found = &one;
    if (error != std::errc() || !found || !std::isfinite(number) || number <= 0 || number > 1e9) refuse(text, word);
    if (found->time)
      link.latency = std::chrono::nanoseconds(std::llround(number * found->value * 1e9));
    else
      link.bytes_per_s = number * found->value / 8;
  }
  return link;
}

}  // namespace cairn::cli
