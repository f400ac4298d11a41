// Slow communication: the delay matrix of C4 (arXiv:2406.04594).
//
//   M[x][y] = median over messages x -> y of   service time / usual service time of that size
//
// Sizes are grouped by powers of two; the usual time of a group is the lower median over the pairs of their medians, for pairs within a
// machine and between machines apart. A cell is high if it is above slow_ratio, more than three robust deviations above the others, and a
// message loses at least 0.1 ms by it.
//
//   60 % of a row high       the sending side of x
//   60 % of a column high    the receiving side of y
//   both of one rank         its network card
//   other high cells         the path x -> y
//
// Three windows in a row must say the same.
#include "elastic/diagnosis/slow_links.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include <fmt/format.h>

namespace cairn::elastic {
namespace {

using comm::FlightLog;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kShare = 0.6;           // of a row or column
constexpr double kDeviations = 3;        // above the others
constexpr double kExcessLeast = 100;     // microseconds
constexpr int64_t kMessageLeast = 1024;  // bytes; shorter ones say nothing about a path
constexpr int64_t kMessagesLeast = 4;    // of a pair in a window
constexpr int kWindows = 3;

double lower_median(std::vector<double> values) {
  if (values.empty()) return kNone;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Sample {
  int size_class;
  double us, bytes;
};
struct Pair {
  int from, to;
  bool same_host;
  std::vector<Sample> samples;
};

std::vector<Pair> samples_of(std::span<const RankView> ranks, int64_t window, int64_t skip) {
  std::map<int, std::string> hosts;
  for (const RankView& one : ranks) hosts[one.rank] = one.host;
  std::vector<Pair> pairs;
  for (const RankView& one : ranks) {
    if (!one.log) continue;
    std::map<int, std::pair<int64_t, Pair>> found;  // by receiver: how many messages were passed, newest first
    for (auto message = one.log->messages.rbegin(); message != one.log->messages.rend(); ++message) {
      if (message->bytes < kMessageLeast || !hosts.contains(message->peer)) continue;
      auto& [passed, pair] =
          found.try_emplace(message->peer, 0, Pair{one.rank, message->peer, hosts[one.rank] == hosts[message->peer], {}}).first->second;
      if (passed++ < skip || passed > skip + window) continue;
      pair.samples.push_back({static_cast<int>(std::bit_width(static_cast<uint64_t>(message->bytes))),
                              static_cast<double>(message->service.count()) / 1e3, static_cast<double>(message->bytes)});
    }
    for (auto& [to, entry] : found)
      if (static_cast<int64_t>(entry.second.samples.size()) >= std::min(kMessagesLeast, window)) pairs.push_back(std::move(entry.second));
  }
  return pairs;
}

// The high cells that no finding explains yet.
class HighCells {
 public:
  HighCells(const DelayMatrix& matrix, double slow_ratio) : m_(matrix), high_(matrix.ratio.size()) {
    std::vector<double> finite, away;
    for (const double ratio : m_.ratio)
      if (!std::isnan(ratio)) finite.push_back(ratio);
    const double middle = lower_median(finite);
    for (const double ratio : finite) away.push_back(std::abs(ratio - middle));
    const double threshold = std::max(slow_ratio, middle + kDeviations * 1.4826 * lower_median(away));
    for (size_t i = 0; i < high_.size(); ++i)
      high_[i] = !std::isnan(m_.ratio[i]) && m_.ratio[i] > threshold && m_.excess_us[i] >= kExcessLeast;
  }

  struct Line {
    int high = 0, finite = 0;
    std::vector<double> ratios;
    bool is_high() const { return high >= 2 && high >= kShare * finite; }
  };
  Line row(int x) const {
    Line line;
    for (int y = 0; y < m_.ranks; ++y) count(line, x, y);
    return line;
  }
  Line column(int y) const {
    Line line;
    for (int x = 0; x < m_.ranks; ++x) count(line, x, y);
    return line;
  }
  void explain(int from, int to) { high_[m_.at(from, to)] = false; }
  bool is_high(int x, int y) const { return high_[m_.at(x, y)]; }

 private:
  void count(Line& line, int x, int y) const {
    const double ratio = m_.ratio[m_.at(x, y)];
    line.finite += !std::isnan(ratio);
    line.high += high_[m_.at(x, y)];
    if (high_[m_.at(x, y)]) line.ratios.push_back(ratio);
  }
  const DelayMatrix& m_;
  std::vector<bool> high_;
};

std::string words(const HighCells::Line& line, const char* what) {
  return fmt::format("{} of {} paths {} it are {:.1f} times slower than usual (median)", line.high, line.finite, what,
                     lower_median(line.ratios));
}

}  // namespace

bool DelayMatrix::empty() const {
  return std::all_of(ratio.begin(), ratio.end(), [](double one) { return std::isnan(one); });
}

DelayMatrix delay_matrix(std::span<const RankView> ranks, int64_t window, int64_t skip) {
  DelayMatrix matrix;
  for (const RankView& one : ranks) matrix.ranks = std::max(matrix.ranks, one.rank + 1);
  const auto cells = static_cast<size_t>(matrix.ranks) * static_cast<size_t>(matrix.ranks);
  matrix.ratio.assign(cells, kNone);
  matrix.excess_us.assign(cells, kNone);
  matrix.us_per_mb.assign(cells, kNone);
  const std::vector<Pair> pairs = samples_of(ranks, window, skip);
  std::map<std::pair<bool, int>, std::vector<double>> medians;  // of each pair, by place and size
  for (const Pair& pair : pairs) {
    std::map<int, std::vector<double>> by_size;
    for (const Sample& sample : pair.samples) by_size[sample.size_class].push_back(sample.us);
    for (auto& [size, times] : by_size) medians[{pair.same_host, size}].push_back(lower_median(std::move(times)));
  }
  for (const Pair& pair : pairs) {
    std::vector<double> ratios, excesses, rates;
    for (const Sample& sample : pair.samples) {
      const std::vector<double>& all = medians[{pair.same_host, sample.size_class}];
      const double usual = lower_median(all);
      rates.push_back(sample.us / sample.bytes * 1e6);
      if (all.size() < 2 || usual <= 0) continue;  // nothing to compare with
      ratios.push_back(sample.us / usual);
      excesses.push_back(sample.us - usual);
    }
    const size_t cell = matrix.at(pair.from, pair.to);
    matrix.ratio[cell] = lower_median(ratios);
    matrix.excess_us[cell] = lower_median(excesses);
    matrix.us_per_mb[cell] = lower_median(rates);
  }
  return matrix;
}

std::vector<Finding> slow_links_in(const DelayMatrix& matrix, double slow_ratio) {
  HighCells cells(matrix, slow_ratio);
  std::vector<Finding> found;
  while (true) {  // the line that explains most first
    int best = -1, most = 1;
    bool by_row = true;
    for (int rank = 0; rank < matrix.ranks; ++rank) {
      const HighCells::Line row = cells.row(rank), column = cells.column(rank);
      if (row.is_high() && row.high > most) std::tie(best, most, by_row) = std::tuple(rank, row.high, true);
      if (column.is_high() && column.high > most) std::tie(best, most, by_row) = std::tuple(rank, column.high, false);
    }
    if (best < 0) break;
    const HighCells::Line row = cells.row(best), column = cells.column(best);
    const bool both = row.is_high() && column.is_high();
    found.push_back({.cause = both     ? Cause::slow_nic
                              : by_row ? Cause::slow_sender
                                       : Cause::slow_receiver,
                     .rank = best,
                     .evidence = both     ? words(row, "from") + ", " + words(column, "to")
                                 : by_row ? words(row, "from")
                                          : words(column, "to")});
    for (int other = 0; other < matrix.ranks; ++other) {
      if (both || by_row) cells.explain(best, other);
      if (both || !by_row) cells.explain(other, best);
    }
  }
  for (int x = 0; x < matrix.ranks; ++x) {
    for (int y = 0; y < matrix.ranks; ++y) {
      if (!cells.is_high(x, y)) continue;
      const size_t cell = matrix.at(x, y);
      found.push_back({.cause = Cause::slow_path,
                       .rank = x,
                       .peer = y,
                       .evidence = fmt::format("messages take {:.1f} times as long as usual, {:.2f} ms more each (median)",
                                               matrix.ratio[cell], matrix.excess_us[cell] / 1e3)});
    }
  }
  return found;
}

std::vector<Finding> find_slow_links(std::span<const RankView> ranks, const DiagnosisOptions& options) {
  std::vector<Finding> lasting;
  for (int window = 0; window < kWindows; ++window) {
    const std::vector<Finding> now = slow_links_in(delay_matrix(ranks, options.window, window * options.window), options.slow_ratio);
    if (window == 0) {
      lasting = now;
      continue;
    }
    std::erase_if(lasting, [&](const Finding& one) {
      return std::none_of(now.begin(), now.end(), [&](const Finding& other) { return one.same_culprit(other); });
    });
  }
  for (Finding& one : lasting)
    for (const RankView& view : ranks)
      if (view.rank == one.rank) one.host = view.host;
  return lasting;
}

std::string to_text(const DelayMatrix& matrix) {
  if (matrix.empty()) return "";
  std::string text = "delay of messages from row to column, 1.0 = usual\n      ";
  for (int y = 0; y < matrix.ranks; ++y) text += fmt::format("{:>6}", y);
  for (int x = 0; x < matrix.ranks; ++x) {
    text += fmt::format("\n{:>6}", x);
    for (int y = 0; y < matrix.ranks; ++y) {
      const double ratio = matrix.ratio[matrix.at(x, y)];
      text += std::isnan(ratio) ? fmt::format("{:>6}", "-") : fmt::format("{:>6.1f}", ratio);
    }
  }
  return text + "\n";
}

}  // namespace cairn::elastic
