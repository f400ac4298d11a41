#include "study/hdee_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/files.h"
#include "base/json.h"
#include "study/hdee_pictures.h"
#include "train/report/html_text.h"
#include "train/report/style.h"

namespace cairn::study {
namespace {

// Aligns columns: the first to the left, the others to the right.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) {
      if (i >= widths.size()) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i)
      text += i == 0 ? fmt::format("{:<{}}", row[i], widths[i]) : fmt::format("  {:>{}}", row[i], widths[i]);
    text += "\n";
  }
  return text;
}

std::string steps_text(const PlannedExpert& expert) {
  std::string text;
  for (const int64_t steps : expert.steps) text += fmt::format("{}{}", text.empty() ? "" : "+", steps);
  return text;
}

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : "-"; }

std::string expert_table(const HdeeResult& result) {
  std::vector<std::vector<std::string>> rows{
      {"expert", "parameters", "steps", "tokens", "FLOPs", "island", "seconds", "restarts", "loss before", "after", "bytes sent"}};
  for (const auto& [id, one] : result.experts)
    rows.push_back({id, fmt::format("{}", one.parameters), steps_text(one.plan), fmt::format("{}", one.tokens),
                    fmt::format("{:.4g}", one.flops), one.ended.island, fmt::format("{:.1f}", one.ended.seconds),
                    fmt::format("{}", one.ended.restarts), number(one.loss_before), number(one.loss_after),
                    fmt::format("{}", one.bytes_sent)});
  return table(rows);
}

double measured_flops(const HdeeResult& result, const std::string& mode) {
  double sum = 0;
  for (const PlannedExpert& expert : result.plan.mode(mode).experts) sum += result.experts.at(expert.id()).flops;
  return sum;
}

std::string parity_lines(const HdeeResult& result) {
  std::string text;
  for (const ModeResult& mode : result.modes)
    text += fmt::format("parity, mode {}: {:.5g} FLOPs measured (6 x parameters x tokens), {:.4f} of the budget of {:.5g}\n", mode.mode,
                        measured_flops(result, mode.mode), measured_flops(result, mode.mode) / result.plan.budget, result.plan.budget);
  return text;
}

std::string matrix(const HdeeResult& result) {
  std::vector<std::vector<std::string>> rows{{"perplexity"}};
  for (const ModeResult& mode : result.modes) rows.front().push_back(mode.mode);
  rows.front().push_back("best single expert");
  for (const auto& [domain, _] : result.modes.front().domains) {
    double best = INFINITY, single = INFINITY;
    std::string who;
    for (const ModeResult& mode : result.modes) best = std::min(best, mode.domains.at(domain).loss);
    for (const auto& [id, losses] : result.single)
      if (losses.at(domain) < single) single = losses.at(domain), who = id;
    rows.push_back({domain});
    for (const ModeResult& mode : result.modes)
      rows.back().push_back(
          fmt::format("{:.4f}{}", std::exp(mode.domains.at(domain).loss), mode.domains.at(domain).loss == best ? " *" : "  "));
    rows.back().push_back(fmt::format("{:.4f} ({})", std::exp(single), who));
  }
  return table(rows);
}

std::string iterations(const HdeeResult& result) {
  std::string text;
  for (const ModeResult& mode : result.modes) {
    if (mode.iterations.size() < 2) continue;
    std::vector<std::vector<std::string>> rows{{fmt::format("mode {}, after", mode.mode)}};
    for (size_t i = 0; i < mode.iterations.size(); ++i) rows.front().push_back(fmt::format("{} domain{}", i + 1, i == 0 ? "" : "s"));
    for (const auto& [domain, _] : mode.domains) {
      rows.push_back({domain});
      for (const auto& one : mode.iterations) rows.back().push_back(fmt::format("{:.4f}", std::exp(one.at(domain))));
    }
    text += "\n" + table(rows);
  }
  return text;
}

std::string posteriors(const HdeeResult& result) {
  std::string text;
  for (const ModeResult& mode : result.modes) {
    std::vector<std::vector<std::string>> rows{{fmt::format("posterior, mode {}", mode.mode)}};
    rows.front().insert(rows.front().end(), result.lines.begin(), result.lines.end());
    for (const auto& [domain, one] : mode.domains) {
      rows.push_back({domain});
      for (const double weight : one.posterior) rows.back().push_back(fmt::format("{:.3f}", weight));
    }
    text += "\n" + table(rows);
  }
  return text;
}

base::OrderedJson json_of(const HdeeResult& result) {
  base::OrderedJson json{{"budget_flops", result.plan.budget}, {"notes", result.plan.notes}, {"difficulty", result.difficulty}};
  for (const auto& [id, one] : result.experts) {
    base::OrderedJson runs = base::OrderedJson::array();
    for (const auto& run : one.runs) runs.push_back(run.string());
    json["experts"].push_back({{"id", id},
                               {"line", one.plan.line},
                               {"size", one.plan.size},
                               {"steps", one.plan.steps},
                               {"domains", one.plan.domains},
                               {"parameters", one.parameters},
                               {"tokens", one.tokens},
                               {"flops", one.flops},
                               {"island", one.ended.island},
                               {"seconds", one.ended.seconds},
                               {"restarts", one.ended.restarts},
                               {"loss_before", std::isfinite(one.loss_before) ? base::OrderedJson(one.loss_before) : nullptr},
                               {"loss_after", one.loss_after},
                               {"bytes_sent", one.bytes_sent},
                               {"losses", result.single.at(id)},
                               {"runs", runs}});
  }
  for (const ModeResult& mode : result.modes) {
    base::OrderedJson domains;
    for (const auto& [domain, one] : mode.domains)
      domains[domain] = {{"loss", one.loss}, {"perplexity", std::exp(one.loss)}, {"prior", one.prior}, {"posterior", one.posterior}};
    json["modes"].push_back({{"mode", mode.mode},
                             {"flops", measured_flops(result, mode.mode)},
                             {"experts", result.lines},
                             {"domains", domains},
                             {"losses_by_iteration", mode.iterations}});
  }
  return json;
}

}  // namespace

std::string to_tables(const HdeePlan& plan) {
  std::string text;
  for (const ModePlan& mode : plan.modes) {
    std::vector<std::vector<std::string>> rows{{fmt::format("mode {}", mode.mode), "size", "parameters", "steps", "tokens", "FLOPs"}};
    for (const PlannedExpert& one : mode.experts)
      rows.push_back({one.line, one.size, fmt::format("{}", one.facts.parameters), steps_text(one), fmt::format("{}", one.tokens),
                      fmt::format("{:.4g}", one.flops)});
    text += table(rows) + fmt::format("{:.5g} FLOPs, {:.4f} of the budget\n\n", mode.flops, mode.share);
  }
  for (const std::string& note : plan.notes) text += note + "\n";
  return text;
}

std::string to_tables(const HdeeResult& result) {
  return expert_table(result) + "\n" + parity_lines(result) + "\n" + matrix(result) + iterations(result) + posteriors(result);
}

void write_report(const HdeeResult& result, const std::filesystem::path& folder) {
  base::write_atomically(folder / "results.json", base::pretty(json_of(result)) + "\n");
  std::string page = fmt::format(
      "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Domain experts</title><style>{}pre{{overflow-x:auto}}"
      ".drawn svg{{width:100%;height:auto;max-width:960px}}</style><main><header>{}<h1>Domain experts</h1></header><pre>{}</pre>",
      train::kReportStyle, train::kReportMark, train::html_escaped(to_tables(result)));
  const auto add = [&](const std::string& drawing) { page += "<p class=\"drawn\">" + drawing + "</p>"; };
  add(draw_perplexities(result));
  for (const ModeResult& mode : result.modes) {
    add(draw_posteriors(result, mode));
    add(draw_positions(result, mode));
  }
  base::write_atomically(folder / "report.html", page + "</main></html>\n");
}

}  // namespace cairn::study
