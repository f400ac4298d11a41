// S3T on one GPU: a decoder of about 160 million parameters, 16 jobs (4 shards in 4 orders) one after the other.
#include <filesystem>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "data/selection/pool.h"
#include "kernels/aten.h"
#include "proofs/gpu_runs.h"
#include "proofs/s3t_parts.h"
#include "study/claims.h"
#include "unlearn/audit.h"
#include "unlearn/delete_records.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

S3tWorld large_world(const ProofOptions& options, base::Log& log) {
  constexpr size_t kRecords = 1600, kHeldOut = 64;
  must_train_on_gpu(
      options, log, "base",
      {.sets = {"model.layers=20", "model.embed=768", "model.heads=12", "model.kv_heads=12", "model.mlp=2048", "data.vocab=16384",
                "data.length=256", "data.stories_bytes=20000000", "train.global_batch=32", "train.precision=bf16", "eval.every=0",
                "log.samples=0", "snapshot.every=300", fmt::format("train.seed={}", options.seed)},
       .steps = 300,
       .limit_s = 300});
  S3tWorld world{.base = fs::path(options.scratch) / "base",
                 .length = 256,
                 .judged = 64,
                 .sets = {"unlearning.shards=4", "unlearning.slices=4", "unlearning.budget=4", "train.precision=bf16",
                          "train.deterministic=true", "train.epochs=3", "train.global_batch=32"},
                 .device = "cuda"};
  data::DataOptions stories;
  stories.stories_seed = static_cast<int64_t>(options.seed) + 1000;
  stories.path = options.data;
  data::for_each_record(stories, "", [&](const data::PoolRecord& record) {
    if (world.held_out.size() < kHeldOut)
      world.held_out.push_back(record.text);
    else if (world.records.size() < kRecords)
      world.records.push_back(record.text);
  });
  return world;
}

}  // namespace

void prove_s3t_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const S3tStores stores(options, log, large_world(options, log));
  const auto record =
      static_cast<int64_t>(base::Random(options.seed).for_purpose("the record").below(0, static_cast<uint64_t>(stores.records())));
  const base::RealClock clock;
  const unlearn::Store s3t = stores.trained("s3t", {});
  const double s3t_s = base::seconds(clock.now());
  const unlearn::Store sisa = stores.trained("sisa", {"unlearning.method=sisa"});
  const double sisa_s = base::seconds(clock.now()) - s3t_s;
  log.info("end to end: S3T with 4 orders {:.0f} s, SISA {:.0f} s ({:.2f} times)", s3t_s, sisa_s, s3t_s / sisa_s);
  findings.at_least("stages of 16 jobs that were trained on one GPU", 0, static_cast<double>(s3t.artifact_names().size()), 64);
  findings.at_most("end to end: S3T with 4 orders over SISA, which has one", sisa_s, s3t_s / sisa_s, 4);

  const unlearn::Store without = stores.trained("without", {}, {record});
  const unlearn::Store deleted = stores.copy(s3t, "deleted");
  cli::LanguageModel model = stores.open(deleted);
  (void)stores.predictions(model);
  const base::RealClock asked;
  double answer_s = 0;
  unlearn::delete_records(deleted, std::vector<int64_t>{record}, [&](const unlearn::Deleted&) {
    model = stores.open(deleted);
    (void)stores.predictions(model);
    answer_s = base::seconds(asked.now());
  });
  findings.at_most("after a deletion, live artifacts that differ in a byte from a store without the record", 0,
                   static_cast<double>(differing(deleted, without, live_names(deleted))), 0);
  findings.at_most("what an audit finds wrong", 0, static_cast<double>(unlearn::audit(deleted).trouble.size()), 0);
  const base::RealClock replay;
  unlearn::delete_records(sisa, std::vector<int64_t>{record});
  stores.train(sisa);
  const double retraining_s = base::seconds(replay.now());
  log.info("a deletion: S3T answers after {:.2f} s (with the base model opened again), SISA after {:.1f} s", answer_s, retraining_s);
  findings.at_least("SISA's retraining over S3T's answer", retraining_s, retraining_s / answer_s, 1);
}

}  // namespace cairn::study
