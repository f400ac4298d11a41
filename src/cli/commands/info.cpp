// `cairn doctor`, `cairn version`, `cairn reference` and `cairn key`.
#include <sys/utsname.h>

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <torch/version.h>

#include "base/files.h"
#include "base/memory_tags.h"
#include "base/schema.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/version.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "comm/mpi/transport.h"
#include "comm/net/key.h"
#include "kernels/adamw.h"
#include "kernels/device.h"
#include "memory/disk/disk_io.h"
#include "study/coded_options.h"
#include "study/hdee_options.h"
#include "study/iterate_options.h"
#include "study/lifelong_options.h"
#include "study/prune/prune_options.h"
#include "study/value_options.h"
#include "train/settings.h"
#include "unlearn/options.h"

namespace cairn::cli {
namespace {

// libtorch says DEFAULT where its kernels use what every processor of this kind has.
std::string vector_instructions() {
  const std::string capability = at::get_cpu_capability();
  if (capability != "DEFAULT") return capability;
#if defined(__aarch64__)
  return "NEON";
#elif defined(__x86_64__)
  return "SSE2 (this processor or ATEN_CPU_CAPABILITY has no more)";
#else
  return "those that every processor of this kind has";
#endif
}

}  // namespace

int doctor_command() {
  base::Terminal terminal;
  const auto fact = [&](std::string_view name, const std::string& value) { terminal.line(fmt::format("  {:<22} {}", name, value)); };
  utsname system{};
  uname(&system);
  terminal.line("machine");
  fact("system", fmt::format("{} {} {}", system.sysname, system.release, system.machine));
  fact("processors", fmt::format("{} usable", processors()));
  fact("vector instructions", vector_instructions());
  fact("memory", fmt::format("{}, {} available", base::human_bytes(base::machine_bytes()), base::human_bytes(base::available_bytes())));
  fact("disk here", fmt::format("{} free", base::human_bytes(base::free_bytes("."))));
  terminal.line("program");
  fact("cairn", base::version());
  fact("libtorch", TORCH_VERSION);
  fact("cuda kernels", kernels::has_cuda_kernels() ? "built in" : "not built (CAIRN_PRESET=cuda builds them)");
  fact("gpu", !kernels::has_cuda_kernels() ? "not asked for"
              : at::hasCUDA()              ? fmt::format("{} found", at::globalContext().hasCUDA() ? "one or more" : "none")
                                           : "none found");
  fact("cache", cache_folder().empty() ? "none (set HOME or CAIRN_CACHE)" : cache_folder().string());
  terminal.line("what will be used");
  fact("train", fmt::format("--device {}, {} threads on one rank", kernels::can_use_cuda() ? "cuda or cpu" : "cpu", threads_among(1)));
  fact("transports", comm::has_mpi() ? "local, net, mpi" : "local, net (mpi was not found when Cairn was built)");
  fact("memory on disk", memory::describe_disk_io());
  return 0;
}

int key_command(const KeyArguments& a) {
  comm::write_key(a.file, comm::fresh_key());
  base::Terminal().line(
      fmt::format("{}: a new key; copy it to every machine of the run (scp keeps it private), then: cairn train --nnodes 2 "
                  "--node-rank 0 --rendezvous HOST:29400 --key {}",
                  a.file, a.file));
  return 0;
}

std::string version_text() { return fmt::format("cairn {} (libtorch {})", base::version(), TORCH_VERSION); }

int version_command() {
  base::Terminal().line(version_text());
  return 0;
}

int reference_command() {
  base::Terminal().line(
      "# Recipe reference\n\nEvery key of a recipe, as `cairn reference` prints it. Any of them can be given as `--set "
      "section.key=value`.\n\n" +
      base::reference_markdown(train::recipe_sections()) +
      "\n\n# Studies\n\nSections of a study's recipe, beside those above. NAME is any name; sizes are\n`[study.size.NAME]`, with the "
      "keys of `[model]`.\n\n" +
      base::reference_markdown(study::hdee_sections()) + "\n\n## Coded training\n\n" + base::reference_markdown(study::coded_sections()) +
      "\n\n## Values of data\n\n" + base::reference_markdown({study::value_schema().section()}) + "\n\n## Selection in rounds\n\n" +
      base::reference_markdown({study::iterate_schema().section()}) + "\n\n## Lifelong training\n\n" +
      base::reference_markdown(study::lifelong_sections()) +
      "\n\n# Pruning\n\nOf `cairn prune`, beside the sections that train a model.\n\n" +
      base::reference_markdown({study::prune_schema().section(), study::recover_schema().section()}) +
      "\n\n# Unlearning\n\nOf `cairn unlearn train`, beside the sections that train "
      "a model.\n\n" +
      base::reference_markdown({unlearn::unlearning_schema().section()}));
  return 0;
}

}  // namespace cairn::cli
