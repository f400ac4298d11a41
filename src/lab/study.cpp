// `cairn study`; here `cairn study hdee`, domain experts at one total of compute.
#include <filesystem>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/signals.h"
#include "cli/stderr_terminal.h"
#include "lab/commands.h"
#include "study/hdee.h"
#include "study/hdee_report.h"

namespace cairn::lab {
namespace {

constexpr int64_t kResultBytesMax = 64 << 20;

}  // namespace

std::filesystem::path study_directory(const cli::StudyArguments& a) {
  return a.out.empty() ? std::filesystem::path(a.kind.empty() ? "pruned" : "studies") / std::filesystem::path(a.recipe).stem() : std::filesystem::path(a.out);
}

int study_command(const cli::StudyArguments& a) {
  if (a.kind == "value") return study_value(a);
  if (a.kind == "iterate") return study_iterate(a);
  if (a.kind == "lifelong") return study_lifelong(a);
  if (a.kind == "coded") return study_coded(a);
  if (a.kind == "parscale") return study_parscale(a);
  const cli::Signals signals;
  const base::RealClock clock;
  at::set_num_threads(cli::threads_among(1));
  base::Log log({.terminal = a.json ? cli::stderr_terminal() : std::make_shared<base::Terminal>(), .file = {}});
  study::HdeeRecipe recipe = study::read_hdee(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path out = study_directory(a);
  const std::filesystem::path cache = cli::cache_folder();
  const study::HdeeSetup setup{.out = out,
                               .program = cairn_program(),
                               .cache = cache.empty() ? cache : cache / "data",
                               .threads = cli::threads_among(1),
                               .dry_run = a.dry_run};
  const study::HdeeResult result = study::run_hdee(std::move(recipe), setup, log, signals.stop());
  base::Terminal terminal;
  if (a.dry_run) {
    terminal.line(study::to_tables(result.plan));
    return 0;
  }
  if (a.json) {
    terminal.line(base::read_file(out / "results.json", kResultBytesMax));
    return 0;
  }
  terminal.line(study::to_tables(result));
  terminal.line(fmt::format("done in {}; ensembles: {}; report: {}", base::human_duration(clock.now()), (out / "ensembles").string(),
                            (out / "report.html").string()));
  return 0;
}

}  // namespace cairn::lab
