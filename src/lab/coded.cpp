// `cairn study coded`: starts a master and workers as processes, or is one of them.
#include "study/coded.h"

#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>

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

constexpr int64_t kCodedResultBytesMax = 64 << 20;

// This process is the master or a worker.
int be_rank(const cli::StudyArguments& a, const study::CodedRecipe& recipe, const std::filesystem::path& out, int setup_fd) {
  const cli::Signals signals;
  at::set_num_threads(1);
  comm::NetSetup setup = train::inherited_setup(setup_fd);
  comm::WorldOptions options;
  options.log = base::Log({.rank = setup.rank, .level = base::Level::warn, .terminal = cli::stderr_terminal(), .file = {}});
  comm::World world(comm::make_net_transport(std::move(setup), {.stop = &signals.stop()}), std::move(options));
  base::Log log({.rank = world.rank(), .terminal = a.json ? cli::stderr_terminal() : std::make_shared<base::Terminal>(), .file = {}});
  const std::filesystem::path cache = cli::cache_folder();
  cli::report_failure_to_peers(world, [&] {
    const study::CodedResult result =
        study::run_coded(world, recipe, out, cache.empty() ? "" : (cache / "data").string(), signals.stop(), log);
    if (world.rank() == 0 && !a.json) base::Terminal().line(study::to_tables(result));
  });
  return 0;
}

}  // namespace

int study_coded(const cli::StudyArguments& a) {
  const study::CodedRecipe recipe = study::read_coded(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path out =
      a.out.empty() ? std::filesystem::path("studies") / std::filesystem::path(a.recipe).stem() : std::filesystem::path(a.out);
  if (const auto setup_fd = cli::variable("CAIRN_SETUP_FD")) return be_rank(a, recipe, out, std::stoi(*setup_fd));
  const federate::SchemeSpec spec = study::spec_of(recipe.study);
  base::Terminal terminal;
  if (recipe.study.params == "given" || spec.kind == federate::SchemeKind::none) {
    const auto scheme = federate::make_scheme(spec, static_cast<int>(recipe.study.workers), 1, recipe.study.code, 1);
    if (a.dry_run)
      terminal.line(fmt::format("{}: load {:.4f}, gradients delayed by {} rounds", spec.text(), scheme->load(), scheme->delay()));
  } else if (a.dry_run) {
    terminal.line(fmt::format("{}: parameters are chosen after {} rounds", recipe.study.scheme, recipe.study.probe_rounds));
  }
  if (a.dry_run) return 0;
  base::make_folder(out);
  std::filesystem::remove(out / "results.json");
  const cli::Signals signals;
  const int ranks = static_cast<int>(recipe.study.workers) + 1;
  train::AgentOptions options{
      .setups = comm::make_net_setups(ranks), .argv = {cli::own_program().string(), "study", "coded", a.recipe}, .env = {}};
  options.argv.insert(options.argv.end(), {"--out", out.string()});
  for (const std::string& set : a.sets) options.argv.insert(options.argv.end(), {"--set", set});
  if (a.json) options.argv.emplace_back("--json");
  options.islands = ranks;  // the others go on without a worker that is lost
  options.hold_stop = true;
  base::Log log({.level = base::Level::warn, .terminal = cli::stderr_terminal(), .file = {}});
  const int code = train::run_ranks(options, log, signals.stop());
  if (code != 0) return code;
  if (!std::filesystem::exists(out / "results.json")) throw Error(Error::Kind::lost_peer, "the master was lost: start the study again");
  if (a.json) terminal.line(base::read_file(out / "results.json", kCodedResultBytesMax));
  return 0;
}

}  // namespace cairn::lab
