#include "study/iterate_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

constexpr int64_t kIterateStateBytesMax = int64_t{1} << 28;
constexpr int kStateDepthMax = 8;
constexpr size_t kClustersShown = 20;

base::OrderedJson to_json(const IterateRound& one) {
  base::OrderedJson scores = base::OrderedJson::array();
  for (const double score : one.scores) scores.push_back(std::isnan(score) ? base::OrderedJson() : base::OrderedJson(score));
  return {{"added", one.added}, {"weights", one.weights},     {"quotas", one.quotas},
          {"scores", scores},   {"effective", one.effective}, {"seconds", one.seconds}};
}

}  // namespace

void write_iterate_state(const IterateResult& result, uint64_t identity, const std::filesystem::path& path) {
  base::OrderedJson json{
      {"identity", fmt::format("{:016x}", identity)}, {"weights", result.weights}, {"rounds", base::OrderedJson::array()}};
  for (const IterateRound& one : result.rounds) json["rounds"].push_back(to_json(one));
  base::write_atomically(path, base::compact(json) + "\n");
}

void read_iterate_state(IterateResult& result, const std::filesystem::path& path, uint64_t identity) {
  const base::GuardedJson read = base::parse_json_guarded(base::read_file(path, kIterateStateBytesMax), kStateDepthMax);
  if (!read.trouble.empty()) base::fail_corrupt(path.string(), read.trouble);
  const base::Json& json = read.value;
  try {
    if (json.at("identity").get<std::string>() != fmt::format("{:016x}", identity))
      base::fail_input("{}: of another recipe, or of other data. Give another --out, or remove the directory.", path.string());
    json.at("weights").get_to(result.weights);
    for (const base::Json& one : json.at("rounds")) {
      IterateRound round{.effective = one.at("effective"), .seconds = one.at("seconds")};
      one.at("added").get_to(round.added);
      one.at("weights").get_to(round.weights);
      one.at("quotas").get_to(round.quotas);
      for (const base::Json& score : one.at("scores"))
        round.scores.push_back(score.is_null() ? std::numeric_limits<double>::quiet_NaN() : score.get<double>());
      result.rounds.push_back(std::move(round));
    }
  } catch (const base::Json::exception&) {
    base::fail_corrupt(path.string(), "values are missing, or of another kind");
  }
}

void write_iterate_report(const IterateResult& result, const IterateRecipe& recipe, const std::filesystem::path& out) {
  base::OrderedJson json{{"method", recipe.study.method},       {"scorer", recipe.study.scorer}, {"loss", result.loss},
                         {"accuracy", result.accuracy},         {"sizes", result.sizes},         {"weights", result.weights},
                         {"rounds", base::OrderedJson::array()}};
  for (const IterateRound& one : result.rounds) json["rounds"].push_back(to_json(one));
  base::write_atomically(out / "results.json", base::pretty(json) + "\n");
  std::string ids;
  for (const int64_t id : result.selected) ids += fmt::format("{}\n", id);
  base::write_atomically(out / "selected.txt", ids);
  CurvesPicture weights{.title = "weights of clusters over the rounds", .across = "round", .up = "weight"};
  for (size_t c = 0; c < std::min(kClustersShown, result.sizes.size()); ++c) {
    Curve curve{.label = "", .colour = curve_colour(c), .points = {}};
    for (size_t r = 0; r < result.rounds.size(); ++r) curve.points.emplace_back(static_cast<double>(r), result.rounds[r].weights[c]);
    curve.points.emplace_back(static_cast<double>(result.rounds.size()), result.weights[c]);
    weights.curves.push_back(std::move(curve));
  }
  write_curves(out.string(), "weights", weights);
  CurvesPicture quotas{.title = "samples of a cluster in the last round", .across = "size of the cluster", .up = "samples"};
  std::vector<std::pair<double, double>> points;
  for (size_t c = 0; c < result.sizes.size(); ++c)
    points.emplace_back(static_cast<double>(result.sizes[c]), static_cast<double>(result.rounds.back().quotas[c]));
  std::sort(points.begin(), points.end());
  quotas.curves.push_back({.label = "quota", .colour = curve_colour(0), .points = std::move(points)});
  write_curves(out.string(), "quotas", quotas);
}

std::string to_tables(const IterateResult& result) {
  std::string text = "round  added  effective clusters  seconds\n";
  for (size_t r = 0; r < result.rounds.size(); ++r)
    text += fmt::format("{:<5} {:>6} {:>19.1f} {:>8.1f}\n", r + 1, result.rounds[r].added.size(), result.rounds[r].effective,
                        result.rounds[r].seconds);
  return text + fmt::format("\n{} samples selected; held-out loss {:.5f}, accuracy {:.4f}\n", result.selected.size(), result.loss,
                            result.accuracy);
}

}  // namespace cairn::study
