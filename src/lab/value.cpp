// `cairn study value`: what training examples or sources are worth.
#include "study/value.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/signals.h"
#include "cli/stderr_terminal.h"
#include "lab/commands.h"

namespace cairn::lab {
namespace {

constexpr int64_t kValueResultBytesMax = int64_t{1} << 30;

}  // namespace

int study_value(const cli::StudyArguments& a) {
  const cli::Signals signals;
  base::Log log({.terminal = a.json ? cli::stderr_terminal() : std::make_shared<base::Terminal>(), .file = {}});
  const study::ValueRecipe recipe = study::read_value(base::Recipe::File::read(a.recipe), a.sets);
  const std::filesystem::path cache = cli::cache_folder();
  study::StudySetup setup{.out = study_directory(a), .cache = cache.empty() ? cache : cache / "data", .processes = a.nproc};
  setup.threads = cli::threads_among(a.nproc);
  at::set_num_threads(setup.threads);
  const study::ValueResult result = study::run_value(recipe, setup, log, signals.stop());
  base::Terminal terminal;
  terminal.line(a.json ? base::read_file(setup.out / "results.json", kValueResultBytesMax) : study::to_tables(result));
  if (!a.json) terminal.line(fmt::format("done in {:.1f} s; values: {}", result.seconds, (setup.out / "values.csv").string()));
  return 0;
}

}  // namespace cairn::lab
