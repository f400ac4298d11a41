// `cairn replay`: repeats one step of a run from its record.
#include "train/replay.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/cause.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/stderr_terminal.h"
#include "comm/local/local.h"

namespace cairn::cli {
namespace {

base::OrderedJson number(double value) {
  return std::isfinite(value) ? base::OrderedJson(value) : base::OrderedJson(fmt::format("{}", value));
}

base::OrderedJson json_of(const train::StepOfRecord& record, const train::Replayed& result, bool text) {
  base::OrderedJson json{{"run", record.run.string()},
                         {"step", record.step},
                         {"from_step", result.from},
                         {"batch", record.batches.back()},
                         {"equal", result.equal()},
                         {"same_samples", result.same_samples},
                         {"then", {{"loss", number(result.loss_then)}, {"grad_norm", number(result.norm_then)}}},
                         {"now", {{"loss", number(result.loss_now)}, {"grad_norm", number(result.norm_now)}}},
                         {"differences", result.differences},
                         {"samples", base::OrderedJson::array()}};
  for (const train::ReplayedSample& sample : result.samples) {
    base::OrderedJson one{{"id", sample.id}, {"tokens", sample.tokens}};
    if (text) one["text"] = sample.text;
    json["samples"].push_back(one);
  }
  return json;
}

void show(const train::StepOfRecord& record, const train::Replayed& result, int ranks, bool text, base::Terminal& terminal) {
  terminal.line(fmt::format("step {} of {}, from {} on {} rank{}", record.step, record.run.string(),
                            result.from == 0 ? std::string("the beginning") : fmt::format("the snapshot of step {}", result.from), ranks,
                            ranks == 1 ? "" : "s"));
  std::vector<int64_t> ids;
  int64_t tokens = 0;
  for (const train::ReplayedSample& sample : result.samples) {
    ids.push_back(sample.id);
    tokens += sample.tokens;
  }
  terminal.line(fmt::format("samples: {} ({})\n", fmt::join(ids, ", "), base::plural(tokens, "token")));
  terminal.line(fmt::format("{:<14} {:>24} {:>24}", "", "then", "now"));
  terminal.line(fmt::format("{:<14} {:>24} {:>24}", "loss", result.loss_then, result.loss_now));
  terminal.line(fmt::format("{:<14} {:>24} {:>24}\n", "gradient norm", result.norm_then, result.norm_now));
  if (text)
    for (const train::ReplayedSample& sample : result.samples)
      terminal.line(base::printable(fmt::format("--- sample {} ({})\n{}\n", sample.id, base::plural(sample.tokens, "token"), sample.text)));
  if (!result.same_samples) terminal.line("The samples are NOT those of then: their ids have another checksum.");
  terminal.line(result.equal() ? "Both are bitwise identical." : "They are NOT the same.");
  for (const std::string& one : result.differences) terminal.line(fmt::format("  {}{}", result.equal() ? "though " : "", one));
  if (!result.equal() && result.differences.empty() && result.same_samples)
    terminal.line("  no reason is known: ranks, threads, build, machine and data are those of then");
}

}  // namespace

int replay_command(const ReplayArguments& a) {
  const train::StepOfRecord record = train::read_step_of_record(a.run, a.step);
  const int ranks = a.nproc > 0 ? a.nproc : static_cast<int>(record.start().ranks);
  const auto side = stderr_terminal();
  comm::LocalOptions options;
  options.world = [&](int rank) {
    comm::WorldOptions world;
    world.log = base::Log({.rank = rank, .level = base::Level::warn, .terminal = side, .file = {}});
    return world;
  };
  const base::RealClock clock;
  base::Progress progress(*side, clock, std::chrono::seconds(5));
  train::ReplayOptions how{.text = a.text};
  how.on_step = [&](int64_t step, int64_t of) {
    if (progress.due() && base::seconds(clock.now()) > 2) progress.update(fmt::format("replaying: step {} of {}", step, of));
  };
  train::Replayed result;
  const auto ended = comm::LocalNetwork(ranks, options).run([&](comm::World& world) {
    train::Start start{.out = {},
                       .resume = true,
                       .cache = cache_folder() / "data",
                       .device = record.start().device,
                       .threads = static_cast<int>(record.start().threads),
                       .terminal = nullptr};
    const train::Replayed mine = train::replay(world, record, start, how);
    if (world.rank() == 0) result = mine;
  });
  rethrow_cause(ended);
  side->end_live();
  base::Terminal terminal;
  if (a.json)
    terminal.line(base::compact(json_of(record, result, a.text)));
  else
    show(record, result, ranks, a.text, terminal);
  return result.equal() && result.same_samples ? 0 : 1;
}

}  // namespace cairn::cli
