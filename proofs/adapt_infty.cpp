// Adapt-infinity: one model, datasets that arrive one after the other, a pool that stays small. Eight skills with instructions and
// "images", against training on each in turn and against replay at random; scores, projections and ranks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "proofs/layout_run.h"
#include "proofs/sampler_runs.h"
#include "proofs/study_tables.h"
#include "study/claims.h"
#include "study/lifelong.h"
#include "study/lifelong_select.h"
#include "study/sample_scores.h"
#include "train/build.h"
#include "train/train.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSkillSeeds = 8, kSkills = 8, kImageDims = 16, kInstructionDims = 8, kAnswers = 6, kAnswerHidden = 32;
constexpr int64_t kBudget = 2000, kCap = 6000, kRowsOfDataset = 4000, kRowsOfTest = 250, kRareSkill = 5;
constexpr float kCopyNoise = 0.05F;

const std::vector<std::vector<std::pair<int64_t, int64_t>>> kArrivals{
    {{0, 2800}, {1, 1200}}, {{2, 2400}, {3, 1400}, {0, 200}}, {{4, 3600}, {5, 400}}, {{6, 2400}, {7, 1400}, {1, 200}}};

// The answer to an image, by a random network of the skill with one hidden layer.
class SkillTeacher {
 public:
  explicit SkillTeacher(const base::Random& random) : first_(kAnswerHidden * kImageDims), second_(kAnswers * kAnswerHidden) {
    random.for_purpose("first").fill_normal(first_);
    random.for_purpose("second").fill_normal(second_);
  }
  int64_t answer(const float* image) const {
    std::vector<float> outputs(kAnswers);
    for (size_t h = 0; h < kAnswerHidden; ++h) {
      const float in = std::inner_product(image, image + kImageDims, first_.begin() + static_cast<int64_t>(h) * kImageDims, 0.0F);
      for (size_t c = 0; c < kAnswers; ++c) outputs[c] += second_[c * kAnswerHidden + h] * std::max(in, 0.0F);
    }
    return std::max_element(outputs.begin(), outputs.end()) - outputs.begin();
  }

 private:
  std::vector<float> first_, second_;
};

// The four datasets in turn, then test rows, equally many of each skill. In the datasets every third row is nearly that two before it.
// Columns: the skill, and whether a row is such a copy.
MadeTable skill_rows(uint64_t seed) {
  const base::Random random = base::Random(seed).for_purpose("skills");
  std::vector<SkillTeacher> teachers;
  for (uint64_t s = 0; s < kSkills; ++s) teachers.emplace_back(random.for_purpose("teacher").for_index(s));
  MadeTable made{.features = kImageDims + kInstructionDims, .columns = {{"skill", {}}, {"copy", {}}}};
  const auto width = static_cast<size_t>(made.features);
  const auto add = [&](int64_t skill, int64_t copied) {
    const base::Random of_row = random.for_purpose("row").for_index(static_cast<uint64_t>(made.rows()));
    std::vector<float> x(width);
    of_row.fill_normal(x);
    int64_t label = 0;
    if (copied >= 0) {
      for (size_t k = 0; k < width; ++k) x[k] = made.values[static_cast<size_t>(copied) * width + k] + kCopyNoise * x[k];
      label = made.labels[static_cast<size_t>(copied)];
    } else {  // the instruction: a code of signs, orthogonal to those of the other skills
      for (size_t k = kImageDims; k < width; ++k) x[k] = 0.3F * x[k] + (std::popcount(k & static_cast<size_t>(skill)) % 2 ? -1.5F : 1.5F);
      label = teachers[static_cast<size_t>(skill)].answer(x.data());
    }
    made.values.insert(made.values.end(), x.begin(), x.end());
    made.labels.push_back(label);
    made.columns[0].second.push_back(skill);
    made.columns[1].second.push_back(copied >= 0);
  };
  for (const auto& dataset : kArrivals)
    for (const auto& [skill, rows] : dataset)
      for (int64_t i = 0; i < rows; ++i) add(skill, i % 3 == 2 ? made.rows() - 2 : -1);
  for (int64_t i = 0; i < kRowsOfTest * kSkills; ++i) add(i % kSkills, -1);
  return made;
}

struct SkillStream {
  fs::path folder;
  MadeTable rows;
  SkillStream(const fs::path& where, uint64_t seed) : folder(where), rows(skill_rows(seed)) {
    fs::create_directories(folder);
    const auto datasets = static_cast<int64_t>(kArrivals.size());
    for (int64_t d = 0; d < datasets; ++d) write_made_table(folder / fmt::format("d{}.csv", d), rows, d * kRowsOfDataset, kRowsOfDataset);
    write_made_table(folder / "test.csv", rows, datasets * kRowsOfDataset, kRowsOfTest * kSkills);
  }
  int64_t skill(int64_t sample) const { return rows.columns[0].second[static_cast<size_t>(sample)]; }
  double count(const std::vector<int64_t>& samples, int64_t of) const {
    return static_cast<double>(std::count_if(samples.begin(), samples.end(), [&](int64_t one) { return skill(one) == of; }));
  }
  // The least share, over arrivals, of the pool's samples that are of the main skill of their cluster.
  double purity(const LifelongResult& result) const {
    double least = 1;
    for (const LifelongStep& step : result.steps) {
      std::map<int32_t, std::map<int64_t, int64_t>> counts;
      for (size_t i = 0; i < step.clustered.size(); ++i) ++counts[step.labels[i]][skill(step.clustered[i])];
      int64_t main = 0;
      for (const auto& [cluster, skills] : counts)
        main += std::max_element(skills.begin(), skills.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->second;
      least = std::min(least, static_cast<double>(main) / static_cast<double>(step.clustered.size()));
    }
    return least;
  }
  // The share of the planted pairs of which at most one is left.
  double parted(const std::vector<int64_t>& pool) const {
    const std::set<int64_t> left(pool.begin(), pool.end());
    double pairs = 0, apart = 0;
    for (int64_t i = 2; i < static_cast<int64_t>(kArrivals.size()) * kRowsOfDataset; ++i)
      if (rows.columns[1].second[static_cast<size_t>(i)] == 1) ++pairs, apart += left.count(i) == 0 || left.count(i - 2) == 0;
    return apart / pairs;
  }
};

base::Recipe::File skills_recipe(const SkillStream& stream, uint64_t seed, const std::string& keys) {
  std::string files;
  for (size_t d = 0; d < kArrivals.size(); ++d)
    files += fmt::format("{}\"{}\"", d == 0 ? "" : ", ", (stream.folder / fmt::format("d{}.csv", d)).string());
  return {.text = fmt::format(R"(
[study]
kind = "lifelong"
datasets = [{}]
budget = {}
pool_cap = {}
clusters = 20
skills = "skill"
{}
[study.vectors]
dim = 2048
[model]
kind = "classifier"
hidden = [128, 64]
[data]
kind = "table"
test_file = "{}"
ignore = ["skill", "copy"]
standardize = false
[train]
epochs = 8
steps = 0
global_batch = 50
micro_batch = 50
seed = {}
[optim]
learning_rate = 0.002
weight_decay = 0.0
warmup_steps = 10
[eval]
every = 0
[snapshot]
every = 0
last = false
[log]
tensorboard = false
trace = false
)",
                              files, kBudget, kCap, keys, (stream.folder / "test.csv").string(), seed),
          .name = "the proof"};
}

comm::LocalOptions ranks_without_log() {
  comm::LocalOptions options;
  options.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  return options;
}

void on_ranks_without_log(int ranks, const std::function<void(comm::World&)>& body) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, ranks_without_log()).run(body))
    if (error) std::rethrow_exception(error);
}

LifelongResult run_stream(const SkillStream& stream, uint64_t seed, const std::string& keys, const fs::path& out, int ranks = 1) {
  const LifelongRecipe recipe = read_lifelong(skills_recipe(stream, seed, keys), {});
  const base::Stop never;
  const StudySetup setup{.out = out};
  LifelongResult result;
  on_ranks_without_log(ranks, [&](comm::World& world) {
    LifelongResult mine = run_lifelong(world, recipe, setup, never);
    if (world.rank() == 0) result = std::move(mine);
  });
  return result;
}

// What one inner seed shows.
struct StreamOutcome {
  double adapt = 0, sequential = 0, replay = 0;  // final mean accuracy
  double forgets = 0, sequential_forgets = 0;    // mean fall below the best
  double rare = 0, rare_left = 0;                // samples of the rare skill: selected, left in the pool
  double purity = 0, parted = 0, other_sizes = 0;
};

StreamOutcome compare_streams(const fs::path& folder, uint64_t seed, const std::string& pictures) {
  const SkillStream stream(folder, seed);
  const LifelongResult adapt = run_stream(stream, seed, "", folder / "adapt"),
                       sequential = run_stream(stream, seed, "method = \"sequential\"", folder / "sequential"),
                       replay = run_stream(stream, seed, "method = \"replay\"", folder / "replay");
  StreamOutcome found{.adapt = adapt.accuracy(),
                      .sequential = sequential.accuracy(),
                      .replay = replay.accuracy(),
                      .forgets = adapt.forgetting(),
                      .sequential_forgets = sequential.forgetting()};
  found.rare = stream.count(adapt.steps[2].selected, kRareSkill);
  found.rare_left = stream.count(adapt.steps[2].pool, kRareSkill);
  found.purity = stream.purity(adapt);
  found.parted = stream.parted(adapt.steps.back().pool);
  for (const LifelongResult* one : {&adapt, &sequential, &replay})
    for (const LifelongStep& step : one->steps) {
      found.other_sizes += static_cast<int64_t>(step.selected.size()) != kBudget || step.pool_after > kCap;
      found.other_sizes += std::set<int64_t>(step.selected.begin(), step.selected.end()).size() != step.selected.size();
    }
  if (!pictures.empty() && seed % 100 == 0)
    for (const char* name : {"accuracy", "pool"})
      fs::copy_file(folder / "adapt" / fmt::format("{}.svg", name), fs::path(pictures) / fmt::format("adapt-infty-{}.svg", name),
                    fs::copy_options::overwrite_existing);
  fs::remove_all(folder);
  return found;
}

// 1 to 5.
void eight_skills(const ProofOptions& options, Findings& findings, base::Log& log) {
  std::vector<StreamOutcome> found(kSkillSeeds);
  in_parallel(kSkillSeeds, [&](int64_t inner) {
    found[static_cast<size_t>(inner)] = compare_streams(fs::path(options.scratch) / fmt::format("skills-{}", inner),
                                                        options.seed * 100 + static_cast<uint64_t>(inner), options.pictures);
  });
  for (const StreamOutcome& one : found)
    log.info(
        "accuracy {:.3f} (sequential {:.3f}, replay {:.3f}), forgetting {:.3f} (sequential {:.3f}), rare skill: {:.0f} selected, {:.0f} "
        "left; purity {:.2f}, pairs parted {:.3f}",
        one.adapt, one.sequential, one.replay, one.forgets, one.sequential_forgets, one.rare, one.rare_left, one.purity, one.parted);
  const auto mean = [&](const auto& of) {
    double sum = 0;
    for (const StreamOutcome& one : found) sum += of(one);
    return sum / static_cast<double>(found.size());
  };
  const std::string means = fmt::format(", mean of {} inner seeds", kSkillSeeds);
  const double sequential = mean([](const StreamOutcome& one) { return one.sequential; });
  findings.at_least("1. final accuracy over 8 skills, beyond training on each dataset in turn" + means, sequential,
                    mean([](const StreamOutcome& one) { return one.adapt; }) - sequential, 0.15);
  const double forgets = mean([](const StreamOutcome& one) { return one.sequential_forgets; });
  findings.at_most("1. forgetting, as a share of that of training in turn" + means, 1,
                   mean([](const StreamOutcome& one) { return one.forgets; }) / forgets, 1.0 / 3);
  const double replay = mean([](const StreamOutcome& one) { return one.replay; });
  findings.at_least("2. final accuracy, beyond replay at random" + means, replay,
                    mean([](const StreamOutcome& one) { return one.adapt; }) - replay, -0.03);
  findings.at_least("3. samples of a skill with 4 % of the pool that are selected (at random: 80)" + means, 80,
                    mean([](const StreamOutcome& one) { return one.rare; }), 1.15 * 80);
  findings.at_least("3. samples of that skill that are left after pruning (at random: 240)" + means, 240,
                    mean([](const StreamOutcome& one) { return one.rare_left; }), 1.1 * 240);
  findings.at_least("4. purity of clusters in skills, at the worst of four arrivals" + means, 1,
                    mean([](const StreamOutcome& one) { return one.purity; }), 0.75);
  findings.at_least("5. planted near-copies: share of the pairs of which at most one is left in the end" + means, 0,
                    mean([](const StreamOutcome& one) { return one.parted; }), 0.9);
  findings.at_most("7. selections that do not have just the budget's samples, or one twice; pools above the cap", 0,
                   mean([](const StreamOutcome& one) { return one.other_sizes; }), 0);
}

// The probability that a value of `high` is above one of `low`; ties count half.
double area_under_curve(const std::vector<double>& low, const std::vector<double>& high) {
  double above = 0;
  for (const double a : low)
    for (const double b : high) above += b > a ? 1 : b == a ? 0.5 : 0;
  return above / static_cast<double>(low.size() * high.size());
}

// 6. Half of the samples can be answered from the text alone: image grounding tells which.
void grounding_of_images(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kRows = 4000, kText = 8;
  const base::Random random = base::Random(options.seed).for_purpose("grounding");
  const SkillTeacher teacher(random.for_purpose("teacher"));
  MadeTable made{.features = kImageDims + kText, .columns = {{"text", {}}}};
  for (int64_t i = 0; i < kRows; ++i) {
    const base::Random of_row = random.for_index(static_cast<uint64_t>(i));
    std::vector<float> x(kImageDims + kText);
    of_row.fill_normal(x);
    const bool by_text = of_row.for_purpose("by text").uniform(0) < 0.5;
    const int64_t label = by_text ? static_cast<int64_t>(of_row.for_purpose("label").below(0, kAnswers)) : teacher.answer(x.data());
    for (size_t k = kImageDims; k < x.size(); ++k)
      x[k] = 0.3F * x[k] + (by_text && static_cast<int64_t>(k) == kImageDims + label ? 1.5F : 0.0F);
    made.values.insert(made.values.end(), x.begin(), x.end());
    made.labels.push_back(label);
    made.columns[0].second.push_back(by_text);
  }
  const fs::path folder = fs::path(options.scratch) / "grounding";
  fs::create_directories(folder);
  write_made_table(folder / "rows.csv", made);
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {kind = "classifier", hidden = [128, 64]}
    data = {kind = "table", ignore = ["text"], standardize = false}
    train = {steps = 0, epochs = 15, global_batch = 50}
    optim = {learning_rate = 0.002, weight_decay = 0.0, warmup_steps = 10}
    eval = {every = 0, fraction = 0.1}
    log = {tensorboard = false, trace = false}
    snapshot = {every = 0, last = false}
  )",
                                            "grounding");
  recipe.set("data.path", (folder / "rows.csv").string(), "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "proof");
  std::vector<double> text, image;
  const base::Stop never;
  on_ranks_without_log(1, [&](comm::World& world) {
    train::run(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {}, never, {.at_end = [&](train::Job& job) {
                 std::vector<int64_t> ids(kRows / 2);
                 std::iota(ids.begin(), ids.end(), int64_t{0});
                 std::vector<int64_t> columns(kImageDims);
                 std::iota(columns.begin(), columns.end(), int64_t{0});
                 const std::vector<double> grounding =
                     image_grounding(score_samples(job, ids, {.zeroed = columns}).loss, score_samples(job, ids).loss);
                 for (size_t i = 0; i < ids.size(); ++i) (made.columns[0].second[i] == 1 ? text : image).push_back(grounding[i]);
               }});
  });
  findings.at_least("6. image grounding of samples that need the image, against those that the text answers: AUC", 0.5,
                    area_under_curve(text, image), 0.8);
}

// 7. The same selections on any number of ranks.
void selections_on_ranks(const ProofOptions& options, Findings& findings, base::Log& log) {
  const SkillStream stream(fs::path(options.scratch) / "ranks", options.seed + 70);
  LifelongResult alone;
  double differ = 0;
  for (const int ranks : {1, 2, 4}) {
    LifelongResult one = run_stream(stream, options.seed, "", stream.folder / fmt::format("{}", ranks), ranks);
    if (ranks == 1) alone = std::move(one);
    for (size_t t = 0; ranks > 1 && t < one.steps.size(); ++t) {
      std::vector<int64_t> both;
      std::set_intersection(one.steps[t].selected.begin(), one.steps[t].selected.end(), alone.steps[t].selected.begin(),
                            alone.steps[t].selected.end(), std::back_inserter(both));
      log.info("{} ranks, arrival {}: {} of {} samples as on one rank", ranks, t, both.size(), kBudget);
      differ += static_cast<double>(kBudget) - static_cast<double>(both.size());
    }
  }
  findings.at_most("7. 2 and 4 ranks, four arrivals: selected samples that are not those of one rank", 0, differ, 0);
}

// 7. Projected gradients of a decoder's adapters, whole and on two shards.
void projection_on_shards(const ProofOptions& options, Findings& findings) {
  const fs::path base = fs::path(options.scratch) / "base";
  ProofOptions stories = options;
  stories.data.clear();
  const Assignments shape{"model.layers=2", "model.embed=32", "model.heads=4", "model.kv_heads=2", "model.mlp=48", "data.packing=none"};
  train_layout({with(small_decoder(stories, shape), {"train.steps=4", "train.global_batch=8", "snapshot.last=true"}), 1, base});
  const auto vectors = [&](int ranks, const Assignments& sets) {
    SampleScores found;
    on_ranks_without_log(ranks, [&](comm::World& world) {
      const base::Recipe recipe =
          with(with(small_decoder(stories, {"data.packing=none", "model.from=" + base.string(), "model.lora.rank=4",
                                            "model.lora.targets=[\"q_proj\", \"v_proj\", \"o_proj\", \"up_proj\", \"down_proj\"]"}),
                    {"train.steps=4", "train.global_batch=8"}),
               sets);
      const std::unique_ptr<train::Job> job = train::build(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {});
      std::vector<int64_t> ids(24);
      std::iota(ids.begin(), ids.end(), int64_t{3});
      SampleScores mine = score_samples(*job, ids, {.gradients = true, .layer = "all", .projection = {.dim = 1024}});
      if (world.rank() == 0) found = std::move(mine);
    });
    return found;
  };
  const SampleScores whole = vectors(1, {}), halves = vectors(2, {"mesh.tp=2"}), both = vectors(4, {"mesh.tp=2", "mesh.dp=2"});
  findings.at_least("7. projected gradients of LoRA in a decoder: entries other than 0, as a share", 1,
                    whole.vectors.ne(0).to(at::kDouble).mean().item<double>(), 0.9);
  findings.at_most("7. tp = 2 against the whole: largest difference of an entry", 0,
                   (whole.vectors - halves.vectors).abs().max().item<double>(), 1e-5);
  findings.at_most("7. tp = 2, dp = 2 against the whole: largest difference of an entry", 0,
                   (whole.vectors - both.vectors).abs().max().item<double>(), 1e-5);
  double norms = 0;
  for (size_t i = 0; i < whole.grand.size(); ++i)
    norms = std::max(norms, std::abs(whole.grand[i] - halves.grand[i]) / std::max(1e-12, whole.grand[i]));
  findings.at_most("7. likewise, norms of gradients: largest relative difference", 0, norms, 1e-4);
}

// 7. Gradients from losses alone, of a classifier with 100 parameters.
void zero_order(const ProofOptions& options, Findings& findings) {
  constexpr int64_t kRows = 40, kSamples = 6, kDirections = 10'000;
  const base::Random random = base::Random(options.seed).for_purpose("zero order");
  MadeTable made{.features = 7};
  made.values.resize(kRows * 7);
  random.fill_normal(made.values);
  for (uint64_t i = 0; i < kRows; ++i) made.labels.push_back(static_cast<int64_t>(random.for_purpose("label").below(i, 4)));
  for (int64_t i = 0; i < 4; ++i) made.labels[static_cast<size_t>(i)] = i;
  const fs::path file = fs::path(options.scratch) / "small.csv";
  write_made_table(file, made);
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {kind = "classifier", hidden = [8]}
    data = {kind = "table", standardize = false}
    train = {steps = 1, global_batch = 6}
    eval = {every = 0, fraction = 0.1}
  )",
                                            "zero order");
  recipe.set("data.path", file.string(), "proof");
  recipe.set("train.seed", static_cast<int64_t>(options.seed), "proof");
  double least = 1;
  int64_t parameters = 0;
  on_ranks_without_log(1, [&](comm::World& world) {
    const std::unique_ptr<train::Job> job = train::build(world, recipe, {.out = {}, .cache = {}, .terminal = nullptr}, {});
    parameters = job->engine.model->elements();
    std::vector<int64_t> ids(kSamples);
    std::iota(ids.begin(), ids.end(), int64_t{0});
    const ScoreOptions scores{.gradients = true, .layer = "all", .projection = {.dim = 1024}};
    const at::Tensor exact = score_samples(*job, ids, scores).vectors;
    const at::Tensor estimate = zero_order_vectors(*job, ids, scores, {.directions = kDirections, .seed = options.seed});
    least = (exact * estimate).sum(1).min().item<double>();
  });
  findings.at_most("7. parameters of the small classifier", 100, static_cast<double>(std::abs(parameters - 100)), 0);
  findings.at_least("7. gradients from losses at 10,000 perturbations: least cosine with the exact ones", 1, least, 0.95);
}

}  // namespace

void prove_adapt_infty(const ProofOptions& options, Findings& findings, base::Log& log) {
  eight_skills(options, findings, log);
  grounding_of_images(options, findings);
  selections_on_ranks(options, findings, log);
  projection_on_shards(options, findings);
  zero_order(options, findings);
  findings.skip(
      "H200: vectors of 8192 numbers for 50,000 samples under a decoder of 130M with adapters of rank 16, at 0.6 of the speed of training",
      "this proof has no part for a GPU");
}

}  // namespace cairn::study
