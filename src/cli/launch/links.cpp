#include "cli/launch/links.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"

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

double positive(const std::string& text, std::string_view word, std::string_view digits) {
  double number = 0;
  const auto [rest, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || rest != digits.data() + digits.size() || !(number > 0) || number > 100) refuse(text, word);
  return number;
}

// Rows of numbers in milliseconds, with commas or blanks between them.
std::vector<std::vector<std::chrono::nanoseconds>> read_matrix(const std::string& file) {
  constexpr int64_t kBytesMost = int64_t{1} << 28;
  const std::string text = base::read_file(file, kBytesMost);
  std::vector<std::vector<std::chrono::nanoseconds>> rows;
  for (size_t at = 0, line = 1; at < text.size(); ++line) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::vector<std::chrono::nanoseconds> row;
    while (at < end) {
      at = text.find_first_not_of(", \t\r", at);
      if (at >= end) break;
      double ms = 0;
      const auto [rest, error] = std::from_chars(text.data() + at, text.data() + end, ms);
      if (error != std::errc() || !(ms >= 0) || ms > 1e7)
        base::fail_input("--links matrix={}: line {} has something that is no latency in ms", file, line);
      row.emplace_back(std::llround(ms * 1e6));
      at = static_cast<size_t>(rest - text.data());
    }
    at = end + 1;
    if (!row.empty()) rows.push_back(std::move(row));
  }
  if (rows.empty()) base::fail_input("--links matrix={}: it has no numbers", file);
  for (const auto& row : rows)
    if (row.size() != rows.size())
      base::fail_input("--links matrix={}: a row of {} in a matrix of {} rows: a latency for each pair is needed", file, row.size(),
                       rows.size());
  return rows;
}

}  // namespace

comm::LinkModel island_links(comm::LinkModel links, int ranks, int islands) {
  const bool uniform = links.latency_matrix.empty();
  if (islands <= 1) islands = ranks;
  if (islands == ranks && uniform) return links;
  const int each = std::max(1, ranks / islands);
  if (!uniform && static_cast<int>(links.latency_matrix.size()) < islands)
    base::fail_input("--links matrix: it has {} rows, and there are {} islands (or ranks)", links.latency_matrix.size(), islands);
  const auto n = static_cast<size_t>(ranks);
  const auto far = std::exchange(links.latency_matrix, std::vector(n, std::vector<std::chrono::nanoseconds>(n)));
  links.bytes_per_s_matrix = std::vector(n, std::vector<double>(n, 1e12));
  for (size_t from = 0; from < n; ++from)
    for (size_t to = 0; to < n; ++to) {
      const size_t a = from / static_cast<size_t>(each), b = to / static_cast<size_t>(each);
      if (a == b) continue;
      links.latency_matrix[from][to] = uniform ? links.latency : far[a][b];
      links.bytes_per_s_matrix[from][to] = links.bytes_per_s;
    }
  return links;
}

std::optional<comm::LinkModel> parse_links(const std::string& text) {
  if (text.empty()) return std::nullopt;
  comm::LinkModel link;
  link.jitter = 0;
  link.latency = std::chrono::nanoseconds(0);
  link.bytes_per_s = 1e12;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    std::string_view word = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (word == "card") {
      link.contention = comm::LinkModel::Contention::per_nic;
      continue;
    }
    if (word.starts_with("matrix=")) {
      link.latency_matrix = read_matrix(std::string(word.substr(7)));
      continue;
    }
    if (word.starts_with("sigma=")) {
      link.latency_sigma = positive(text, word, word.substr(6));
      continue;
    }
    const bool plane = word.starts_with("plane=");
    if (plane) word.remove_prefix(6);
    double number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    const std::string_view unit(rest, static_cast<size_t>(word.data() + word.size() - rest));
    const Unit* found = nullptr;
    for (const Unit& one : kUnits)
      if (unit == one.name) found = &one;
    if (error != std::errc() || !found || !std::isfinite(number) || number <= 0 || number > 1e9) refuse(text, word);
    if (plane && found->time) refuse(text, word);
    if (plane)
      link.planes.push_back(number * found->value / 8);
    else if (found->time)
      link.latency = std::chrono::nanoseconds(std::llround(number * found->value * 1e9));
    else
      link.bytes_per_s = number * found->value / 8;
  }
  return link;
}

}  // namespace cairn::cli
