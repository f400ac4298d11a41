// What a store still knows after deletions, and how soon it answers.
#include <algorithm>
#include <cmath>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/files/disk.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "proofs/process_time.h"
#include "proofs/s3t_parts.h"
#include "study/claims.h"
#include "study/curves_svg.h"
#include "unlearn/delete_records.h"

namespace cairn::study {

namespace fs = std::filesystem;
using unlearn::Artifact;
using unlearn::Store;

// 3. What is left of accuracy while slices are deleted.
void prove_s3t_retention(const ProofOptions& options, const S3tStores& stores, const Store& s3t, const Store& sisa, Findings& findings,
                         base::Log& log) {
  constexpr int64_t kDeletions = 20;
  const uint64_t streams = options.full ? 100 : 20;
  struct Arm {
    std::string name;
    const Store& store;
    int64_t budget;
    std::map<std::string, Artifact> artifacts;
    std::vector<double> curve;
  };
  std::vector<Arm> arms{{"SISA without retraining", sisa, 1, unlearn::read_artifacts(sisa), {}},
                        {"S3T, 1 order", s3t, 1, unlearn::read_artifacts(s3t), {}},
                        {"S3T, 2 orders", s3t, 2, unlearn::read_artifacts(s3t), {}},
                        {"S3T, 4 orders", s3t, 4, unlearn::read_artifacts(s3t), {}}};
  const base::Random random = base::Random(options.seed).for_purpose("retention streams");
  for (Arm& arm : arms) {
    arm.curve.assign(kDeletions + 1, 0.0);
    for (uint64_t i = 0; i < streams; ++i) {
      DeletionStream stream(s3t, random.for_index(i));
      for (size_t k = 0; k <= kDeletions; ++k) {
        arm.curve[k] +=
            stores.accuracy(arm.store, chains_after(arm.store, arm.artifacts, stream.hits(), arm.budget)) / static_cast<double>(streams);
        stream.take();
      }
    }
    log.info("{}: accuracy {:.3f} before, {:.3f} after 5, {:.3f} after 10, {:.3f} after 20 deletions", arm.name, arm.curve[0], arm.curve[5],
             arm.curve[10], arm.curve[20]);
  }
  const auto area = [](const Arm& arm) {
    double sum = 0;
    for (const double one : arm.curve) sum += one;
    return sum;
  };
  const double base = stores.accuracy(s3t, std::vector<std::vector<Artifact>>(2));
  findings.at_least("3. accuracy of the trained store above the base model's", base, arms[3].curve[0] - base, 0.05);
  findings.at_least("3. area under accuracy over 20 deletions: 4 orders over 1 order", area(arms[1]), area(arms[3]) / area(arms[1]), 1.1);
  findings.at_least("3. the same: 2 orders over 1 order", area(arms[1]), area(arms[2]) / area(arms[1]), 1);
  CurvesPicture picture{.title = "Accuracy while records are deleted", .across = "deletions", .up = "accuracy"};
  for (const Arm& arm : arms) {
    Curve& curve = picture.curves.emplace_back(Curve{.label = arm.name, .colour = curve_colour(picture.curves.size()), .points = {}});
    for (size_t k = 0; k < arm.curve.size(); ++k) curve.points.emplace_back(static_cast<double>(k), arm.curve[k]);
  }
  write_curves(options.pictures, "s3t-retention", picture);
}

// 4. From the request to an answer without the record.
namespace {

struct Replays {
  double seconds = 0, records = 0, cpu_s = 0;  // means of four deletions
};

// What SISA does about a deletion from each slice: it goes back to the checkpoint before, and trains the slices from there on.
Replays replay_deletions(const S3tStores& stores, const Store& sisa) {
  const unlearn::Partition partition = sisa.spec().partition();
  Replays mean;
  for (int64_t slice = 0; slice < 4; ++slice) {
    const Store replayed = stores.copy(sisa, "replayed");
    const base::RealClock clock;
    const double cpu_s = process_cpu_s();
    unlearn::delete_records(replayed, std::vector<int64_t>{partition.records_in({slice % 2, slice}).front()});
    mean.records += stores.train(replayed).examples / 4;
    mean.seconds += base::seconds(clock.now()) / 4;
    mean.cpu_s += (process_cpu_s() - cpu_s) / 4;
  }
  return mean;
}

}  // namespace

void prove_s3t_downtime(const ProofOptions& options, const S3tStores& stores, const Store& s3t, const Store& sisa, Findings& findings,
                        base::Log& log) {
  const unlearn::Partition partition = s3t.spec().partition();
  double slowest = 0, mean = 0, mean_cpu_s = 0;
  for (int64_t slice = 0; slice < 4; ++slice) {
    const std::vector<int64_t> record{partition.records_in({slice % 2, slice}).front()};
    const Store asked = stores.copy(s3t, "asked");
    cli::LanguageModel model = stores.open(asked);
    (void)stores.predictions(model);
    const base::RealClock clock;
    const double cpu_s = process_cpu_s();
    double answered = INFINITY;
    unlearn::delete_records(asked, record, [&](const unlearn::Deleted&) {
      if (!cli::has_new_deletions(model)) return;
      model = stores.open(asked);
      (void)stores.predictions(model);
      answered = base::seconds(clock.now());
      mean_cpu_s += (process_cpu_s() - cpu_s) / 4;
    });
    slowest = std::max(slowest, answered), mean += answered / 4;
  }
  const Replays equal = replay_deletions(stores, sisa);
  findings.at_most("4. seconds from a request to predictions without the record, slowest of 4", equal.seconds, slowest, 0.1);
  findings.at_least("4. SISA's retraining over S3T's answer, as many epochs, means of 4 deletions", 1, equal.seconds / mean, 50);
  const auto report = [&](const char* epochs, const Replays& of) {
    log.info("{}: a deletion costs SISA {:.0f} records read again and {:.2f} s in the mean, {:.0f} times S3T's answer of {:.1f} ms", epochs,
             of.records, of.seconds, of.seconds / mean, 1000 * mean);
    log.info("{}: in CPU time, which other work on the machine does not lengthen: {:.2f} s, {:.0f} times {:.1f} ms", epochs, of.cpu_s,
             of.cpu_s / mean_cpu_s, 1000 * mean_cpu_s);
  };
  report("4 epochs", equal);
  if (!options.full) return;
  const Store longer = stores.trained("sisa-15", {"unlearning.method=sisa", "train.epochs=15"});  // as the published runs
  report("15 epochs (reported)", replay_deletions(stores, longer));
}

// 5. Layers below a stage are run once for each record.
void prove_s3t_cache(const ProofOptions& options, const S3tStores& stores, Findings& findings) {
  const int rounds = options.full ? 5 : 2;
  double with = INFINITY, without = INFINITY;
  int64_t different = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::string> sets{"unlearning.shards=1", "unlearning.slices=4", "unlearning.budget=1", "train.epochs=15"};
    for (const bool cached : {true, false}) {
      std::vector<std::string> own = sets;
      if (!cached) own.emplace_back("unlearning.cache_bytes=0");
      const Store store = stores.make(fmt::format("{}-{}", cached ? "cached" : "uncached", round), own);
      const unlearn::TrainedStage stage = stores.train_stage(store, {{.shard = 0, .slices = {0}}});
      unlearn::write_artifact(store, stage.artifact, stage.tensors, base::real_disk());
      double& best = cached ? with : without;
      best = std::min(best, stage.seconds);
    }
    const Store a(fs::path(options.scratch) / fmt::format("cached-{}", round)),
        b(fs::path(options.scratch) / fmt::format("uncached-{}", round));
    different += bytes_of_artifact(a, "s0-0") != bytes_of_artifact(b, "s0-0") ? 1 : 0;
  }
  findings.at_most("5. first stages whose artifact differs in a byte with and without the cache of frozen layers", 0,
                   static_cast<double>(different), 0);
  findings.at_least("5. seconds of the first of 4 stages without the cache, over those with it", without, without / with, 1.5);
}

}  // namespace cairn::study
