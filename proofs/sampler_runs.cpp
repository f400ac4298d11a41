#include "proofs/sampler_runs.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/metrics.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "proofs/datastates_parts.h"
#include "proofs/selection_runs.h"
#include "snapshot/folder.h"
#include "study/claims.h"
#include "study/process.h"
#include "train/train.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPointInputs = 32, kPointHidden = 64, kPointClasses = 10;

// Weights of the teacher, drawn once.
struct PointTeacher {
  std::vector<double> first, second;

  explicit PointTeacher(const base::Random& random) {
    for (uint64_t i = 0; i < kPointHidden * kPointInputs; ++i)
      first.push_back(random.for_name("first").normal(i) * std::sqrt(2.0 / static_cast<double>(kPointInputs)));
    for (uint64_t i = 0; i < kPointClasses * kPointHidden; ++i) second.push_back(random.for_name("second").normal(i));
  }

  uint64_t label(const std::vector<double>& x) const {
    std::vector<double> hidden(kPointHidden), outputs(kPointClasses);
    for (size_t h = 0; h < kPointHidden; ++h)
      for (size_t i = 0; i < kPointInputs; ++i) hidden[h] += first[h * kPointInputs + i] * x[i];
    for (size_t c = 0; c < kPointClasses; ++c)
      for (size_t h = 0; h < kPointHidden; ++h) outputs[c] += second[c * kPointHidden + h] * std::max(hidden[h], 0.0);
    return static_cast<uint64_t>(std::max_element(outputs.begin(), outputs.end()) - outputs.begin());
  }
};

void write_point_file(const TeacherPoints& points, const PointTeacher& teacher, const std::string& name, int64_t count, double flipped) {
  const base::Random random = base::Random(points.seed).for_purpose("teacher points").for_name(name);
  std::ofstream file(points.folder / name);
  for (int64_t p = 0; p < count; ++p) {
    const base::Random of_point = random.for_index(static_cast<uint64_t>(p));
    std::vector<double> x;
    std::string row;
    for (uint64_t i = 0; i < kPointInputs; ++i) {
      x.push_back(of_point.normal(i));
      row += fmt::format("{:.6g},", x.back());
    }
    const base::Random flip = of_point.for_name("flip");
    const uint64_t label = flip.uniform(0) < flipped ? flip.below(1, kPointClasses) : teacher.label(x);
    file << row << label << '\n';
  }
  if (!file) base::fail_input("{}: cannot be written", (points.folder / name).string());
}

std::string snapshot_name(int64_t step) { return fmt::format("step-{:08}", step); }

}  // namespace

void write_teacher_points(const TeacherPoints& points) {
  const PointTeacher teacher(base::Random(points.seed).for_purpose("teacher"));
  fs::create_directories(points.folder);
  write_point_file(points, teacher, "train.csv", points.training, points.flipped);
  write_point_file(points, teacher, "test.csv", points.test, 0);
}

base::Recipe points_recipe(const fs::path& folder, uint64_t seed, const Assignments& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {kind = "classifier", hidden = [128]}
    data = {kind = "table", header = false, standardize = false}
    train = {steps = 0, global_batch = 64}
    optim = {kind = "sgd", learning_rate = 0.1, momentum = 0.9, nesterov = true, decay_decoupled = false, weight_decay = 5e-4, max_grad_norm = 0.0, warmup_steps = 0, schedule = "cosine", min_lr_ratio = 1e-3}
    eval = {every = 0, samples = 4000}
    log = {tensorboard = false, trace = false, samples = 0}
    snapshot = {every = 0, last = false}
  )",
                                            "teacher points");
  recipe.set("data.path", (folder / "train.csv").string(), "proof");
  recipe.set("data.test_file", (folder / "test.csv").string(), "proof");
  recipe.set("train.seed", static_cast<int64_t>(seed), "proof");
  return with(std::move(recipe), sets);
}

SampledRun read_sampled_run(const fs::path& out) {
  SampledRun run;
  for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
    run.losses.push_back(row.number("loss"));
    run.rates.push_back(row.number("lr"));
    if (row.has("eval_accuracy")) run.accuracy[row.integer("step")] = row.number("eval_accuracy");
    bool begins = false;
    for (const auto& [name, value] : row.values) {
      if (name == "samples") run.samples.push_back(std::get<std::string>(value));
      if (!name.starts_with("sampler_")) continue;
      begins = true;
      run.sampler[name.substr(8)].push_back(row.number(name));
    }
    if (begins) run.epoch_steps.push_back(row.integer("step"));
  }
  return run;
}

SampledRun train_sampled(const base::Recipe& recipe, const fs::path& out, int ranks, bool resume) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         train::run(world, recipe, {.out = out, .resume = resume, .cache = {}, .terminal = nullptr}, {}, base::Stop());
       }))
    if (error) std::rethrow_exception(error);
  return read_sampled_run(out);
}

void in_parallel(int64_t jobs, const std::function<void(int64_t job)>& act) {
  std::atomic<int64_t> next = 0;
  std::vector<std::exception_ptr> failures(2);
  std::vector<std::thread> workers;
  for (std::exception_ptr& failure : failures)
    workers.emplace_back([&] {
      try {
        for (int64_t job = next++; job < jobs; job = next++) act(job);
      } catch (...) {
        failure = std::current_exception();
      }
    });
  for (std::thread& one : workers) one.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

Assignments sampler_texts(const ProofOptions& options, int64_t bytes) {
  constexpr int64_t kDocumentBytes = 300;
  if (options.data.empty()) return {fmt::format("data.stories_bytes={}", bytes)};
  const fs::path file = fs::path(options.scratch) / fmt::format("texts-{}.jsonl", bytes);
  if (!fs::exists(file)) {
    const std::vector<std::string> found = paragraphs_of(options.data, std::max<int64_t>(60, bytes / kDocumentBytes), 60, kDocumentBytes);
    // Too few or too short ones come again, so that there are as many steps: what samples say does not decide their order.
    std::vector<std::string> texts;
    for (int64_t written = 0; written < bytes; written += static_cast<int64_t>(texts.back().size()))
      texts.push_back(found[texts.size() % found.size()]);
    write_texts(file, texts);
  }
  return {"data.path=" + file.string()};
}

base::Recipe sampler_decoder(const ProofOptions& options, int64_t bytes, const Assignments& sets) {
  base::Recipe recipe = small_decoder(
      options, {"model.layers=2", "model.embed=16", "model.heads=2", "model.mlp=24", "train.steps=0", "train.global_batch=8"});
  return with(with(std::move(recipe), sampler_texts(options, bytes)), sets);
}

base::Recipe sampled_chats(const ProofOptions& options, const fs::path& folder) {
  constexpr int64_t kTextBytes = 30'000;
  train_sampled(sampler_decoder(options, kTextBytes, {"data.length=40", "train.steps=1", "snapshot.last=true"}), folder / "base");
  std::string chats;
  for (int i = 0; i < 80; ++i) chats += fmt::format("{{\"instruction\": \"Say {}\", \"output\": \"It is {}\"}}\n", i, i * i);
  base::write_atomically(folder / "chats.jsonl", chats);
  return with(base::Recipe::parse(R"(
    model = {lora = {rank = 2}}
    data = {length = 40, template = "plain"}
    train = {steps = 0, global_batch = 8}
    eval = {every = 0, fraction = 0.0}
    log = {tensorboard = false, trace = false, samples = 0}
    snapshot = {every = 0}
  )",
                                  "chats"),
              {"model.from=" + snapshot::step_folder(folder / "base", 1).string(), "data.path=" + (folder / "chats.jsonl").string(),
               fmt::format("train.seed={}", options.seed)});
}

const std::vector<SamplerLayout>& sampler_layouts() {
  static const std::vector<SamplerLayout> all{{"1 rank", 1},
                                              {"dp = 2", 2},
                                              {"dp = 4, ZeRO 3", 4, {"memory.zero=3"}},
                                              {"pp = 2, dp = 2", 4, {"mesh.pp=2"}},
                                              {"tp = 2", 2, {"mesh.tp=2"}},
                                              {"cp = 2", 2, {"mesh.cp=2"}}};
  return all;
}

double steps_differing(const std::vector<std::string>& a, const std::vector<std::string>& b, size_t from, size_t to) {
  double differ = 0;
  for (size_t i = from; i < std::min(to, std::max(a.size(), b.size())); ++i) differ += i >= a.size() || i >= b.size() || a[i] != b[i];
  return differ;
}

void copy_run_at(const fs::path& run, const fs::path& to, int64_t step) {
  fs::create_directories(to / "snapshots");
  for (const auto& entry : fs::directory_iterator(run))
    if (entry.path().filename() != "snapshots") fs::copy(entry.path(), to / entry.path().filename(), fs::copy_options::recursive);
  const std::string name = snapshot_name(step);
  fs::copy(run / "snapshots" / name, to / "snapshots" / name, fs::copy_options::recursive);
}

bool run_and_kill(const KilledRun& run) {
  std::vector<std::string> argv{run.program, "train", "--out", run.out.string(), "--nproc", std::to_string(run.ranks), "--resume", "auto"};
  for (const std::string& set : run.sets) argv.insert(argv.end(), {"--set", set});
  const fs::path snapshot = run.out / "snapshots" / snapshot_name(run.after_step);
  std::atomic<bool> ended = false, killed = false;
  std::thread killer;
  const ProcessResult result = run_program(argv, run.out.string() + ".txt", [&](int process) {
    killer = std::thread([&, process] {
      while (run.kill && !ended && !fs::exists(snapshot)) wait_for_time(std::chrono::milliseconds(2));
      if (!run.kill || ended) return;
      killed = true;
      ::kill(process, SIGKILL);  // its ranks die with it
    });
  });
  ended = true;
  if (killer.joinable()) killer.join();
  if (!killed && result.exit_code != 0) base::fail_input("{}: exit code {}: {}", run.out.string(), result.exit_code, result.output);
  return killed;
}

}  // namespace cairn::study
