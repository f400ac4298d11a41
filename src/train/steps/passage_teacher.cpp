#include "train/steps/passage_teacher.h"

#include <algorithm>
#include <utility>

#include <c10/core/StreamGuard.h>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/streams.h"
#include "model/losses/retrieval.h"
#include "train/encoder.h"

namespace cairn::train {
namespace {

constexpr size_t kPassagesAtOnce = 64;

class LateInteraction {
 public:
  LateInteraction(OpenedEncoder encoder, const data::RetrievalTexts& texts, const at::Device& device)
      : encoder_(std::move(encoder)), texts_(texts), device_(device) {}

  at::Tensor score(std::span<const int64_t> queries, std::span<const int64_t> passages) {
    if (!device_.is_cuda()) return score_here(queries, passages);
    const c10::StreamGuard beside(kernels::side_stream(device_, kernels::SideStream::teacher));
    return score_here(queries, passages);
  }

 private:
  at::Tensor score_here(std::span<const int64_t> queries, std::span<const int64_t> passages) {
    const at::Tensor scores = at::empty({static_cast<int64_t>(queries.size()), static_cast<int64_t>(passages.size())});
    if (queries.empty() || passages.empty()) return scores;
    const evaluate::TextEncoder encoder = encoder_.texts();
    const evaluate::TokenVectors asked = evaluate::token_vectors(encoder, texts_.query_tokens, queries);
    for (size_t first = 0; first < passages.size(); first += kPassagesAtOnce) {
      const std::span<const int64_t> some = passages.subspan(first, std::min(kPassagesAtOnce, passages.size() - first));
      const evaluate::TokenVectors found = evaluate::token_vectors(encoder, texts_.passage_tokens, some);
      scores.narrow(1, static_cast<int64_t>(first), static_cast<int64_t>(some.size()))
          .copy_(model::late_interaction(asked.vectors, asked.lengths, found.vectors, found.lengths));
    }
    return scores;
  }

  OpenedEncoder encoder_;
  const data::RetrievalTexts& texts_;
  at::Device device_;
};

}  // namespace

PassageScores open_teacher(const std::string& folder, const data::RetrievalTexts& texts, const data::RetrievalOptions& options,
                           const data::Tokenizer& tokenizer, const at::Device& device, base::Log& log) {
  OpenedEncoder encoder = open_encoder(folder, "retrieval.teacher", std::max(options.query_tokens, options.passage_tokens), device, log);
  if (!encoder.tokenizer)
    base::fail_input(
        "retrieval.teacher = {}: it has no tokenizer, and it reads the token ids of the student. Put its tokenizer.json there.", folder);
  if (data::hash(*encoder.tokenizer) != data::hash(tokenizer))
    base::fail_input(
        "retrieval.teacher = {}: its tokenizer is another one, and it reads the token ids of the student. Set data.tokenizer_file to the "
        "teacher's, or use another teacher.",
        folder);
  const auto teacher = std::make_shared<LateInteraction>(std::move(encoder), texts, device);
  return [teacher](std::span<const int64_t> queries, std::span<const int64_t> passages) { return teacher->score(queries, passages); };
}

}  // namespace cairn::train
