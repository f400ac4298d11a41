// `cairn unlearn`: a store of adapters from which training records can be deleted.
#include <algorithm>
#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/launch/rank_process.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "unlearn/audit.h"
#include "unlearn/delete_records.h"
#include "unlearn/make_store.h"
#include "unlearn/records.h"
#include "unlearn/store_lock.h"
#include "unlearn/train_stages.h"

namespace cairn::lab {
namespace {

std::string says_who_answers(const unlearn::Served& served) {
  std::vector<std::string> lengths;
  for (const unlearn::LiveShard& shard : served.shards) lengths.push_back(shard.serving < 0 ? "none" : fmt::format("{}", shard.length));
  const std::string all =
      fmt::format("{} of {} shards answer (stages: {})", served.answering(), served.shards.size(), fmt::join(lengths, ", "));
  return served.answering() > 0 ? all : all + "; the base model answers alone until `cairn unlearn repair` has run";
}

// Trains what is missing, as the ranks of this command. `begin` opens the store on rank 0, before the others look at it.
int train_on_ranks(const cli::UnlearnArguments& a, const std::vector<std::string>& command_line,
                   const std::function<void(base::Log&)>& begin) {
  cli::RankCommand command{.launch = a.launch,
                           .device = a.device,
                           .fingerprint = "unlearn " + a.action,
                           .command_line = command_line,
                           .check = [] {},
                           .body = {}};
  command.body = [&](comm::World& world, const cli::RankContext& context) {
    at::set_num_threads(context.threads);
    base::Log log({.rank = world.rank(),
                   .level = world.rank() == 0 ? base::Level::info : base::Level::warn,
                   .terminal = std::make_shared<base::Terminal>(),
                   .file = {}});
    if (world.rank() == 0) begin(log);
    world.everyone().barrier("the store").wait();
    const unlearn::Store store(a.store);
    const unlearn::TrainedStages done =
        unlearn::train_missing_stages(world, store, {.device = a.device, .threads = context.threads}, log, context.stop);
    if (world.rank() != 0) return;
    base::Terminal terminal;
    terminal.line(
        fmt::format("{} trained in {:.1f} s, {:.0f} records read", base::plural(done.stages, "stage"), done.seconds, done.examples));
    if (done.elsewhere > 0) terminal.line(fmt::format("{} left to other processes", base::plural(done.elsewhere, "order")));
    if (done.without_records > 0)
      terminal.line(fmt::format("{} end early: all records of a slice are deleted", base::plural(done.without_records, "order")));
    terminal.line(says_who_answers(unlearn::served_by(store)));
  };
  if (command.launch.nproc == 1) command.launch.transport = "local";
  return cli::run_on_ranks(command);
}

int train_store(const cli::UnlearnArguments& a, const std::vector<std::string>& command_line) {
  return train_on_ranks(a, command_line, [&](base::Log& log) {
    const unlearn::UnlearnRecipe recipe = unlearn::read_unlearn(base::Recipe::File::read(a.recipe), a.sets);
    if (unlearn::is_store(a.store)) {
      if (!a.without.empty()) base::fail_input("--without: {} is there already. Use `cairn unlearn delete`.", a.store);
      unlearn::check_same_recipe(unlearn::Store(a.store), recipe);
      log.info("{}: continued", a.store);
      return;
    }
    const unlearn::Store store = unlearn::make_store(recipe, a.store, a.without);
    log.info("{}: {} in {} of {}, {} each", a.store, base::plural(store.spec().records, "record"),
             base::plural(store.spec().shards, "shard"), base::plural(store.spec().slices, "slice"),
             base::plural(static_cast<int64_t>(store.spec().orders[0].size()), "order"));
  });
}

int repair_store(const cli::UnlearnArguments& a, const std::vector<std::string>& command_line) {
  return train_on_ranks(a, command_line, [&](base::Log& log) {
    const unlearn::Store store(a.store);
    const unlearn::StoreLock lock(store);
    const unlearn::Purged purged = unlearn::purge(store);
    if (purged != unlearn::Purged{})
      log.info("{} and {} that a deletion had left are removed", base::plural(purged.records, "record"),
               base::plural(purged.artifacts, "artifact"));
  });
}

std::vector<int64_t> records_asked_for(const cli::UnlearnArguments& a, const unlearn::Store& store) {
  std::vector<int64_t> records = a.records;
  if (!a.where.empty()) {
    const size_t equals = a.where.find('=');
    if (equals == std::string::npos || equals == 0) base::fail_input("--where {}: give FIELD=VALUE, as in --where user=4711", a.where);
    const std::vector<int64_t> found = unlearn::find_records(store, a.where.substr(0, equals), a.where.substr(equals + 1));
    if (found.empty()) base::fail_input("--where {}: no record in {} has it. Nothing was deleted.", a.where, a.store);
    records.insert(records.end(), found.begin(), found.end());
  }
  if (records.empty()) base::fail_input("delete: which records? Give their numbers, or --where FIELD=VALUE");
  return records;
}

int delete_from_store(const cli::UnlearnArguments& a) {
  const base::RealClock clock;
  const unlearn::Store store(a.store);
  base::Terminal terminal;
  double answered_s = 0;
  const unlearn::Deleted done = unlearn::delete_records(store, records_asked_for(a, store), [&](const unlearn::Deleted& logged) {
    answered_s = base::seconds(clock.now());
    if (a.json) return;
    for (const int64_t record : logged.before) terminal.line(fmt::format("record {} is deleted already", record));
    terminal.line(fmt::format("{} deleted in {:.0f} ms: {}", base::plural(static_cast<int64_t>(logged.records.size()), "record"),
                              1000 * answered_s, says_who_answers(logged.served)));
  });
  if (a.json) {
    terminal.line(base::compact(base::OrderedJson{{"deleted", done.records},
                                                  {"before", done.before},
                                                  {"seconds", answered_s},
                                                  {"answering", done.served.answering()},
                                                  {"purged_records", done.purged.records},
                                                  {"purged_artifacts", done.purged.artifacts}}));
    return 0;
  }
  terminal.line(fmt::format("removed from the disk: {}, {}", base::plural(done.purged.records, "record"),
                            base::plural(done.purged.artifacts, "artifact")));
  return 0;
}

int audit_store(const cli::UnlearnArguments& a) {
  const unlearn::Audit found = unlearn::audit(unlearn::Store(a.store));
  base::Terminal terminal;
  terminal.line(a.json ? unlearn::to_json(found) : unlearn::to_text(found));
  return found.trouble.empty() ? 0 : 1;
}

}  // namespace

int unlearn_command(const cli::UnlearnArguments& a, const std::vector<std::string>& command_line) {
  if (a.action == "train") return train_store(a, command_line);
  if (a.action == "repair") return repair_store(a, command_line);
  if (a.action == "delete") return delete_from_store(a);
  if (a.action == "audit") return audit_store(a);
  base::Terminal().line(unlearn::to_text(unlearn::capacity_of(unlearn::Store(a.store), static_cast<uint64_t>(a.seed))));
  return 0;
}

}  // namespace cairn::lab
