#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "study/benches.h"

namespace cairn::study {
namespace {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace

BenchRow compare(std::string case_name, std::vector<double> ours, std::vector<double> peer, std::string unit, Better better, double goal) {
  CAIRN_CHECK(!ours.empty() && ours.size() == peer.size(), "{} measurements of ours, {} of the peer", ours.size(), peer.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < ours.size(); ++i) ratios.push_back(better == Better::higher ? ours[i] / peer[i] : peer[i] / ours[i]);
  const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
  const double ratio = median(ratios);
  return {std::move(case_name), median(ours), median(peer), std::move(unit), ratio, (*high - *low) / ratio, goal, ratio >= goal};
}

std::string to_json(const std::string& bench, const std::vector<BenchRow>& rows) {
  base::OrderedJson json = {{"bench", bench}, {"rows", base::OrderedJson::array()}};
  for (const BenchRow& r : rows)
    json["rows"].push_back({{"case", r.case_name},
                            {"ours", r.ours},
                            {"peer", r.peer},
                            {"unit", r.unit},
                            {"ratio", r.ratio},
                            {"spread", r.spread},
                            {"goal", r.goal},
                            {"pass", r.pass},
                            {"measured", r.measured}});
  return base::pretty(json);
}

std::string to_table(const std::vector<BenchRow>& rows) {
  size_t width = 4;
  for (const BenchRow& r : rows) width = std::max(width, r.case_name.size());
  std::string table = fmt::format("{:<{}}  {:>12}  {:>12}  {:<9}  {:>6}  {:>7}  {:>5}  {}\n", "case", width, "ours", "peer", "unit",
                                  "ratio", "spread", "goal", "verdict");
  for (const BenchRow& r : rows)
    table += fmt::format("{:<{}}  {:>12.6g}  {:>12.6g}  {:<9}  {:>6.3f}  {:>6.1f}%  {:>5}  {}\n", r.case_name, width, r.ours, r.peer,
                         r.unit, r.ratio, r.spread * 100, r.goal > 0 ? fmt::format("{:.2f}", r.goal) : "-",
                         !r.measured     ? "not measured"
                         : r.goal == 0.0 ? "no goal"
                         : r.pass        ? "reached"
                                         : "MISSED");
  return table;
}

}  // namespace cairn::study
