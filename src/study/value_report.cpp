// Curves, tables, files and pictures of a study of values.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "data/selection/pool.h"
#include "data/selection/subset_file.h"
#include "study/curves_svg.h"
#include "study/value_study.h"
#include "train/settings.h"

namespace cairn::study {
namespace {

constexpr int kShares = 20;              // points of a curve: steps of 5 %
constexpr size_t kLeaveOneOutMax = 300;  // players, for a curve that needs a training for each
constexpr double kPredictionRidge = 1e-3;

using Order = std::vector<size_t>;

Order by_value(const std::vector<double>& values, bool highest_first) {
  Order order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return highest_first ? values[a] > values[b] : values[a] < values[b]; });
  return order;
}

PlayerValues held_out_game(const ValueStudy& study) {
  return {.players = study.players, .utility = *study.held_out_utility, .seed = study.seed};
}

// The score on held-out samples after removing the first players of an order.
ValueCurve removal_curve(const ValueStudy& study, const std::string& label, const Order& order) {
  const PlayerValues game = held_out_game(study);
  ValueCurve curve{.plot = "removal", .label = label};
  size_t before = order.size();
  for (int i = 0; i < kShares; ++i) {
    const size_t removed = order.size() * static_cast<size_t>(i) / kShares;
    if (removed == before) continue;
    before = removed;
    curve.points.emplace_back(static_cast<double>(removed) / static_cast<double>(order.size()),
                              game.value(game.samples_of({order.begin() + static_cast<int64_t>(removed), order.end()})));
  }
  return curve;
}

std::vector<double> leave_one_out_values(const ValueStudy& study) {
  const PlayerValues game{.players = study.players, .utility = *study.utility, .seed = study.seed};
  const double full = game.value(game.all());
  std::vector<double> values;
  for (size_t i = 0; i < study.players.size(); ++i) {
    Order others;
    for (size_t j = 0; j < study.players.size(); ++j)
      if (j != i) others.push_back(j);
    values.push_back(full - game.value(game.samples_of(others)));
  }
  return values;
}

// The share of the corrupted players among the first ones.
ValueCurve detection_curve(const ValueStudy& study, const std::string& label, const Order& order) {
  const auto all = static_cast<double>(std::count(study.corrupted.begin(), study.corrupted.end(), true));
  ValueCurve curve{.plot = "detection", .label = label, .points = {{0, 0}}};
  double found = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    found += study.corrupted[order[i]];
    const auto at = static_cast<double>(i + 1);
    if ((i + 1) * kShares % order.size() < kShares || i + 1 == order.size())
      curve.points.emplace_back(at / static_cast<double>(order.size()), found / std::max(1.0, all));
  }
  return curve;
}

// What a value is predicted from: the features and a 1, for the row's class; 0 for the other classes.
std::vector<double> inputs_of(const ValueStudy& study, int64_t row) {
  const auto width = static_cast<size_t>(study.rows.features) + 1;
  std::vector<double> x(width * static_cast<size_t>(study.rows.classes));
  const auto at = static_cast<size_t>(study.rows.labels[static_cast<size_t>(row)]) * width;
  for (size_t k = 0; k + 1 < width; ++k) x[at + k] = study.rows.values[static_cast<size_t>(row) * (width - 1) + k];
  x[at + width - 1] = 1;
  return x;
}

// Ridge regression from rows to values, by conjugate gradients on the normal equations.
std::vector<double> fit_values(const std::vector<std::vector<double>>& x, const std::vector<double>& y) {
  const size_t d = x.front().size();
  const auto apply = [&](const std::vector<double>& w) {
    std::vector<double> out(d);
    for (const auto& row : x) {
      const double along = std::inner_product(row.begin(), row.end(), w.begin(), 0.0);
      for (size_t k = 0; k < d; ++k) out[k] += along * row[k];
    }
    for (size_t k = 0; k < d; ++k) out[k] += kPredictionRidge * static_cast<double>(x.size()) * w[k];
    return out;
  };
  std::vector<double> w(d), residual(d);
  for (size_t i = 0; i < x.size(); ++i)
    for (size_t k = 0; k < d; ++k) residual[k] += y[i] * x[i][k];
  std::vector<double> way = residual;
  double length = std::inner_product(residual.begin(), residual.end(), residual.begin(), 0.0);
  for (size_t step = 0; step < 4 * d && length > 1e-24; ++step) {
    const std::vector<double> image = apply(way);
    const double size = length / std::inner_product(way.begin(), way.end(), image.begin(), 0.0);
    for (size_t k = 0; k < d; ++k) w[k] += size * way[k], residual[k] -= size * image[k];
    const double next = std::inner_product(residual.begin(), residual.end(), residual.begin(), 0.0);
    for (size_t k = 0; k < d; ++k) way[k] = residual[k] + next / length * way[k];
    length = next;
  }
  return w;
}

// Candidates by the value that is predicted for them, highest first.
Order rank_candidates(const ValueStudy& study, const std::vector<double>& values) {
  std::vector<std::vector<double>> x;
  std::vector<double> y;
  for (size_t i = 0; i < study.players.size(); ++i)
    for (const int64_t row : study.players[i]) {
      x.push_back(inputs_of(study, row));
      y.push_back(values[i] / static_cast<double>(study.players[i].size()));
    }
  const std::vector<double> w = fit_values(x, y);
  std::vector<double> predicted;
  for (const int64_t row : study.candidates) {
    const std::vector<double> at = inputs_of(study, row);
    predicted.push_back(std::inner_product(at.begin(), at.end(), w.begin(), 0.0));
  }
  return by_value(predicted, /*highest_first=*/true);
}

// The score with the first candidates of an order added to all players.
ValueCurve acquisition_curve(const ValueStudy& study, const std::string& label, const Order& order) {
  const PlayerValues game = held_out_game(study);
  ValueCurve curve{.plot = "acquisition", .label = label};
  for (int i = 0; i <= kShares; ++i) {
    std::vector<int64_t> samples = game.all();
    const size_t added = order.size() * static_cast<size_t>(i) / kShares;
    for (size_t k = 0; k < added; ++k) samples.push_back(study.candidates[order[k]]);
    curve.points.emplace_back(static_cast<double>(added), game.value(samples));
  }
  return curve;
}

void write_pictures(const ValueStudy& study, const ValueResult& result, const std::filesystem::path& out) {
  const std::map<std::string, std::array<std::string, 3>> titles{
      {"convergence", {"values of some players", "permutations", "value"}},
      {"removal", {"score on held-out samples after removing players", "share removed", study.options.metric}},
      {"detection", {"corrupted players found", "share inspected, lowest value first", "share found"}},
      {"acquisition", {"score on held-out samples after adding candidates", "candidates", study.options.metric}}};
  for (const auto& [plot, words] : titles) {
    CurvesPicture picture{.title = words[0], .across = words[1], .up = words[2]};
    for (const ValueCurve& one : result.curves)
      if (one.plot == plot)
        picture.curves.push_back(
            {.label = plot == "convergence" ? "" : one.label, .colour = curve_colour(picture.curves.size()), .points = one.points});
    if (!picture.curves.empty()) write_curves(out.string(), plot, picture);
  }
}

}  // namespace

std::vector<ValueCurve> value_curves(const ValueStudy& study, const std::vector<double>& values, base::Log& log) {
  std::vector<ValueCurve> curves;
  const Order highest = by_value(values, true), lowest = by_value(values, false), random = order_of_players(study.seed, -2, values.size());
  const bool compares = study.options.method != "loo" && study.players.size() <= kLeaveOneOutMax && study.options.learner == "logistic";
  const std::vector<double> left_out = compares ? leave_one_out_values(study) : std::vector<double>();
  if (study.held_out_utility) {
    log.info("curves: training on what is left after removing players");
    curves.push_back(removal_curve(study, "highest first", highest));
    curves.push_back(removal_curve(study, "lowest first", lowest));
    curves.push_back(removal_curve(study, "random", random));
    if (compares) curves.push_back(removal_curve(study, "leave-one-out, highest first", by_value(left_out, true)));
  }
  if (!study.corrupted.empty()) {
    curves.push_back(detection_curve(study, study.options.method, lowest));
    curves.push_back(detection_curve(study, "random", random));
    if (compares) curves.push_back(detection_curve(study, "leave-one-out", by_value(left_out, false)));
  }
  if (!study.candidates.empty() && study.held_out_utility) {
    curves.push_back(acquisition_curve(study, "highest predicted value first", rank_candidates(study, values)));
    curves.push_back(acquisition_curve(study, "random", order_of_players(study.seed, -3, study.candidates.size())));
  }
  return curves;
}

void write_value_report(const ValueStudy& study, const ValueResult& result, const std::filesystem::path& out) {
  std::string table = "player,value,standard_error,count\n";
  for (size_t i = 0; i < result.values.size(); ++i)
    table += fmt::format("{},{},{},{}\n", result.names[i], result.values[i], result.errors[i], result.permutations);
  base::write_atomically(out / "values.csv", table);
  base::OrderedJson json{{"method", result.options.method},
                         {"metric", result.options.metric},
                         {"learner", result.options.learner},
                         {"seed", study.seed},
                         {"players", result.values.size()},
                         {"permutations", result.permutations},
                         {"trainings", result.trainings},
                         {"position", result.position},
                         {"converged", result.converged},
                         {"error", result.change},
                         {"full", result.full},
                         {"full_mean", result.full_mean},
                         {"deviation", result.deviation},
                         {"empty", result.empty},
                         {"learning_rate", result.learning_rate},
                         {"training_s", result.training_s},
                         {"seconds", result.seconds}};
  json["names"] = result.names;
  json["values"] = result.values;
  json["errors"] = result.errors;
  for (const ValueCurve& one : result.curves) {
    base::OrderedJson points = base::OrderedJson::array();
    for (const auto& [x, y] : one.points) points.push_back({x, y});
    json["curves"].push_back({{"plot", one.plot}, {"label", one.label}, {"points", points}});
  }
  write_pictures(study, result, out);
  base::write_atomically(out / "results.json", base::pretty(json) + "\n");
}

void write_value_column(const ValueStudy& study, const ValueRecipe& recipe, const ValueResult& result, const StudySetup& setup,
                        base::Log& log) {
  base::Recipe read = recipe.training;
  const train::Settings settings = train::read_settings(read);
  const bool sources = recipe.study.players == "source";
  if (!settings.data.needs().is_text() || (!sources && settings.data.packing != data::Packing::none)) return;
  const data::Pool pool = data::open_pool(settings.data, {.cache_folder = setup.cache.string(), .hash_pool = true}, log);
  data::ScoreColumn column{.source = pool.digest(), .name = "value", .scores = {}, .input = study.identity};
  std::vector<int64_t> seen(static_cast<size_t>(pool.sources()));
  std::vector<size_t> first_player{0};
  for (int64_t s = 0; s < pool.sources(); ++s)
    first_player.push_back(first_player.back() + static_cast<size_t>(study.data.sources[static_cast<size_t>(s)].count));
  for (int64_t document = 0; document < pool.documents(); ++document) {
    const auto s = static_cast<size_t>(pool.source_of(document));
    const auto in_source = static_cast<size_t>(seen[s]++);
    const bool held_out = !sources && in_source >= static_cast<size_t>(study.data.sources[s].count);
    column.scores.push_back(held_out ? 0 : static_cast<float>(result.values[sources ? s : first_player[s] + in_source]));
  }
  data::write_column((setup.out / "values.scores").string(), column);
}

std::string to_tables(const ValueResult& result) {
  std::string text = fmt::format(
      "{}: {} players, {} permutations of {:.1f} players, {:.0f} trainings\nV(all) = {:.5f}, V(none) = {:.5f}, sum of values {:.5f}, error "
      "{:.3g}{}\n",
      result.options.method, result.values.size(), result.permutations, result.position, result.trainings, result.full, result.empty,
      std::accumulate(result.values.begin(), result.values.end(), 0.0), result.change, result.converged ? "" : " (not converged)");
  constexpr size_t kShown = 10;
  const Order order = by_value(result.values, /*highest_first=*/true);
  text += "\nplayer                            value   +-\n";
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == kShown && order.size() > 2 * kShown) text += "  …\n", i = order.size() - kShown;
    text += fmt::format("{:<28} {:>10.6f}   {:.6f}\n", result.names[order[i]], result.values[order[i]], result.errors[order[i]]);
  }
  for (const ValueCurve& one : result.curves) {
    if (one.plot == "convergence") continue;
    text += fmt::format("\n{}, {}:", one.plot, one.label);
    for (size_t i = 0; i < one.points.size(); i += 2) text += fmt::format("  {:.2f}: {:.4f}", one.points[i].first, one.points[i].second);
  }
  return text + "\n";
}

}  // namespace cairn::study
