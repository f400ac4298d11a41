// Generation with a KV cache.
//
// Prefill: a prompt goes through the model's blocks once, with all its positions; the attention blocks append their keys and values to the
// sequence's row of the cache. The logits of the last position give the first token.
// Decode: each step feeds the last token of every unfinished sequence, at its own position, and appends one key and value per layer. On a
// CPU with fp32 weights DecodeStep does this without tensors; otherwise the blocks run with one row per call, or with adjacent rows at the
// same position in one call (`batched_`). A model that is sharded over ranks has its own runner (parallel/generate).
// The cache doubles when it is full, up to length_max. Requests that share a prompt copy the prefilled row.
#include "model/generate/generate.h"

#include <algorithm>

#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/served_adapters.h"
#include "model/generate/cached_blocks.h"
#include "model/generate/decode_runner.h"
#include "model/generate/decode_step.h"
#include "model/model.h"

namespace cairn::model {
namespace {

// The whole model on this rank.
class LocalRunner final : public DecodeRunner {
 public:
  LocalRunner(const Model& model, const Weights& weights, Buffers& buffers, int64_t rows, const GenerateOptions& options)
      : weights_(weights),
        buffers_(buffers),
        blocks_({.model = model,
                 .weights = weights,
                 .buffers = buffers,
                 .axes = alone_,
                 .first = 0,
                 .last = model.blocks().size(),
                 .rows = rows,
                 .length_max = options.length_max}) {
    batched_ = (options.batched || weights.get({0}).is_cuda()) && model.supports_batched_decoding();
    step_ = DecodeStep::make(model, weights, buffers);
  }

  ~LocalRunner() override { drop_row_adapters(buffers_); }
  LocalRunner(const LocalRunner&) = delete;
  LocalRunner& operator=(const LocalRunner&) = delete;

  void set_adapters(std::vector<int32_t> of_row) override { adapters_ = std::move(of_row); }

  at::Tensor prefill(const std::vector<int32_t>& prompt, int64_t row) override {
    blocks_.grow(static_cast<int64_t>(prompt.size()));
    return run_blocks(at::tensor(prompt, at::kInt).to(at::kLong).view({1, -1}), 0, row).view({-1});
  }

  void copy(int64_t from, int64_t to, int64_t positions) override { blocks_.copy(from, to, positions); }

  at::Tensor decode(std::span<const DecodeRow> rows) override {
    int64_t end = 0;
    for (const DecodeRow& row : rows) end = std::max(end, row.position + 1);
    blocks_.grow(end);
    if (!step_) return decode_by_groups(rows);
    const auto count = static_cast<int64_t>(rows.size());
    if (!logits_.defined() || logits_.size(0) < count) logits_ = at::empty({count, model_vocab()}, at::kFloat);
    step_->run(rows, blocks_.cache(), logits_.mutable_data_ptr<float>());
    return logits_.narrow(0, 0, count);
  }

 private:
  at::Tensor run_blocks(const at::Tensor& tokens, int64_t begin, int64_t first_row) {
    Values values;
    if (!adapters_.empty())
      put_row_adapters(buffers_, std::span(adapters_).subspan(static_cast<size_t>(first_row), static_cast<size_t>(tokens.size(0))),
                       weights_.get({0}).device());
    values.put("tokens", tokens.to(weights_.get({0}).device()));
    blocks_.run(values, begin, first_row, tokens.size(0));
    return values.take("logits").to(at::kCPU, at::kFloat);  // [rows, 1, vocab]
  }

  // On a CPU one row per call, so that no row depends on the others. With batched_ (on a GPU) adjacent rows at the same position together.
  at::Tensor decode_by_groups(std::span<const DecodeRow> rows) {
    std::vector<at::Tensor> logits;
    for (const auto& [first, count] : group_rows(rows, batched_, rows.size())) {
      const at::Tensor tokens = at::empty({static_cast<int64_t>(count), 1}, at::kLong);
      for (size_t i = 0; i < count; ++i) tokens.mutable_data_ptr<int64_t>()[i] = rows[first + i].token;
      logits.push_back(run_blocks(tokens, rows[first].position, rows[first].cache_row).flatten(0, 1));
    }
    return at::cat(logits);
  }

  int64_t model_vocab() const { return weights_.get({0}).size(0); }  // the first parameter of a decoder is its embedding table

  const Weights& weights_;
  Buffers& buffers_;
  std::vector<int32_t> adapters_;  // of each row; empty: the model serves none
  mesh::Axes alone_;
  bool batched_ = false;
  std::unique_ptr<DecodeStep> step_;
  CachedBlocks blocks_;
  at::Tensor logits_;
};

// A sequence in progress.
struct Text {
  int64_t index;
  const GenerateRequest& request;
  std::vector<int32_t> all;  // prompt and answer
  GeneratedText result = {};

  int64_t position() const { return static_cast<int64_t>(all.size()) - 1; }  // of its last token
};

class TextWriter {
 public:
  TextWriter(const GenerateOptions& options, const OnToken& on_token)
      : options_(options), on_token_(on_token), sampler_(options.sampling, options.vocab) {}

  // Samples the next token. False: the sequence is finished, with the reason in its result.
  bool extend(Text& text, std::span<const float> logits) {
    const auto drawn = static_cast<int64_t>(text.result.ids.size());
    const TokenSampler::SampledToken choice = sampler_.sample(logits, text.all, text.request.random.uniform(static_cast<uint64_t>(drawn)));
    const auto end = [&](FinishReason why) {
      text.result.finish_reason = why;
      return false;
    };
    if (std::find(options_.stops.begin(), options_.stops.end(), choice.id) != options_.stops.end()) return end(FinishReason::stop_token);
    text.all.push_back(choice.id);
    text.result.ids.push_back(choice.id);
    text.result.log_probabilities.push_back(choice.log_probability);
    if (on_token_ && !on_token_(text.index, choice.id)) return end(FinishReason::stop_text);
    if (drawn + 1 == options_.tokens) return end(FinishReason::tokens);
    if (static_cast<int64_t>(text.all.size()) == options_.length_max) return end(FinishReason::context);
    return true;
  }

 private:
  const GenerateOptions& options_;
  const OnToken& on_token_;
  TokenSampler sampler_;
};

void check_prompts(std::span<const GenerateRequest> requests, int64_t length_max) {
  for (const GenerateRequest& request : requests) {
    const std::vector<int32_t>& prompt = request.prompt;
    CAIRN_CHECK(!prompt.empty(), "an empty prompt");
    if (static_cast<int64_t>(prompt.size()) >= length_max)
      base::fail_input("a prompt of {} tokens leaves no room for an answer: the model reads at most {}", prompt.size(), length_max);
  }
}

std::span<const float> row_of(const at::Tensor& logits) { return {logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}; }

}  // namespace

std::string name(FinishReason finish_reason) {
  switch (finish_reason) {
    case FinishReason::tokens:
      return "tokens";
    case FinishReason::stop_token:
      return "end_of_text";
    case FinishReason::stop_text:
      return "stop";
    case FinishReason::context:
      return "context";
  }
  CAIRN_CHECK(false, "end {}", static_cast<int>(finish_reason));
}

void DecodeRunner::set_adapters(std::vector<int32_t> /*of_row*/) {
  base::fail_input("adapters of requests: a model that is sharded over ranks has none. Generate on one rank, or merge the adapter.");
}

std::vector<RowGroup> group_rows(std::span<const DecodeRow> rows, bool together, size_t most) {
  std::vector<RowGroup> groups;
  for (size_t first = 0; first < rows.size(); first += groups.back().count) {
    RowGroup group{first, 1};
    const auto follows = [&](const DecodeRow& row) {
      return row.position == rows[first].position && row.cache_row == rows[first].cache_row + static_cast<int64_t>(group.count);
    };
    while (together && group.count < most && first + group.count < rows.size() && follows(rows[first + group.count])) ++group.count;
    groups.push_back(group);
  }
  return groups;
}

std::vector<GeneratedText> generate(const Model& model, const Weights& weights, Buffers& buffers, std::span<const GenerateRequest> requests,
                                    const GenerateOptions& options, const OnToken& on_token) {
  LocalRunner runner(model, weights, buffers, static_cast<int64_t>(requests.size()), options);
  return generate(runner, requests, options, on_token);
}

std::vector<GeneratedText> generate(DecodeRunner& runner, std::span<const GenerateRequest> requests, const GenerateOptions& options,
                                    const OnToken& on_token) {
  check(options.sampling);
  at::NoGradGuard no_grad;
  std::vector<Text> texts;
  std::vector<size_t> writing;  // unfinished sequences
  TextWriter writer(options, on_token);
  at::Tensor logits;
  check_prompts(requests, options.length_max);
  if (std::ranges::any_of(requests, [](const GenerateRequest& one) { return one.adapter >= 0; })) {
    std::vector<int32_t> of_row;
    for (const GenerateRequest& request : requests) of_row.push_back(request.adapter);
    runner.set_adapters(std::move(of_row));
  }
  for (size_t i = 0; i < requests.size(); ++i) {
    const std::vector<int32_t>& prompt = requests[i].prompt;
    const bool shared = i > 0 && prompt == requests[i - 1].prompt && requests[i].adapter == requests[i - 1].adapter;
    if (shared)
      runner.copy(static_cast<int64_t>(i) - 1, static_cast<int64_t>(i), static_cast<int64_t>(prompt.size()));
    else
      logits = runner.prefill(prompt, static_cast<int64_t>(i));
    texts.push_back({static_cast<int64_t>(i), requests[i], prompt});
    if (options.tokens > 0 && writer.extend(texts.back(), row_of(logits))) writing.push_back(i);
  }
  std::vector<DecodeRow> rows;
  std::vector<size_t> still;
  while (!writing.empty()) {
    rows.clear(), still.clear();
    for (size_t i : writing) rows.push_back({texts[i].all.back(), texts[i].position(), static_cast<int64_t>(i)});
    const at::Tensor all = runner.decode(rows);
    const auto vocab = static_cast<size_t>(all.size(1));
    for (size_t r = 0; r < writing.size(); ++r)
      if (writer.extend(texts[writing[r]], {all.const_data_ptr<float>() + r * vocab, vocab})) still.push_back(writing[r]);
    std::swap(writing, still);
  }
  std::vector<GeneratedText> results;
  for (Text& text : texts) results.push_back(std::move(text.result));
  return results;
}

}  // namespace cairn::model
