#include "study/lifelong_report.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "study/curves_svg.h"

namespace cairn::study {
namespace {

constexpr int64_t kLifelongStateBytesMax = int64_t{1} << 28;
constexpr int kLifelongStateDepthMax = 8;

base::OrderedJson to_json(const LifelongStep& step, bool whole) {
  base::OrderedJson json{{"pool_before", step.pool_before},
                         {"pool_after", step.pool_after},
                         {"shares", step.shares},
                         {"seconds", step.seconds},
                         {"clusters", base::OrderedJson::array()}};
  for (const ClusterChoice& one : step.clusters)
    json["clusters"].push_back({{"size", one.size}, {"budget", one.budget}, {"score", one.score}, {"entropy", one.entropy}});
  for (const double accuracy : step.accuracy)
    json["accuracy"].push_back(std::isnan(accuracy) ? base::OrderedJson() : base::OrderedJson(accuracy));
  json["selected"] = step.selected;
  if (whole) json["pool"] = step.pool;
  return json;
}

// The accuracy of every skill after every step, darker is better.
std::string draw_matrix(const LifelongResult& result) {
  constexpr double kCell = 64, kRow = 28, kLeft = 110, kTop = 60;
  const double width = kLeft + kCell * static_cast<double>(result.skills.size()) + 20,
               height = kTop + kRow * static_cast<double>(result.steps.size()) + 20;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n<text x=\"12\" y=\"22\" font-size=\"14\">accuracy by skill after each "
      "dataset</text>\n",
      width, height);
  for (size_t s = 0; s < result.skills.size(); ++s)
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", kLeft + kCell * (static_cast<double>(s) + 0.5),
                       kTop - 8, s);
  for (size_t t = 0; t < result.steps.size(); ++t) {
    const double y = kTop + kRow * static_cast<double>(t);
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"end\">dataset {}</text>\n", kLeft - 8, y + 18, t);
    for (size_t s = 0; s < result.skills.size(); ++s) {
      const double value = result.steps[t].accuracy[s];
      if (std::isnan(value)) continue;  // the skill came with a later dataset
      svg += fmt::format(
          "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"{2:.0f}\" height=\"{3:.0f}\" fill=\"#2f5d8a\" fill-opacity=\"{4:.2f}\"/>"
          "<text x=\"{5:.0f}\" y=\"{6:.0f}\" text-anchor=\"middle\" fill=\"{7}\">{4:.2f}</text>\n",
          kLeft + kCell * static_cast<double>(s), y, kCell - 2, kRow - 2, value, kLeft + kCell * (static_cast<double>(s) + 0.5), y + 18,
          value > 0.5 ? "white" : "#333");
    }
  }
  return svg + "</svg>\n";
}

}  // namespace

void write_lifelong_state(const LifelongResult& result, uint64_t identity, const std::filesystem::path& path) {
  base::OrderedJson json{{"identity", fmt::format("{:016x}", identity)}, {"skills", result.skills}, {"steps", base::OrderedJson::array()}};
  for (const LifelongStep& one : result.steps) json["steps"].push_back(to_json(one, /*whole=*/&one == &result.steps.back()));
  base::write_atomically(path, base::compact(json) + "\n");
}

LifelongState read_lifelong_state(const std::filesystem::path& path) {
  LifelongState state;
  LifelongResult& result = state.result;
  try {
    const base::GuardedJson read = base::parse_json_guarded(base::read_file(path, kLifelongStateBytesMax), kLifelongStateDepthMax);
    if (!read.trouble.empty()) base::fail_corrupt(path.string(), read.trouble);
    const base::Json& json = read.value;
    json.at("identity").get_to(state.identity);
    json.at("skills").get_to(result.skills);
    for (const base::Json& one : json.at("steps")) {
      LifelongStep step{.pool_before = one.at("pool_before"), .pool_after = one.at("pool_after")};
      one.at("selected").get_to(step.selected);
      if (one.contains("pool")) one.at("pool").get_to(step.pool);  // of the last step
      one.at("shares").get_to(step.shares);
      for (const base::Json& accuracy : one.at("accuracy"))
        step.accuracy.push_back(accuracy.is_null() ? std::numeric_limits<double>::quiet_NaN() : accuracy.get<double>());
      one.at("seconds").get_to(step.seconds);
      for (const base::Json& cluster : one.at("clusters"))
        step.clusters.push_back({.size = cluster.at("size"),
                                 .budget = cluster.at("budget"),
                                 .score = cluster.at("score"),
                                 .entropy = cluster.at("entropy").get<std::vector<double>>()});
      result.steps.push_back(std::move(step));
    }
  } catch (const base::Json::exception&) {
    base::fail_corrupt(path.string(), "values are missing, or of another kind");
  }
  return state;
}

void write_lifelong_report(const LifelongResult& result, const LifelongRecipe& recipe, const std::filesystem::path& out) {
  base::OrderedJson json{{"method", recipe.study.method}, {"datasets", recipe.study.datasets}, {"skills", result.skills},
                         {"accuracy", result.accuracy()}, {"forgetting", result.forgetting()}, {"steps", base::OrderedJson::array()}};
  for (const LifelongStep& one : result.steps) json["steps"].push_back(to_json(one, /*whole=*/false));
  base::write_atomically(out / "results.json", base::pretty(json) + "\n");
  base::write_atomically(out / "accuracy.svg", draw_matrix(result));
  CurvesPicture pool{.title = "shares of the datasets in the selection", .across = "dataset", .up = "share"};
  for (size_t d = 0; d < recipe.study.datasets.size(); ++d) {
    Curve curve{.label = std::filesystem::path(recipe.study.datasets[d]).stem().string(), .colour = curve_colour(d), .points = {}};
    for (size_t t = d; t < result.steps.size(); ++t) curve.points.emplace_back(static_cast<double>(t), result.steps[t].shares[d]);
    pool.curves.push_back(std::move(curve));
  }
  write_curves(out.string(), "pool", pool);
}

std::string to_tables(const LifelongResult& result) {
  std::string text = "step     pool   kept  selected  accuracy by skill\n";
  for (size_t t = 0; t < result.steps.size(); ++t) {
    const LifelongStep& one = result.steps[t];
    text += fmt::format("{:<4} {:>8} {:>6} {:>9}  {:.3f}\n", t, one.pool_before, one.pool_after, one.selected.size(),
                        fmt::join(one.accuracy, " "));
  }
  if (!result.steps.empty() && !result.steps.back().clusters.empty()) {
    text += "\nclusters of the last step\n  size  budget  score\n";
    for (const ClusterChoice& one : result.steps.back().clusters) text += fmt::format("{:>6} {:>7}  {}\n", one.size, one.budget, one.score);
  }
  return text + fmt::format("\nmean accuracy {:.4f}, forgetting {:.4f}\n", result.accuracy(), result.forgetting());
}

}  // namespace cairn::study
