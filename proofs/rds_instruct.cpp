// RDS+ on real instructions: a folder with an Alpaca and a GSM8K file. Few Alpaca records ask for more of their kind from both.
#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "proofs/rds_parts.h"
#include "proofs/selection_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kInstructQueries = 30, kInstructTests = 100, kInstructKept = 500;
constexpr int64_t kInstructSteps = 60, kInstructBaseSteps = 300;
constexpr int64_t kRecordsBytesMax = int64_t{1} << 30;
constexpr const char* kInstructHint = "give --data FOLDER with an Alpaca and a GSM8K file: alpaca*.json(l) and gsm8k*train*.jsonl";

// The first file by name whose name has `word`, one for training before others; empty: there is none.
fs::path file_with(const fs::path& folder, const std::string& word) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& one : fs::directory_iterator(folder)) {
    const std::string name = one.path().filename().string();
    if (name.find(word) != std::string::npos && (name.ends_with(".json") || name.ends_with(".jsonl"))) found.push_back(one.path());
  }
  std::ranges::sort(found, {}, [](const fs::path& path) {
    return std::pair(path.filename().string().find("train") == std::string::npos, path.string());
  });
  return found.empty() ? fs::path() : found.front();
}

// The records of a JSON list or of JSON lines, each on one line.
std::vector<std::string> records_of(const fs::path& file) {
  const std::string text = base::read_file(file, kRecordsBytesMax);
  std::vector<std::string> records;
  if (const base::Json list = base::parse_json(text); list.is_array()) {
    for (const base::Json& one : list) records.push_back(base::compact(one));
    return records;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const base::Json one = base::parse_json(std::string_view(text).substr(at, end - at));
    if (one.is_object()) records.push_back(base::compact(one));
    at = end + 1;
  }
  return records;
}

void write_records(const fs::path& file, std::span<const std::string> records) {
  std::string lines;
  for (const std::string& one : records) lines += one + "\n";
  base::write_atomically(file, lines);
}

// The pool, the target examples and records that are held out. Returns how many records of the pool are Alpaca's, which come first.
int64_t write_instructions(const fs::path& folder, const fs::path& alpaca_file, const fs::path& gsm8k_file, uint64_t seed) {
  std::vector<std::string> alpaca = records_of(alpaca_file);
  const std::vector<std::string> gsm8k = records_of(gsm8k_file);
  constexpr int64_t kAlpacaMin = kInstructKept + kInstructQueries + kInstructTests;
  if (std::ssize(alpaca) < kAlpacaMin || std::ssize(gsm8k) < kInstructKept)
    base::fail_input("--data: {} records in {} and {} in {}. Give at least {} and {}.", alpaca.size(), alpaca_file.string(), gsm8k.size(),
                     gsm8k_file.string(), kAlpacaMin, kInstructKept);
  const base::Random random = base::Random(seed).for_purpose("instructions");
  for (size_t i = 0; i + 1 < alpaca.size(); ++i) std::swap(alpaca[i], alpaca[i + random.below(i, alpaca.size() - i)]);
  const std::span<const std::string> all(alpaca);
  write_records(folder / "queries.jsonl", all.first(kInstructQueries));
  write_records(folder / "tests.jsonl", all.subspan(kInstructQueries, kInstructTests));
  write_records(folder / "alpaca.jsonl", all.subspan(kInstructQueries + kInstructTests));
  write_records(folder / "gsm8k.jsonl", gsm8k);
  return std::ssize(alpaca) - kInstructQueries - kInstructTests;
}

std::vector<std::string> instruct_model(int64_t steps, std::vector<std::string> more) {
  std::vector<std::string> sets{"data.sources=[\"alpaca.jsonl\",\"gsm8k.jsonl\"]",
                                "data.template=plain",
                                "data.length=256",
                                "data.packing=documents",
                                "eval.fraction=0",
                                "train.global_batch=16",
                                fmt::format("train.steps={}", steps)};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

}  // namespace

void prove_rds_on_instructions(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::string share_claim = "--data: 30 Alpaca records ask, of 500 kept from Alpaca and GSM8K: share of Alpaca";
  const std::string loss_claim = "--data: held-out Alpaca loss after 60 steps on these 500, of that after as many on 500 at random";
  const bool has_folder = !options.data.empty() && fs::is_directory(options.data);
  const fs::path alpaca = has_folder ? file_with(options.data, "alpaca") : fs::path();
  const fs::path gsm8k = has_folder ? file_with(options.data, "gsm8k") : fs::path();
  if (alpaca.empty() || gsm8k.empty()) {
    for (const std::string& claim : {share_claim, loss_claim}) findings.skip(claim, kInstructHint);
    return;
  }
  const fs::path folder = fs::path(options.scratch) / "instruct";
  base::make_folder(folder);
  const int64_t of_alpaca = write_instructions(folder, alpaca, gsm8k, options.seed);
  train_model(options, folder, "base",
              instruct_model(kInstructBaseSteps, {"model.layers=2", "model.embed=64", "model.heads=4", "model.kv_heads=4", "model.mlp=172",
                                                  "data.vocab=2048", "optim.learning_rate=3e-3"}));
  std::vector<std::string> pool{"--data", "alpaca.jsonl",       "--data", "gsm8k.jsonl", "--keep", std::to_string(kInstructKept),
                                "--set",  "data.template=plain"};
  std::vector<std::string> rds{"rds", "--model", "base", "--queries", "alpaca=queries.jsonl"}, random{"random"};
  for (const std::string& one : report_arguments(options)) rds.push_back(one);
  random.insert(random.end(), {"--seed", std::to_string(options.seed)});
  for (std::vector<std::string>* one : {&rds, &random}) one->insert(one->end(), pool.begin(), pool.end());
  const data::DocumentSubset chosen = run_selection(options, folder, rds, "chosen"),
                             drawn = run_selection(options, folder, random, "random");
  keep_picture(options, folder, "rds-plus-instruct");
  const auto share = [&](const data::DocumentSubset& kept) {
    const auto right = std::ranges::count_if(kept.ids, [&](int64_t id) { return id < of_alpaca; });
    return static_cast<double>(right) / static_cast<double>(kept.ids.size());
  };
  findings.at_least(share_claim, share(drawn), share(chosen), 0.9);
  double losses[2] = {};
  for (const auto& [subset, loss] : {std::pair{"chosen", &losses[0]}, {"random", &losses[1]}}) {
    const std::string run = std::string("tuned-on-") + subset;
    train_model(options, folder, run,
                instruct_model(kInstructSteps, {"model.from=base", std::string("data.subset=") + subset, "optim.learning_rate=1e-3"}));
    *loss = held_out_loss(options, folder, run, "tests.jsonl");
  }
  log.info("held-out Alpaca loss: base {:.3f}, tuned on the selection {:.3f}, on 500 at random {:.3f}",
           held_out_loss(options, folder, "base", "tests.jsonl"), losses[0], losses[1]);
  findings.at_most(loss_claim, losses[1], losses[0] / losses[1], 0.99);
}

}  // namespace cairn::study
