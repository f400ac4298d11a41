#include "data/samples/rollout_dataset.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "data/corpus.h"
#include "data/corpus/source.h"
#include "kernels/aten.h"

namespace cairn::data {
namespace {

constexpr base::JsonLimits kLineLimits{.depth = 3};

// One line, and where it is for messages.
struct Line {
  const base::Json& json;
  std::string where;

  const base::Json& list(const char* key) const {
    if (!json.contains(key) || !json.at(key).is_array()) base::fail_input("{}: \"{}\" is not a list of numbers", where, key);
    return json.at(key);
  }
  std::vector<float> log_probs(const char* key, int64_t count) const {
    if (!json.contains(key)) return {};
    std::vector<float> all;
    for (const base::Json& one : list(key)) {
      if (!one.is_number() || one.get<double>() > 0)
        base::fail_input("{}: \"{}\" has {}, no log-probability", where, key, base::shown(one));
      all.push_back(one.get<float>());
    }
    if (static_cast<int64_t>(all.size()) != count)
      base::fail_input("{}: \"{}\" has {} numbers for {} tokens after the prompt", where, key, all.size(), count);
    return all;
  }
};

Rollout parse_rollout(const Line& line, int64_t vocab) {
  Rollout rollout;
  for (const base::Json& one : line.list("tokens")) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0 || one.get<int64_t>() >= vocab)
      base::fail_input("{}: {} is no token id of a vocabulary of {}", line.where, base::shown(one), vocab);
    rollout.tokens.push_back(one.get<int64_t>());
  }
  const auto count = static_cast<int64_t>(rollout.tokens.size());
  if (!line.json.contains("prompt") || !line.json.at("prompt").is_number_integer())
    base::fail_input("{}: \"prompt\" is not the number of tokens of the prompt", line.where);
  rollout.prompt = line.json.at("prompt").get<int64_t>();
  if (rollout.prompt < 1 || rollout.prompt >= count)
    base::fail_input("{}: a prompt of {} among {} tokens: it has at least 1, and so has the answer", line.where, rollout.prompt, count);
  if (!line.json.contains("advantage") || !line.json.at("advantage").is_number())
    base::fail_input("{}: \"advantage\" is not a number", line.where);
  rollout.advantage = line.json.at("advantage").get<double>();
  rollout.old_log_probs = line.log_probs("log_probs", count - rollout.prompt);
  rollout.reference_log_probs = line.log_probs("reference_log_probs", count - rollout.prompt);
  return rollout;
}

bool have_same_fields(const Rollout& a, const Rollout& b) {
  return a.old_log_probs.empty() == b.old_log_probs.empty() && a.reference_log_probs.empty() == b.reference_log_probs.empty();
}

}  // namespace

std::vector<Rollout> read_rollouts(const std::filesystem::path& file, int64_t vocab, int64_t lines) {
  std::ifstream in(file);
  if (!in) base::fail_input("{}: cannot be read", file.string());
  std::vector<Rollout> all;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (text.empty()) continue;
    if (lines > 0 && static_cast<int64_t>(all.size()) == lines) break;
    const std::string where = file.string() + ":" + std::to_string(number);
    const base::GuardedJson parsed = base::parse_json_guarded(text, kLineLimits);
    if (!parsed.trouble.empty()) base::fail_input("{}: {}", where, parsed.trouble);
    if (!parsed.value.is_object()) base::fail_input("{}: not an object with \"tokens\"", where);
    all.push_back(parse_rollout({parsed.value, where}, vocab));
    if (!have_same_fields(all.back(), all.front()))
      base::fail_input("{}: log-probabilities are given on some lines only. Give them on all, or on none.", where);
  }
  return all;
}

std::unique_ptr<Tokenizer> tokenizer_of_rollouts(const DataOptions& data) {
  std::unique_ptr<Tokenizer> tokenizer = named_tokenizer(data);
  if (!tokenizer)
    base::fail_input("data.kind = {}: token ids are those of a tokenizer. Set model.from to the policy, or data.tokenizer_file.", data.kind);
  return tokenizer;
}

void check_rollouts(const DataOptions& data) {
  const int64_t vocab = tokenizer_of_rollouts(data)->vocab_size();
  if (!data.weights.empty())
    base::fail_input("data.weights: data.kind = {} does not mix sources by weight. Leave data.weights out.", data.kind);
  for (const Source& source : find_sources(data))
    for (const SourceFile& file : source.files) {
      if (file.format != Format::jsonl)
        base::fail_input("{}: data.kind = {} reads JSON lines with {}, not {}", file.path, data.kind, data.needs().records,
                         name(file.format));
      read_rollouts(file.path, vocab, 1);
    }
}

std::vector<Rollout> read_rollouts(const DataOptions& data, int64_t vocab) {
  std::vector<Rollout> all;
  for (const Source& source : find_sources(data))
    for (const SourceFile& file : source.files) {
      std::vector<Rollout> read = read_rollouts(std::filesystem::path(file.path), vocab);
      if (!all.empty() && !read.empty() && !have_same_fields(all.front(), read.front()))
        base::fail_input("{}: log-probabilities are given in some files only. Give them in all, or in none.", file.path);
      all.insert(all.end(), std::make_move_iterator(read.begin()), std::make_move_iterator(read.end()));
    }
  return all;
}

RolloutDataset::RolloutDataset(std::vector<Rollout> rollouts, const SampleOptions& options, const std::string& origin) : options_(options) {
  for (Rollout& one : rollouts) {
    if (one.prompt > options_.length)
      ++left_out_;
    else
      rollouts_.push_back(std::move(one));
  }
  const auto count = static_cast<int64_t>(rollouts_.size());
  const int64_t needed = options_.held_out_fraction > 0 ? 2 : 1;
  if (count < needed)
    base::fail_input("{}: {} of {} rollouts can be used, {} or more are needed; give more of them, or a data.length that holds the prompts",
                     origin, count, count + left_out_, needed);
  if (needed == 2) held_out_ = std::clamp<int64_t>(std::llround(options_.held_out_fraction * static_cast<double>(count)), 1, count - 1);
}

int64_t RolloutDataset::positions(const Rollout& rollout) const {
  return std::min<int64_t>(options_.length, static_cast<int64_t>(rollout.tokens.size()) - 1);
}

int64_t RolloutDataset::tokens_in(int64_t sample) const { return positions(at(sample)) - at(sample).prompt + 1; }

void RolloutDataset::fill(std::span<const int64_t> ids, mesh::Batch& batch) const {
  const auto samples = static_cast<int64_t>(ids.size());
  int64_t length = 0;
  for (const int64_t id : ids) length = std::max(length, positions(at(id)));
  const at::Tensor tokens = at::full({samples, length}, options_.padding, at::kLong);
  const at::Tensor targets = at::full({samples, length}, kIgnoreIndex, at::kLong);
  const at::Tensor advantages = at::zeros({samples}), old = at::zeros({samples, length}), reference = at::zeros({samples, length});
  batch.ids = at::empty({samples}, at::kLong);
  std::copy(ids.begin(), ids.end(), batch.ids.data_ptr<int64_t>());
  batch.weights = at::Tensor();
  for (int64_t i = 0; i < samples; ++i) {
    const Rollout& one = at(ids[static_cast<size_t>(i)]);
    const int64_t reads = positions(one), first = one.prompt - 1,
                  answers = reads - first;  // position first predicts the answer's first token
    std::copy_n(one.tokens.begin(), reads, tokens.data_ptr<int64_t>() + i * length);
    std::copy_n(one.tokens.begin() + one.prompt, answers, targets.data_ptr<int64_t>() + i * length + first);
    advantages.data_ptr<float>()[i] = static_cast<float>(one.advantage);
    if (!one.old_log_probs.empty()) std::copy_n(one.old_log_probs.begin(), answers, old.data_ptr<float>() + i * length + first);
    if (!one.reference_log_probs.empty())
      std::copy_n(one.reference_log_probs.begin(), answers, reference.data_ptr<float>() + i * length + first);
  }
  batch.fields = {{"tokens", {tokens}}, {"targets", {targets}}, {"advantages", {advantages}}};
  if (!rollouts_.front().old_log_probs.empty()) batch.fields["old_log_probs"] = {old};
  if (!rollouts_.front().reference_log_probs.empty()) batch.fields["reference_log_probs"] = {reference};
}

}  // namespace cairn::data
