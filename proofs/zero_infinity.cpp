// ZeRO-Infinity: parameters, gradients and optimizer state on the device, in host memory or on disk (memory.*). The baseline is the same
// run in memory. Disks are slow on purpose (memory.disk_read_mib_s), by what the compute of the same run takes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/recipe.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "study/claims.h"
#include "study/forked_ranks.h"
#include "train/build.h"
#include "train/layout_trace.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;
using Sets = std::vector<std::string>;

constexpr double kMiB = 0x1p20;

// A decoder that reads little text and writes nothing.
base::Recipe tiers_recipe(const ProofOptions& options, const Sets& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    [model]
    layers = 6
    embed = 128
    heads = 4
    kv_heads = 2
    mlp = 344
    [data]
    tokenizer = "bytes"
    length = 32
    stories_bytes = 60000
    [train]
    global_batch = 12
    [optim]
    warmup_steps = 2
    [log]
    tensorboard = false
    trace = false
    samples = 0
    [snapshot]
    every = 0
    last = false
    [eval]
    every = 0
    samples = 5
  )",
                                            "zero-infinity");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "--seed");
  recipe.set("memory.disk_path", options.scratch, "proof");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

Sets tiers(const char* parameters, const char* gradients, const char* optimizer) {
  return {std::string("memory.parameters=") + parameters, std::string("memory.gradients=") + gradients,
          std::string("memory.optimizer=") + optimizer};
}

void on_ranks(int ranks, const std::function<void(comm::World&)>& act) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run(act))
    if (error) std::rethrow_exception(error);
}

train::LayoutTrace traced(const ProofOptions& options, int ranks, const Sets& sets) {
  constexpr int64_t kSteps = 5;
  train::LayoutTrace found;
  on_ranks(ranks, [&](comm::World& world) {
    train::LayoutTrace own =
        train::trace_layout(world, tiers_recipe(options, sets), {.steps = kSteps, .tensors = true, .plant = "", .cache = {}});
    if (world.rank() == 0) found = std::move(own);
  });
  return found;
}

// Elements of parameters, gradients and norms that are not bitwise identical.
double unequal(const train::LayoutTrace& a, const train::LayoutTrace& b) {
  double count = 0;
  for (size_t step = 0; step < a.steps.size(); ++step) {
    const train::TracedStep &one = a.steps[step], &other = b.steps[step];
    count += one.gradient_norm == other.gradient_norm ? 0 : 1;
    for (size_t i = 0; i < one.parameters.size(); ++i)
      count += one.parameters[i].tensor.ne(other.parameters[i].tensor).sum().item<double>();
    for (size_t i = 0; i < one.gradients.size(); ++i) count += one.gradients[i].tensor.ne(other.gradients[i].tensor).sum().item<double>();
  }
  return count;
}

// The largest difference of any parameter after the last step, of that tensor's largest element.
double apart(const train::LayoutTrace& a, const train::LayoutTrace& b) {
  double most = 0;
  for (size_t i = 0; i < b.steps.back().parameters.size(); ++i) {
    const at::Tensor &one = a.steps.back().parameters[i].tensor, &other = b.steps.back().parameters[i].tensor;
    most = std::max(most, (one - other).abs().max().item<double>() / other.abs().max().item<double>());
  }
  return most;
}

// 1. Nine mixtures of tiers that have every pair of tiers for every pair of states.
void mixtures(const ProofOptions& options, Findings& findings, base::Log& log) {
  const char *v = "device", *h = "host", *k = "disk";
  const std::vector<Sets> mixes{tiers(k, k, k), tiers(v, h, h), tiers(v, k, k), tiers(h, v, h), tiers(h, h, k),
                                tiers(h, k, v), tiers(k, v, k), tiers(k, h, v), tiers(k, k, h)};
  for (const int ranks : {4, 3}) {
    log.info("1. nine mixtures of tiers on {} ranks", ranks);
    const Sets zero{"memory.zero=3"};
    const train::LayoutTrace plain = traced(options, ranks, zero);
    train::LayoutTrace first;
    double different = 0, most = 0;
    for (size_t i = 0; i < mixes.size(); ++i) {
      Sets sets = zero;
      sets.insert(sets.end(), mixes[i].begin(), mixes[i].end());
      train::LayoutTrace found = traced(options, ranks, sets);
      most = std::max(most, apart(found, plain));
      if (i == 0)
        first = std::move(found);
      else
        different += unequal(found, first);
    }
    findings.at_most(fmt::format("1. {} ranks, nine mixtures of tiers: elements that differ between any two", ranks), 0, different, 0);
    findings.at_most(fmt::format("1. {} ranks: parameters differ from those in memory by at most, of the largest", ranks), 0, most, 1e-6);
  }
}

// A model of 21M parameters: 336 MB of parameters, gradients and moments.
Sets large(const std::string& device, const std::string& host) {
  return {"model.embed=512",
          "model.mlp=1536",
          "model.heads=8",
          "model.kv_heads=8",
          "data.length=16",
          "train.global_batch=2",
          "memory.device_budget=" + device,
          "memory.host_budget=" + host};
}

std::string refusal(const ProofOptions& options, const Sets& sets) {
  try {
    on_ranks(1, [&](comm::World& world) { train::build(world, tiers_recipe(options, sets), train::Start(), {}); });
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// How much the resident memory of a process grows at most that builds such a run and takes three steps, in MiB; and its state.
std::pair<double, double> growth(const ProofOptions& options, const Sets& sets) {
  const auto found = on_forked_ranks(1, std::nullopt, options.scratch, [&](comm::World& world) {
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
    const auto before = static_cast<double>(base::resident_bytes());
    const auto job = train::build(world, tiers_recipe(options, sets), train::Start(), {});
    for (int i = 0; i < 3; ++i) {
      train::take_step(*job);
      ++job->progress.steps_done;
    }
    return std::vector<double>{(static_cast<double>(base::peak_resident_bytes()) - before) / kMiB,
                               16.0 * static_cast<double>(job->engine.model->elements()) / kMiB};
  });
  return {found[0][0], found[0][1]};
}

// 2. State of four times the device budget.
void capacity(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("2. a model whose state is four times the device budget");
  constexpr double kDevice = 75, kHost = 160;  // MiB
  const Sets budgets = large("75MiB", "160MiB");
  const std::string refused = refusal(options, budgets);
  log.info("2. without tiers: {}", refused);
  findings.at_least("2. without tiers it is refused at the start, with numbers", 0,
                    refused.find("memory.device_budget = 75.0 MiB: the device (") != std::string::npos ? 1 : 0, 1);
  Sets sets = budgets;
  for (const std::string& one : tiers("disk", "disk", "disk")) sets.push_back(one);
  const auto [tiered, state] = growth(options, sets);
  const double small = growth(options, {}).first;
  log.info("2. resident memory grows by {:.0f} MiB with tiers, by {:.0f} MiB with a small model", tiered, small);
  findings.at_least("2. with tiers it trains: state (16 bytes a parameter), in device budgets", kDevice, state / kDevice, 4);
  findings.at_most("2. resident memory beyond that of a small model, of both budgets", kDevice + kHost,
                   (tiered - small) / (kDevice + kHost), 1.2);
}

// Bytes that this process has moved to or from disks.
std::pair<double, double> process_io() {
  std::ifstream in("/proc/self/io");
  std::string key;
  double value = 0, read = 0, written = 0;
  while (in >> key >> value) {
    if (key == "read_bytes:") read = value;
    if (key == "write_bytes:") written = value;
  }
  return {read, written};
}

// 3. What the counters say beside what the kernel says.
void bytes(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("3. bytes beside /proc/self/io");
  Sets sets = tiers("disk", "disk", "disk");
  sets.insert(sets.end(), {"model.embed=256", "model.mlp=1024", "memory.host_budget=48MiB"});
  on_ranks(1, [&](comm::World& world) {
    const auto job = train::build(world, tiers_recipe(options, sets), train::Start(), {});
    mesh::TensorSwapper& swapper = *job->engine.store->swapper();
    const auto step = [&] {
      train::take_step(*job);
      ++job->progress.steps_done;
    };
    for (int i = 0; i < 2; ++i) step();
    swapper.flush();
    swapper.take_since();
    const auto before = process_io();
    for (int i = 0; i < 4; ++i) step();
    swapper.flush();
    const auto after = process_io();
    const mesh::TensorSwapper::Since booked = swapper.take_since();
    const double read = after.first - before.first, written = after.second - before.second;
    log.info("3. four steps: read {:.1f} MiB, written {:.1f} MiB", static_cast<double>(booked.read_bytes) / kMiB,
             static_cast<double>(booked.written_bytes) / kMiB);
    findings.at_most("3. bytes read: off /proc/self/io by at most", read, std::abs(static_cast<double>(booked.read_bytes) / read - 1),
                     0.05);
    findings.at_most("3. bytes written: off /proc/self/io by at most", written,
                     std::abs(static_cast<double>(booked.written_bytes) / written - 1), 0.05);
  });
}

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

// A run that takes steps when it is asked to.
struct Stepping {
  std::unique_ptr<train::Job> job;
  std::vector<double> steps_s = {};

  void step() {
    const base::RealClock clock;
    train::take_step(*job);
    ++job->progress.steps_done;
    steps_s.push_back(base::seconds(clock.now()));
  }
  double seconds() const { return median({steps_s.begin() + 2, steps_s.end()}); }
};

// 4. A layer's read takes as long as its forward pass. The runs take their steps in turn, so that a machine that changes its pace does so
// for all. A step has four micro-batches; the update reads the parameters once more.
void overlap(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("4. reads as long as compute");
  constexpr int64_t kLayers = 6, kMicroBatches = 4;
  const Sets shape{"model.embed=256", "model.mlp=1024",        "model.heads=8",      "model.kv_heads=8",
                   "data.length=128", "train.global_batch=16", "train.micro_batch=4"};
  const auto with = [&](Sets more) {
    more.insert(more.begin(), shape.begin(), shape.end());
    more.emplace_back("memory.slowdown_max=0");
    return tiers_recipe(options, more);
  };
  on_ranks(1, [&](comm::World& world) {
    const auto built = [&](const base::Recipe& recipe) { return Stepping{train::build(world, recipe, train::Start(), {})}; };
    Stepping memory = built(with({}));
    double ahead_s = 0, none_s = 0, memory_s = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {
      memory.steps_s.clear();
      for (int i = 0; i < 7; ++i) memory.step();
      const double calibrated_s = memory.seconds();
      // A forward pass is a third of a micro-batch; the head and the embedding are small beside the layers.
      const double forward_s = calibrated_s / (3 * kMicroBatches * kLayers);
      const double layer_bytes = 4 * (4 * 256.0 * 256 + 3 * 256.0 * 1024);
      const std::string rate = fmt::format("memory.disk_read_mib_s={}", layer_bytes / kMiB / forward_s);
      log.info("4. a layer's forward pass takes {:.1f} ms: {}", 1e3 * forward_s, rate);
      Stepping ahead = built(with({"memory.parameters=disk", rate, "memory.read_ahead=3"}));
      Stepping none = built(with({"memory.parameters=disk", rate, "memory.read_ahead=0", "memory.prefetch_blocks=0"}));
      memory.steps_s.clear();
      for (int i = 0; i < (options.full ? 12 : 7); ++i)
        for (Stepping* one : {&memory, &ahead, &none}) one->step();
      memory_s = memory.seconds(), ahead_s = ahead.seconds(), none_s = none.seconds();
      log.info("4. step: in memory {:.2f} s, read ahead {:.2f} s, read when needed {:.2f} s", memory_s, ahead_s, none_s);
      if (std::abs(memory_s / calibrated_s - 1) < 0.1) break;  // else the machine has changed its pace, and the rate is another
    }
    findings.at_most("4. read as long as compute: step, of that in memory", memory_s, ahead_s / memory_s, 1.25);
    findings.at_least("4. the same without reading ahead", memory_s, none_s / memory_s, 1.6);
  });
}

// 5. Slices against owners: four ranks, each with a link of its own to its disk.
void partitions(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("5. slices and owners");
  std::map<std::string, double> seconds;
  for (const char* partition : {"slices", "owner"}) {
    const Sets sets{"memory.zero=3",
                    "memory.parameters=disk",
                    std::string("memory.partition=") + partition,
                    "memory.disk_read_mib_s=10",
                    "model.embed=256",
                    "model.mlp=1024",
                    "data.length=8",
                    "train.global_batch=4",
                    "memory.read_ahead=0",
                    "memory.slowdown_max=0"};
    std::vector<double> steps_s;
    on_ranks(4, [&](comm::World& world) {
      Stepping run{train::build(world, tiers_recipe(options, sets), train::Start(), {})};
      for (int i = 0; i < 4; ++i) run.step();
      if (world.rank() == 0) steps_s = run.steps_s;
    });
    seconds[partition] = median({steps_s.begin() + 1, steps_s.end()});
  }
  log.info("5. step: slices {:.2f} s, owners {:.2f} s", seconds["slices"], seconds["owner"]);
  findings.at_least("5. four ranks with a disk each: step with owners that broadcast, of that with slices", seconds["slices"],
                    seconds["owner"] / seconds["slices"], 2);
}

}  // namespace

void prove_zero_infinity(const ProofOptions& options, Findings& findings, base::Log& log) {
  capacity(options, findings, log);  // before this process has memory to give away
  mixtures(options, findings, log);
  bytes(options, findings, log);
  overlap(options, findings, log);
  partitions(options, findings, log);
}

}  // namespace cairn::study
