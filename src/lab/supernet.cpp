// `cairn supernet`.
#include <charconv>
#include <cmath>
#include <filesystem>
#include <memory>
#include <utility>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/environment.h"
#include "cli/signals.h"
#include "cli/stderr_terminal.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "study/supernet/supernet_run.h"
#include "train/job.h"

namespace cairn::lab {
namespace {

// "200M", "1.5G", "300000"; empty: 0.
double parse_flops(const std::string& text) {
  if (text.empty()) return 0;
  double number = 0;
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(after, text.data() + text.size());
  double factor = 0;
  for (const auto& [name, value] : {std::pair{"", 1.0}, {"K", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}})
    if (unit == name) factor = value;
  if (error != std::errc() || factor == 0 || !(number > 0) || !std::isfinite(number))
    base::fail_input("--flops {}: must be a number, or one with K, M, G or T behind it: 200M", text);
  return number * factor;
}

}  // namespace

int supernet_command(const cli::SupernetArguments& a) {
  const std::filesystem::path cache = cli::cache_folder();
  const cli::Signals signals;
  const int threads = cli::threads_among(1);
  at::set_num_threads(threads);
  comm::WorldOptions world_options;
  world_options.log =
      base::Log({.level = a.json ? base::Level::warn : base::Level::info, .terminal = cli::stderr_terminal(), .file = {}});
  comm::World world(comm::make_net_transport(std::move(comm::make_net_setups(1).front()), {.stop = &signals.stop()}),
                    std::move(world_options));
  const study::SupernetRun run{
      .run = a.run, .sets = a.sets, .cache = cache.empty() ? cache : cache / "data", .threads = threads, .device = a.device};
  base::Terminal terminal;
  if (a.action == "export") {
    terminal.line(study::export_subnet(world, run, a.subnet, a.out, a.dtype, world.log()));
    return 0;
  }
  const study::SearchOptions options{.flops_max = parse_flops(a.flops),
                                     .population = a.population,
                                     .generations = a.generations,
                                     .calibration_samples = a.calibration,
                                     .seed = static_cast<uint64_t>(a.seed)};
  const std::unique_ptr<train::Job> job = study::open_supernet(world, run);
  const std::vector<study::MeasuredSubnet> measured = study::search_subnets(*job, options, world.log());
  const model::ElasticShape shape = job->engine.model->elastic();
  terminal.line(a.json ? study::to_json(measured, shape) : study::to_table(study::pareto_front(measured), shape));
  return 0;
}

}  // namespace cairn::lab
