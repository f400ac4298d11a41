// `cairn schedule`: what a pipeline schedule costs, as a table and as a picture.
#include "parallel/schedule.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "parallel/schedule/csv.h"
#include "parallel/schedule/extra_actions.h"
#include "parallel/schedule/timeline.h"
#include "parallel/schedule/timeline_svg.h"

namespace cairn::cli {
namespace {

constexpr int64_t kCsvBytes = 64 << 20;

std::string percent(double part) { return fmt::format("{:.1f} %", 100 * part); }

std::string seconds(double s) { return fmt::format("{:.6g} s", s); }

parallel::RankCosts rank_costs(const ScheduleArguments& a) {
  for (const double one : a.costs_s)
    if (!std::isfinite(one) || one < 0) base::fail_input("--costs {}: must be numbers, 0 or more", fmt::format("{}", one));
  if (a.costs_s[0] + a.costs_s[1] + a.costs_s[2] <= 0) base::fail_input("--costs 0,0,0: at least one of them must be more than 0");
  if (!std::isfinite(a.latency_s) || a.latency_s < 0) base::fail_input("--latency {}: must be a number, 0 or more", a.latency_s);
  return {.forward_s = a.costs_s[0],
          .backward_input_s = a.costs_s[1],
          .backward_weight_s = a.costs_s[2],
          .transfer_s = a.latency_s,
          .recompute_in_backward_s = a.recompute == "late" ? a.costs_s[0] : 0};
}

parallel::Schedule schedule_of(const ScheduleArguments& a) {
  const parallel::ExtraActions extra{.recompute = a.recompute == "ahead"};
  if (a.csv.empty())
    return parallel::add_actions(parallel::make_schedule({.name = a.name.empty() ? "1f1b" : a.name,
                                                          .ranks = a.ranks,
                                                          .stages_per_rank = a.stages_per_rank,
                                                          .micro_batches = a.micro_batches}),
                                 extra);
  if (a.size_given) base::fail_input("--csv {}: the file says what runs where; leave out the name and the sizes", a.csv);
  return parallel::add_actions(parallel::read_schedule_csv(base::read_file(a.csv, kCsvBytes), a.csv), extra);
}

std::string sizes(const parallel::Schedule& schedule) {
  return fmt::format("{}, {}, {} micro-batches", base::plural(schedule.ranks(), "rank"), base::plural(schedule.stages(), "stage"),
                     schedule.micro_batches);
}

void show(const parallel::Schedule& schedule, const parallel::Timeline& timeline) {
  const parallel::TimelineStats figures = parallel::timeline_stats(timeline);
  base::Terminal terminal;
  terminal.line(fmt::format("{}: {}", schedule.name, sizes(schedule)));
  terminal.line(
      fmt::format("step {}, step/ideal {:.6g}, bubble {}", seconds(figures.step_s), figures.step_to_ideal, percent(figures.bubble)));
  terminal.line(fmt::format("{:>4}  {:>8}  {:>12}  {:>12}  {:>18}  {:>16}", "rank", "bubble", "busy", "waits inside", "live micro-batches",
                            "live activations"));
  for (size_t rank = 0; rank < figures.ranks.size(); ++rank) {
    const parallel::RankTimelineStats& one = figures.ranks[rank];
    terminal.line(fmt::format("{:>4}  {:>8}  {:>12}  {:>12}  {:>18}  {:>16}", rank, percent(one.bubble), seconds(one.busy_s),
                              seconds(one.waiting_s), one.live_micro_batches, one.live_activations));
  }
}

// The most of any rank, in shares of the model: a live activation of one of two stages counts half.
double shares_kept(const parallel::Schedule& schedule, const parallel::TimelineStats& figures) {
  std::vector<int> stages_on(schedule.ranks());
  for (const int rank : schedule.rank_of_stage) ++stages_on[rank];
  double most = 0;
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    most = std::max(most, static_cast<double>(figures.ranks[rank].live_activations) / stages_on[rank]);
  return most;
}

int compare_all(const ScheduleArguments& a) {
  if (!a.name.empty() || !a.csv.empty() || !a.svg.empty() || !a.out_csv.empty() || a.stages_per_rank != 0)
    base::fail_input("--all compares every schedule: leave out the name, --stages-per-rank, --csv, --svg and --out-csv");
  const parallel::RankCosts costs = rank_costs(a);
  base::Terminal terminal;
  terminal.line(fmt::format(
      "{} ranks, {} micro-batches; a rank's share of the model takes {} forward, {} for the input gradient, {} for the weight "
      "gradient{}; a message {}",
      a.ranks, a.micro_batches, seconds(costs.forward_s), seconds(costs.backward_input_s), seconds(costs.backward_weight_s),
      a.recompute == "none" ? "" : fmt::format(", a forward again before each backward ({})", a.recompute), seconds(costs.transfer_s)));
  terminal.line(fmt::format("{:<12}  {:>6}  {:>8}  {:>12}  {:>10}  {:>18}  {:>16}", "schedule", "stages", "bubble", "step", "step/ideal",
                            "live micro-batches", "activations kept"));
  for (const std::string& name : parallel::schedule_names()) {
    try {
      const parallel::Schedule schedule =
          parallel::add_actions(parallel::make_schedule({.name = name, .ranks = a.ranks, .micro_batches = a.micro_batches}),
                                {.recompute = a.recompute == "ahead"});
      const parallel::TimelineStats figures = parallel::timeline_stats(parallel::timeline(schedule, parallel::even_costs(schedule, costs)));
      int live = 0;
      for (const parallel::RankTimelineStats& rank : figures.ranks) live = std::max(live, rank.live_micro_batches);
      terminal.line(fmt::format("{:<12}  {:>6}  {:>8}  {:>12}  {:>10.6g}  {:>18}  {:>16.4g}", name, schedule.stages(),
                                percent(figures.bubble), seconds(figures.step_s), figures.step_to_ideal, live,
                                shares_kept(schedule, figures)));
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::bad_input) throw;
      terminal.line(fmt::format("{:<12}  {}", name, error.what()));
    }
  }
  terminal.line("(live micro-batches and activations kept: the most of any rank; an activation of one of a rank's two stages counts half)");
  return 0;
}

}  // namespace

int schedule_command(const ScheduleArguments& a) {
  if (a.all) return compare_all(a);
  const parallel::RankCosts costs = rank_costs(a);
  const parallel::Schedule schedule = schedule_of(a);
  const parallel::Timeline timeline = parallel::timeline(schedule, parallel::even_costs(schedule, costs));
  show(schedule, timeline);
  base::Terminal terminal;
  const auto write = [&](const std::string& file, const std::string& text) {
    base::write_atomically(file, text);
    terminal.line(fmt::format("{}: {}", file, base::human_bytes(static_cast<int64_t>(text.size()))));
  };
  if (!a.out_csv.empty()) write(a.out_csv, parallel::to_csv(schedule));
  if (!a.svg.empty()) write(a.svg, parallel::draw_svg(timeline));
  return 0;
}

}  // namespace cairn::cli
