#include "study/hdee.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/stop.h"
#include "data/corpus.h"
#include "data/tokenizer/open_tokenizer.h"
#include "evaluate/ensemble/ensemble_file.h"
#include "kernels/device.h"
#include "snapshot/pretrained.h"
#include "snapshot/snapshot.h"
#include "study/hdee_report.h"
#include "train/options.h"
#include "train/report/run_json.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

using Keys = std::vector<std::pair<std::string, base::Setting>>;

constexpr int64_t kLedgerBytesMax = 16 << 20, kStudyBytesMax = 16 << 20;

class Study {
 public:
  Study(HdeeRecipe recipe, const HdeeSetup& setup, base::Log& log, const base::Stop& stop)
      : recipe_(std::move(recipe)), setup_(setup), log_(log), stop_(stop), out_(fs::absolute(setup.out)) {
    base::make_folder(out_);
    for (const auto& [name, island] : recipe_.islands)
      hosts_.push_back({{name, island.speed, static_cast<int64_t>(island.memory_gib * static_cast<double>(1 << 30))},
                        island.cores,
                        island.launch,
                        island.device});
  }

  HdeeResult run() {
    settle_tokenizer();
    domains_ =
        open_domains(recipe_, {.tokenizer_file = tokenizer_file(), .cache_folder = setup_.cache.string(), .threads = setup_.threads}, log_);
    gather_facts();
    if (!setup_.dry_run) check_same_study();
    if (recipe_.study.difficulty != "given" && !setup_.dry_run) find_difficulty();
    result_.plan = plan_hdee(recipe_, data_);
    if (setup_.dry_run) return std::move(result_);
    for (const std::string& note : result_.plan.notes) log_.info("{}", note);
    for (const auto& [line, _] : recipe_.lines) result_.lines.push_back(line);
    train_seeds(sizes_in_use());
    train_experts();
    measure();
    write_ensembles();
    write_report(result_, out_);
    return std::move(result_);
  }

 private:
  std::string tokenizer_file() const { return (out_ / "tokenizer.json").string(); }

  // Experts are scored on the GPU if some were trained on this machine's GPU.
  at::Device device() const {
    const bool on_gpu = std::ranges::any_of(hosts_, [](const IslandHost& one) { return one.device == "cuda" && one.launch.empty(); });
    return kernels::device_from_name(on_gpu && kernels::can_use_cuda() ? "cuda" : "cpu");
  }

  // The tokenizer of all experts: that of the given seeds, or the one that [data] names or trains.
  void settle_tokenizer() {
    std::unique_ptr<data::Tokenizer> tokenizer;
    std::string origin;
    for (const auto& [name, size] : recipe_.sizes) {
      if (size.from.empty()) continue;
      const snapshot::ModelOutline outline = snapshot::read_outline(size.from);
      if (outline.tokenizer_file.empty()) base::fail_input("study.size.{}.from = {}: it has no tokenizer", name, size.from);
      auto own = data::open_tokenizer(outline.tokenizer_file);
      if (tokenizer && data::hash(*own) != data::hash(*tokenizer))
        base::fail_input("study.size.{}.from = {}: its tokenizer is another than that of {}: experts of one ensemble must share one", name,
                         size.from, origin);
      tokenizer = std::move(own);
      origin = size.from;
    }
    if (!tokenizer && fs::exists(tokenizer_file())) tokenizer = data::read_tokenizer(tokenizer_file());
    if (!tokenizer) {
      base::Recipe own = recipe_.training_with({});
      const data::DataOptions data = own.read(data::data_schema());
      tokenizer = data::named_tokenizer(data);
      if (!tokenizer)
        tokenizer =
            std::move(data::open_token_streams(data, {.cache_folder = setup_.cache.string(), .threads = setup_.threads}, log_).tokenizer);
    }
    base::write_atomically(tokenizer_file(), tokenizer->json());
    const auto read_back = data::read_tokenizer(tokenizer_file());
    tokenizer_ = data::hash(*read_back);
    data_.vocab = read_back->vocab_size();
  }

  // Resumes what is there only if it was trained with the same configuration.
  void check_same_study() const {
    base::OrderedJson configuration{{"training", recipe_.training.text}, {"sets", recipe_.sets}};
    const auto describe = [](const auto& schema, const auto& options) {
      std::string text;
      for (const base::Setting& value : schema.values_of(options)) text += base::to_toml(value) + " ";
      return text;
    };
    configuration["seed"] = describe(seed_schema(), recipe_.seed);
    for (const auto& [name, size] : recipe_.sizes) configuration["sizes"][name] = describe(model::model_schema(), size);
    for (const auto& [name, domain] : recipe_.domains) configuration["domains"][name] = fs::absolute(domain.path).string();
    const fs::path file = out_ / "study.json";
    if (fs::exists(file)) {
      const base::OrderedJson before = base::parse_ordered_json(base::read_file(file, kStudyBytesMax));
      for (const auto& [key, value] : configuration.items())
        if (!before.is_object() || !before.contains(key) || before[key] != value)
          base::fail_input("{}: a study with other {} lies there: its experts cannot be gone on with; choose another --out", out_.string(),
                           key == "training" || key == "sets" ? "training keys"
                           : key == "seed"                    ? "seeds"
                                                              : key);
    }
    base::write_atomically(file, base::pretty(configuration) + "\n");
    base::write_atomically(out_ / "training.toml", recipe_.training.text);
  }

  void gather_facts() {
    base::Recipe own = recipe_.training_with({});
    const train::TrainOptions train = own.read(train::train_schema());
    data_.length = own.read(data::data_schema()).length;
    data_.batch = train.global_batch;
    data_.micro_batch = train.micro_batch == 0 ? train.global_batch : train.micro_batch;
    for (const DomainText& domain : domains_) data_.tokens[domain.name] = domain.training_tokens;
  }

  fs::path seed_folder(const std::string& size) const { return out_ / "seeds" / size; }
  // The checkpoint that experts of a size start from; empty: random weights.
  std::string start_of(const std::string& size) const {
    const std::string& given = recipe_.sizes.at(size).from;
    if (!given.empty()) return given;
    return recipe_.seed.steps > 0 ? seed_folder(size).string() : "";
  }

  // The model keys of a size without a checkpoint.
  Keys shape_keys(const std::string& size) const {
    const auto schema = model::model_schema();
    const std::vector<base::Setting> values = schema.values_of(recipe_.sizes.at(size));
    Keys keys;
    for (size_t i = 0; i < values.size(); ++i) keys.emplace_back("model." + schema.section().entries[i].key, values[i]);
    return keys;
  }

  ExpertRun make_run(std::string name, fs::path folder, Keys keys) const {
    keys.emplace_back("data.tokenizer_file", tokenizer_file());
    ExpertRun run{.name = std::move(name), .out = std::move(folder), .arguments = {}};
    for (const auto& [key, value] : keys)
      if (key == "train.steps") run.steps = std::get<int64_t>(value);
    for (const std::string& set : recipe_.sets) run.arguments.insert(run.arguments.end(), {"--set", set});
    for (const auto& [key, value] : keys)
      run.arguments.insert(run.arguments.end(), {"--set", fmt::format("{}={}", key, base::to_toml(value))});
    return run;
  }

  Keys domain_keys(const std::string& domain, int64_t steps, const std::string& from, const std::string& size) const {
    Keys keys = from.empty() ? shape_keys(size) : Keys{{"model.from", from}};
    keys.emplace_back("data.path", fs::absolute(recipe_.domains.at(domain).path).string());
    keys.emplace_back("train.steps", steps);
    return keys;
  }

  std::vector<ExpertJobResult> run_all(const std::vector<ExpertJob>& jobs) {
    return run_expert_jobs(jobs,
                           {.program = setup_.program,
                            .recipe = out_ / "training.toml",
                            .hosts = hosts_,
                            .restarts = recipe_.study.restarts,
                            .on_start = setup_.on_start},
                           log_, stop_);
  }

  std::set<std::string> sizes_in_use() const {
    std::set<std::string> sizes;
    for (const std::string& mode : recipe_.modes())
      for (const PlannedExpert& expert : result_.plan.mode(mode).experts) sizes.insert(expert.size);
    return sizes;
  }

  void train_seeds(const std::set<std::string>& sizes) {
    if (recipe_.seed.steps == 0) return;
    std::vector<ExpertJob> jobs;
    for (const std::string& size : sizes) {
      if (!recipe_.sizes.at(size).from.empty()) continue;
      Keys keys = shape_keys(size);
      keys.emplace_back("train.steps", recipe_.seed.steps);
      if (recipe_.seed.learning_rate > 0) keys.emplace_back("optim.learning_rate", recipe_.seed.learning_rate);
      if (recipe_.seed.warmup_steps >= 0) keys.emplace_back("optim.warmup_steps", recipe_.seed.warmup_steps);
      const SizeFacts facts = facts_of(recipe_.sizes.at(size), data_.vocab, data_.length, data_.micro_batch);
      jobs.push_back({"seed " + size,
                      {make_run("seed " + size, seed_folder(size), std::move(keys))},
                      static_cast<double>(facts.matmul_parameters),
                      facts.bytes});
    }
    run_all(jobs);
  }

  // Probes each domain with a short run of the smallest size, and for `gain` also of the largest.
  void find_difficulty() {
    std::string smallest, largest;
    std::map<std::string, SizeFacts> facts;
    for (const auto& [line, options] : recipe_.lines) {
      const std::string& size = options.size;
      facts[size] = facts_of(recipe_.sizes.at(size), data_.vocab, data_.length, data_.micro_batch);
      if (smallest.empty() || facts[size].matmul_parameters < facts[smallest].matmul_parameters) smallest = size;
      if (largest.empty() || facts[size].matmul_parameters > facts[largest].matmul_parameters) largest = size;
    }
    std::set<std::string> sizes{smallest};
    if (recipe_.study.difficulty == "gain") sizes.insert(largest);
    train_seeds(sizes);
    const auto folder = [&](const std::string& size, const std::string& domain) {
      return out_ / "probes" / fmt::format("{}-{}", domain, size);
    };
    std::vector<ExpertJob> jobs;
    for (const std::string& size : sizes)
      for (const DomainText& domain : domains_) {
        const std::string name = fmt::format("probe of {} by {}", domain.name, size);
        jobs.push_back(
            {name,
             {make_run(name, folder(size, domain.name), domain_keys(domain.name, recipe_.study.probe_steps, start_of(size), size))},
             static_cast<double>(facts[size].matmul_parameters),
             facts[size].bytes});
      }
    run_all(jobs);
    std::map<std::string, double> loss;  // by domain, of the smallest; less that of the largest for the gain
    for (const std::string& size : sizes)
      for (const DomainText& domain : domains_) {
        const double own = loss_of(
            score_model(folder(size, domain.name), {domain}, tokenizer_, facts[size].parameters, device(), log_).at(domain.name).test);
        loss[domain.name] += size == smallest ? own : -own;
      }
    for (const auto& [line, options] : recipe_.lines) {
      for (const std::string& domain : options.domains)
        result_.difficulty[line] += loss[domain] / static_cast<double>(options.domains.size());
      log_.info("difficulty of line {} by {}: {:.4f}", line, recipe_.study.difficulty, result_.difficulty[line]);
    }
    assign_by_difficulty(recipe_, result_.difficulty, data_);
  }

  void train_experts() {
    std::vector<ExpertJob> jobs;
    std::vector<std::string> ids;
    for (const std::string& mode : recipe_.modes())
      for (const PlannedExpert& expert : result_.plan.mode(mode).experts) {
        if (result_.experts.contains(expert.id())) continue;
        TrainedExpert& trained = result_.experts[expert.id()];
        trained.plan = expert;
        ExpertJob job{.name = expert.id(), .runs = {}, .flops = expert.flops, .bytes = expert.facts.bytes};
        std::string from = start_of(expert.size);
        for (size_t i = 0; i < expert.domains.size(); ++i) {
          const fs::path folder = out_ / "experts" / expert.id() / fmt::format("{}-{}", i + 1, expert.domains[i]);
          job.runs.push_back(make_run(fmt::format("{}/{}-{}", expert.id(), i + 1, expert.domains[i]), folder,
                                      domain_keys(expert.domains[i], expert.steps[i], from, expert.size)));
          trained.runs.push_back(folder);
          from = folder.string();
        }
        jobs.push_back(std::move(job));
        ids.push_back(expert.id());
      }
    const std::vector<ExpertJobResult> ended = run_all(jobs);
    for (size_t i = 0; i < ids.size(); ++i) result_.experts[ids[i]].ended = ended[i];
  }

  // Reads the results of an expert's runs from disk.
  void read_ledgers(TrainedExpert& expert) {
    for (const fs::path& run : expert.runs) {
      const auto opened = snapshot::open_latest(run.string(), log_);
      if (!opened) base::fail_input("{}: no snapshot there", run.string());
      const train::RunState state = train::parse_run_state(opened->text("training/state.json"), opened->path());
      expert.tokens += state.tokens;
      expert.parameters = 0;
      for (const auto& entry : opened->section("model").entries()) expert.parameters += opened->section("model").view(entry).numel();
      for (const train::Traffic& sent : train::traffic_of(base::read_file(run / "ledger.json", kLedgerBytesMax)))
        expert.bytes_sent += static_cast<int64_t>(sent.bytes);
    }
    const int64_t looked_up = expert.plan.facts.parameters - expert.plan.facts.matmul_parameters;
    expert.flops = 6.0 * static_cast<double>(expert.parameters - looked_up) * static_cast<double>(expert.tokens);
  }

  using Scores = std::map<std::string, DomainLogProbs>;

  Scores score(const fs::path& model, const PlannedExpert& expert) {
    Scores scores = score_model(model, domains_, tokenizer_, expert.facts.parameters, device(), log_);
    add_mixture(scores);
    return scores;
  }

  static double mean_loss(const Scores& scores, const std::vector<std::string>& domains) {
    double sum = 0;
    for (const std::string& domain : domains) sum += loss_of(scores.at(domain).test);
    return sum / static_cast<double>(domains.size());
  }

  void measure() {
    std::map<std::string, std::vector<Scores>> scores;  // by id, after each domain
    std::map<std::string, Scores> seeds;
    for (auto& [id, expert] : result_.experts) {
      read_ledgers(expert);
      for (const fs::path& run : expert.runs) scores[id].push_back(score(run, expert.plan));
      expert.loss_after = mean_loss(scores[id].back(), expert.plan.domains);
      expert.loss_before = std::numeric_limits<double>::quiet_NaN();
      if (const std::string start = start_of(expert.plan.size); !start.empty()) {
        if (!seeds.contains(start)) seeds[start] = score(start, expert.plan);
        expert.loss_before = mean_loss(seeds[start], expert.plan.domains);
      }
      for (const auto& [domain, logs] : scores[id].back()) result_.single[id][domain] = loss_of(logs.test);
    }
    for (const std::string& mode : recipe_.modes()) {
      const std::vector<PlannedExpert>& experts = result_.plan.mode(mode).experts;
      ModeResult found{.mode = mode, .domains = {}, .iterations = {}};
      size_t longest = 0;
      for (const PlannedExpert& expert : experts) longest = std::max(longest, expert.domains.size());
      for (size_t i = 0; i < longest; ++i) {
        found.domains.clear();
        found.iterations.emplace_back();
        for (const auto& [domain, _] : scores.begin()->second.front()) {
          std::vector<const DomainLogProbs*> logs;
          for (const PlannedExpert& expert : experts) {
            const std::vector<Scores>& own = scores.at(expert.id());
            logs.push_back(&own[std::min(i, own.size() - 1)].at(domain));
          }
          found.domains[domain] = score_ensemble(logs, recipe_.ensemble);
          found.iterations.back()[domain] = found.domains[domain].loss;
        }
      }
      result_.modes.push_back(std::move(found));
    }
  }

  void write_ensembles() {
    for (const ModeResult& mode : result_.modes) {
      evaluate::EnsembleFile file;
      file.prior = recipe_.ensemble.prior;
      file.top_k = recipe_.ensemble.top_k;
      file.refresh = recipe_.ensemble.refresh;
      file.tokenizer = tokenizer_;
      for (const PlannedExpert& expert : result_.plan.mode(mode.mode).experts)
        file.experts.push_back({expert.line, result_.experts.at(expert.id()).runs.back().string(), expert.domains});
      for (const auto& [domain, result] : mode.domains) file.priors[domain] = result.prior;
      evaluate::write_ensemble(out_ / "ensembles" / mode.mode, file);
    }
  }

  HdeeRecipe recipe_;
  const HdeeSetup& setup_;
  base::Log& log_;
  const base::Stop& stop_;
  const fs::path out_;
  std::vector<IslandHost> hosts_;
  std::vector<DomainText> domains_;
  uint64_t tokenizer_ = 0;
  StudyData data_;
  HdeeResult result_;
};

}  // namespace

HdeeResult run_hdee(HdeeRecipe recipe, const HdeeSetup& setup, base::Log& log, const base::Stop& stop) {
  return Study(std::move(recipe), setup, log, stop).run();
}

}  // namespace cairn::study
