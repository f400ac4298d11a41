#include "lab/ranks_of_study.h"

#include <filesystem>

#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
#include "cli/environment.h"
#include "cli/launch/rank_process.h"
#include "cli/signals.h"
#include "cli/stderr_terminal.h"
#include "comm/net/transport.h"
#include "comm/world.h"
#include "lab/commands.h"
#include "train/agent.h"

namespace cairn::lab {
namespace {

constexpr int64_t kStudyResultBytesMax = int64_t{1} << 30;

int be_rank_of_study(const cli::StudyArguments& a, comm::NetSetup setup, const RankOfStudy& body) {
  const cli::Signals signals;
  const int threads = cli::threads_among(a.nproc);
  at::set_num_threads(threads);
  comm::WorldOptions options;
  const bool first = setup.rank == 0;
  options.log = base::Log({.rank = setup.rank,
                           .level = first ? base::Level::info : base::Level::warn,
                           .terminal = a.json || !first ? cli::stderr_terminal() : std::make_shared<base::Terminal>(),
                           .file = {}});
  comm::World world(comm::make_net_transport(std::move(setup), {.stop = &signals.stop()}), std::move(options));
  cli::report_failure_to_peers(world, [&] {
    const std::string text = body(world, threads, signals.stop());
    if (!first) return;
    base::Terminal().line(a.json ? base::read_file(study_directory(a) / "results.json", kStudyResultBytesMax) : text);
  });
  return 0;
}

}  // namespace

int run_on_ranks(const cli::StudyArguments& a, const RankOfStudy& body) {
  if (const auto setup_fd = cli::variable("CAIRN_SETUP_FD")) return be_rank_of_study(a, train::inherited_setup(std::stoi(*setup_fd)), body);
  if (a.nproc == 1) return be_rank_of_study(a, std::move(comm::make_net_setups(1).front()), body);
  const cli::Signals signals;
  train::AgentOptions options{.setups = comm::make_net_setups(a.nproc), .argv = {cli::own_program().string()}, .env = {}};
  if (a.kind.empty())
    options.argv.insert(options.argv.end(), {"prune", a.recipe, "--device", a.device});
  else
    options.argv.insert(options.argv.end(), {"study", a.kind, a.recipe});
  options.argv.insert(options.argv.end(), {"--out", study_directory(a).string(), "--nproc", std::to_string(a.nproc)});
  for (const std::string& set : a.sets) options.argv.insert(options.argv.end(), {"--set", set});
  if (a.json) options.argv.emplace_back("--json");
  base::Log log({.level = base::Level::warn, .terminal = cli::stderr_terminal(), .file = {}});
  return train::run_ranks(options, log, signals.stop());
}

}  // namespace cairn::lab
