#include "evaluate/perplexity.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "evaluate/token_losses.h"

namespace cairn::evaluate {
namespace {

constexpr int64_t kBatchesAtOnce = 32;  // windows of this many batches are collected, so that windows of similar length share a batch

// A document's tokens, without the end-of-text token at its end. (Shards of other programs may have one at the beginning: it is context.)
struct Text {
  std::vector<int32_t> tokens;
  std::vector<bool> counts;  // which are targets; empty: all
};

Text text_of(const data::TokenStream& row, int64_t document, std::optional<int32_t> end) {
  int64_t first = row.document_begin(document), count = row.document_begin(document + 1) - first;
  std::vector<int64_t> ids(static_cast<size_t>(count)), targets(ids.size(), 0);
  row.copy(first, count, ids.data());
  if (row.masked()) row.mask_non_targets(first, count, targets.data());
  if (end && count > 0 && ids.back() == *end) --count;
  Text text;
  text.tokens.assign(ids.begin(), ids.begin() + count);
  if (row.masked())
    for (int64_t i = 0; i < count; ++i) text.counts.push_back(targets[static_cast<size_t>(i)] != data::kIgnoreIndex);
  if (std::ranges::all_of(text.counts, std::identity())) text.counts.clear();  // a plain text among conversations
  return text;
}

// Of the tokens that are scored: those after the first `context`.
int64_t bytes_of(const data::Tokenizer& tokenizer, const Text& text, size_t context) {
  if (text.counts.empty()) {
    const std::string all = tokenizer.decode(text.tokens), before = tokenizer.decode(std::span(text.tokens).first(context));
    return static_cast<int64_t>(all.size()) - static_cast<int64_t>(before.size());
  }
  int64_t bytes = 0;
  for (size_t i = context; i < text.tokens.size(); ++i)
    if (text.counts[i]) bytes += static_cast<int64_t>(tokenizer.piece(text.tokens[i]).size());
  return bytes;
}

// A window of a document, waiting to be scored.
struct Window {
  int64_t document = 0;
  std::vector<bool> counts = {};  // for each scored token; empty: all
};

// Splits documents into windows, scores them some batches at a time, and reports sums document by document.
class WindowedScoring {
 public:
  // `tokens`: the approximate total, for progress.
  WindowedScoring(const EvaluatedModel& evaluated, const PerplexityOptions& options,
                  const std::function<void(const TextLoss&)>& on_document, const OnProgress& progress, int64_t tokens)
      : evaluated_(evaluated),
        window_(options.window == 0 ? evaluated.length : options.window),
        stride_(options.stride == 0 ? window_ : options.stride),
        batch_(options.batch),
        on_document_(on_document),
        progress_(progress),
        tokens_(tokens),
        end_(evaluated.tokenizer.find_end_of_text()),
        text_prefix_(options.add_prefix ? evaluated.text_prefix : std::vector<int32_t>()),
        add_prefix_(options.add_prefix) {}

  void add(const data::TokenStream& row, int64_t document) {
    const Text text = text_of(row, document, end_);
    evaluated_.check(text.tokens);
    const bool is_conversation = !add_prefix_ || !text.counts.empty();
    const std::vector<int32_t> prefix = is_conversation ? std::vector<int32_t>() : text_prefix_;
    // A text that was tokenised for training begins with its prefix already.
    const bool has_prefix = text.tokens.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), text.tokens.begin());
    std::vector<int32_t> all = has_prefix ? std::vector<int32_t>() : prefix;
    const auto before = static_cast<int64_t>(all.size());
    all.insert(all.end(), text.tokens.begin(), text.tokens.end());
    const auto size = static_cast<int64_t>(all.size()), begin = std::max<int64_t>(1, static_cast<int64_t>(prefix.size()));
    const auto context = static_cast<size_t>(std::clamp<int64_t>(begin - before, 0, size - before));
    waiting_.push_back(
        {.documents = 1, .conversations = is_conversation, .tokens = 0, .bytes = bytes_of(evaluated_.tokenizer, text, context), .loss = 0});
    for (int64_t first = 0, done = begin, end = 0; done < size; first += stride_, done = end) {
      end = std::min(size, first + window_ + 1);
      scored_.push_back({{all.begin() + first, all.begin() + end}, done - first});
      Window window{.document = first_document_ + static_cast<int64_t>(waiting_.size()) - 1};
      if (!text.counts.empty())
        for (int64_t i = done; i < end; ++i) window.counts.push_back(i >= before && text.counts[static_cast<size_t>(i - before)]);
      windows_.push_back(std::move(window));
      tokens_waiting_ += end - done;
      if (static_cast<int64_t>(windows_.size()) >= kBatchesAtOnce * batch_) read();
    }
  }

  TextLoss finish() {
    read();
    hand_over(waiting_.size());
    if (progress_) progress_(tokens_, tokens_);
    return total_;
  }

 private:
  void read() {
    const std::vector<std::vector<float>> losses = token_losses(evaluated_, scored_, batch_, [&](int64_t done, int64_t of) {
      if (progress_) progress_(tokens_read_ + tokens_waiting_ * done / of, tokens_);
    });
    tokens_read_ += std::exchange(tokens_waiting_, 0);
    for (size_t w = 0; w < windows_.size(); ++w) {
      TextLoss& document = waiting_[static_cast<size_t>(windows_[w].document - first_document_)];
      for (size_t i = 0; i < losses[w].size(); ++i) {
        if (!windows_[w].counts.empty() && !windows_[w].counts[i]) continue;
        document.loss += losses[w][i];
        ++document.tokens;
      }
    }
    scored_.clear();
    windows_.clear();
    if (!waiting_.empty()) hand_over(waiting_.size() - 1);  // the last document may have more windows
  }

  void hand_over(size_t documents) {
    for (size_t i = 0; i < documents; ++i) {
      total_.add(waiting_[i]);
      if (on_document_) on_document_(waiting_[i]);
    }
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(documents));
    first_document_ += static_cast<int64_t>(documents);
  }

  const EvaluatedModel& evaluated_;
  const int64_t window_, stride_, batch_;
  const std::function<void(const TextLoss&)>& on_document_;
  const OnProgress& progress_;
  const int64_t tokens_;
  int64_t tokens_read_ = 0, tokens_waiting_ = 0;
  const std::optional<int32_t> end_;
  const std::vector<int32_t> text_prefix_;
  const bool add_prefix_;
  std::vector<ScoredTokens> scored_;  // the tokens of the windows
  std::vector<Window> windows_;
  std::vector<TextLoss> waiting_;  // sums of documents from first_document_ on
  int64_t first_document_ = 0;
  TextLoss total_;
};

}  // namespace

void TextLoss::add(const TextLoss& other) {
  documents += other.documents;
  conversations += other.conversations;
  tokens += other.tokens;
  bytes += other.bytes;
  loss += other.loss;
}

double TextLoss::mean() const { return loss / static_cast<double>(tokens); }
double TextLoss::perplexity() const { return std::exp(mean()); }
double TextLoss::bits_per_byte() const { return loss / std::log(2.0) / static_cast<double>(bytes); }

void check(const PerplexityOptions& options, const EvaluatedModel& evaluated) {
  if (options.window > evaluated.length)
    base::fail_input("--window {}: the model reads at most {} tokens", options.window, evaluated.length);
  const int64_t window = options.window == 0 ? evaluated.length : options.window;
  if (options.stride > window) base::fail_input("--stride {}: must be at most the window, {} tokens", options.stride, window);
  if (static_cast<int64_t>(evaluated.text_prefix.size()) > window)
    base::fail_input("--window {}: {} before every text; make it longer", window,
                     base::plural(static_cast<int64_t>(evaluated.text_prefix.size()), "token"));
}

TextLoss perplexity(const EvaluatedModel& evaluated, const data::TokenStream& row, const PerplexityOptions& options,
                    const std::function<void(const TextLoss&)>& on_document, const OnProgress& progress) {
  check(options, evaluated);
  const int64_t documents = options.documents_max == 0 ? row.documents() : std::min(row.documents(), options.documents_max);
  WindowedScoring scoring(evaluated, options, on_document, progress, row.document_begin(documents));
  for (int64_t document = 0; document < documents; ++document) scoring.add(row, document);
  return scoring.finish();
}

}  // namespace cairn::evaluate
