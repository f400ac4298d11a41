#include "train/report/run_files.h"

#include <cmath>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/files.h"
#include "base/memory_tags.h"
#include "base/metrics.h"
#include "base/terminal.h"
#include "base/text.h"
#include "base/trace.h"
#include "base/version.h"
#include "comm/world.h"
#include "train/build.h"
#include "train/report/gather_texts.h"
#include "train/report/run_json.h"
#include "train/report/try_to_write.h"
#include "train/step_plan/kept_plans.h"

namespace cairn::train {
namespace {

// Merges the traces of all ranks. Each rank sends its trace to the first rank, one after the other: machines need not share a file system,
// and the first rank holds one trace at a time.
void write_trace(comm::World& world, const Job& job, const std::filesystem::path& out) {
  constexpr comm::Label kTrace{comm::Purpose::control, "trace"};
  comm::Group& all = *job.engine.step_group;
  if (all.rank() != 0) {
    std::string text = base::perfetto_json(*job.instruments.trace);
    auto bytes = static_cast<int64_t>(text.size());
    all.send({&bytes, 1, comm::Dtype::i64}, 0, kTrace).wait_host();
    all.send({text.data(), bytes, comm::Dtype::u8}, 0, kTrace).wait_host();
    return;
  }
  std::optional<base::PerfettoFile> file;  // nothing after a failure: the traces of the others are received all the same
  const auto write = [&](const auto& add) {
    bool done = false;
    try_to_write(world.log(), "trace.json", [&] { add(), done = true; });
    if (!done) file.reset();
  };
  write([&] { file.emplace(out / "trace.json").add(*job.instruments.trace); });
  for (int rank = 1; rank < all.size(); ++rank) {
    int64_t bytes = 0;
    all.recv({&bytes, 1, comm::Dtype::i64}, rank, kTrace).wait_host();
    std::string text(static_cast<size_t>(bytes), '\0');
    all.recv({text.data(), bytes, comm::Dtype::u8}, rank, kTrace).wait_host();
    if (file) write([&] { file->add(text, fmt::format("the trace of rank {}", rank)); });
  }
  if (file) write([&] { file->commit(); });
}

ReportData report_of(const Job& job, const Start& start, const Result& result, const std::string& ledger, int ranks) {
  ReportData report{.title = start.out.filename().string(),
                    .rows = {},
                    .held_out = {},
                    .samples = {},
                    .recipe_toml = job.config.recipe_toml,
                    .ledger_json = ledger,
                    .facts = {}};
  for (const base::MetricsRow& row : base::read_metrics(start.out / "metrics.jsonl")) {
    report.rows.push_back({row.integer("step"), row.number("loss"), row.number("tokens_per_s"), row.number("memory_bytes"),
                           row.number("lr"), row.number("grad_norm"), row.number("seconds"), row.integer("tokens")});
    if (row.has("merge_loss")) {
      report.local.push_back({row.integer("step"), row.number("merge_local_loss")});
      report.merged.push_back({row.integer("step"), row.number("merge_loss")});
    }
    if (row.has("eval_loss")) report.held_out.push_back({row.integer("step"), row.number("eval_loss")});
  }
  report.facts = {{"Model", fmt::format("{}, {} parameters", job.config.settings.model.kind,
                                        base::human_count(static_cast<double>(job.engine.model->elements())))},
                  {"Data", job.data.origin},
                  {"Ranks", fmt::format("{} ({}), {} thread{} each", ranks, start.device, start.threads, start.threads == 1 ? "" : "s")},
                  {"Machine memory", base::human_bytes(base::machine_bytes())},
                  {"Peak memory of rank 0", base::human_bytes(base::peak_resident_bytes())},
                  {"Cairn", base::version()}};
  for (const base::MemoryTags::Bytes& use : job.instruments.memory->list())
    if (use.peak > 0) report.facts.push_back({fmt::format("Peak of {}", base::name(use.use)), base::human_bytes(use.peak)});
  if (result.stopped) report.facts.push_back({"Ended", fmt::format("asked to stop after step {}", result.step)});
  return report;
}

}  // namespace

void open_run_folder(const std::filesystem::path& out, const Job& job) {
  base::make_folder(out);
  for (const char* file : {"metrics.jsonl", kPlansFile}) {
    if (job.progress.steps_done > 0 && std::filesystem::exists(out / file)) base::truncate_metrics(out / file, job.progress.steps_done);
    if (job.progress.steps_done == 0) std::filesystem::remove(out / file);  // left by a run that ended before its first snapshot
  }
  base::write_atomically(out / "plan.json", parallel::to_json(job.config.plan));
  base::write_atomically(out / "recipe.toml", job.config.recipe_toml);
}

void restore_run_folder(const std::filesystem::path& out, const Job& job) {
  if (std::filesystem::exists(out / "recipe.toml") && std::filesystem::exists(out / "plan.json")) return;
  base::make_folder(out);
  base::write_atomically(out / "plan.json", parallel::to_json(job.config.plan));
  base::write_atomically(out / "recipe.toml", job.config.recipe_toml);
}

void write_run_files(comm::World& world, Job& job, const Start& start, const Result& result) {
  base::Log& log = world.log();
  const std::string ledger = merge_ledgers(gather_texts(*job.engine.step_group, world.ledger().json(), "ledger"));
  if (job.config.settings.log.trace) write_trace(world, job, start.out);
  draw_schedule(world, job, start.out);
  const std::vector<ReportData::Sample> samples = job.data.tokenizer ? write_samples(job) : std::vector<ReportData::Sample>{};
  if (!job.config.writes) return;
  const auto write = [&](const char* file, const std::string& text) {
    try_to_write(log, file, [&] { base::write_atomically(start.out / file, text); });
  };
  write("ledger.json", ledger);
  if (job.instruments.memory_report) {
    write("memory.json", job.instruments.memory_report->json());
    log.info("{}", job.instruments.memory_report->table());
  }
  if (job.instruments.kernel_report) {
    constexpr size_t kFile = 1000, kTerminal = 12;
    write("kernels.txt", KernelReport::table(job.instruments.kernel_report->found(), kFile));
    log.info("{}", KernelReport::table(job.instruments.kernel_report->found(), kTerminal));
  }
  try_to_write(log, "report.html", [&] {
    ReportData report = report_of(job, start, result, ledger, world.size());
    report.samples = samples;
    base::write_atomically(start.out / "report.html", report_html(report));
  });
  if (start.terminal && world.rank() == 0 && !samples.empty()) {
    start.terminal->line("");
    start.terminal->line(base::printable(samples[0].prompt + samples[0].text));
    start.terminal->line("");
  }
}

}  // namespace cairn::train
