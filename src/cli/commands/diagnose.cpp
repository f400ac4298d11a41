// `cairn diagnose`: what the agents of a run have found, and what the records of its ranks show.
#include <map>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/run_events.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "elastic/diagnosis/hang.h"
#include "elastic/diagnosis/monitor.h"
#include "elastic/diagnosis/slow_links.h"
#include "elastic/diagnosis/view_file.h"

namespace cairn::cli {
namespace {

struct Diagnosis {
  std::vector<base::Json> events;        // as the agents reported them
  std::vector<elastic::RankView> ranks;  // as the agents left them
  std::vector<elastic::Finding> found;   // in these records
  elastic::DelayMatrix delays;
};

Diagnosis read_diagnosis(const std::string& run) {
  Diagnosis all;
  for (base::Json& event : base::read_events(run))
    if (event.value("event", "") == "diagnosis") all.events.push_back(std::move(event));
  all.ranks = elastic::read_views(run);
  if (all.ranks.empty() && all.events.empty() && !base::path_exists(run))
    base::fail_input("{}: there is no such run: give a run directory, as runs/NAME", run);
  elastic::DiagnosisOptions options;
  all.found = elastic::diagnose(all.ranks, options);
  all.delays = elastic::delay_matrix(all.ranks, 3 * options.window);
  return all;
}

base::OrderedJson json_of(const elastic::Finding& one) {
  base::OrderedJson json{{"cause", elastic::name(one.cause)}, {"rank", one.rank}};
  if (one.peer >= 0) json["peer"] = one.peer;
  json["host"] = one.host;
  json["operation"] = one.operation;
  json["evidence"] = one.evidence;
  json["victims"] = one.victims;
  return json;
}

std::string to_json(const Diagnosis& all) {
  base::OrderedJson json{
      {"reported", base::OrderedJson::array()}, {"found", base::OrderedJson::array()}, {"ranks", base::OrderedJson::array()}};
  for (const base::Json& event : all.events) json["reported"].push_back(base::OrderedJson(event));
  for (const elastic::Finding& one : all.found) json["found"].push_back(json_of(one));
  for (const elastic::RankView& one : all.ranks) {
    base::OrderedJson rank{{"rank", one.rank}, {"host", one.host}};
    if (one.log)
      rank.update({{"step", one.log->step}, {"activity", comm::name(one.log->activity)}, {"operations", one.log->operations_begun}});
    json["ranks"].push_back(std::move(rank));
  }
  json["delays"] = base::OrderedJson::array();
  for (int x = 0; x < all.delays.ranks; ++x)
    for (int y = 0; y < all.delays.ranks; ++y) {
      const size_t cell = all.delays.at(x, y);
      if (const double ratio = all.delays.ratio[cell]; ratio == ratio)
        json["delays"].push_back({{"from", x}, {"to", y}, {"ratio", ratio}, {"us_per_mb", all.delays.us_per_mb[cell]}});
    }
  return base::pretty(json);
}

std::string line_of(const base::Json& event) {
  std::string line = fmt::format("{}: rank {}", event.value("cause", ""), event.value("rank", -1));
  if (event.contains("peer")) line += fmt::format(" to rank {}", event.value("peer", -1));
  if (const std::string host = event.value("host", ""); !host.empty()) line += " on " + host;
  return line + ": " + event.value("evidence", "");
}

void show(const Diagnosis& all, base::Terminal& terminal) {
  if (all.events.empty()) terminal.line("the agents of this run have reported nothing");
  for (const base::Json& event : all.events) terminal.line("reported  " + line_of(event));
  if (all.ranks.empty()) {
    terminal.line("no records: the run has one rank, or diagnosis.enabled = false, or it has not ended and has one machine");
    return;
  }
  for (const elastic::Finding& one : all.found) terminal.line("found     " + elastic::to_line(one));
  for (const elastic::RankView& one : all.ranks) {
    const std::string state =
        one.log ? fmt::format("step {}, {}, {} operations", one.log->step, comm::name(one.log->activity), one.log->operations_begun)
                : "no records";
    terminal.line(fmt::format("rank {:<4} {} {}{}", one.rank, one.host, state, one.how.empty() ? "" : ", " + one.how));
  }
  const std::string matrix = elastic::to_text(all.delays);
  terminal.line(matrix.empty() ? "no delays: ranks of one machine share memory, and send no messages over a network" : matrix);
}

}  // namespace

int diagnose_command(const DiagnoseArguments& a) {
  const Diagnosis all = read_diagnosis(a.run);
  base::Terminal terminal;
  if (a.json)
    terminal.line(to_json(all));
  else
    show(all, terminal);
  return 0;
}

}  // namespace cairn::cli
