#include "proofs/topic_set.h"

#include <algorithm>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include "base/files.h"
#include "base/random.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/bpe_trainer.h"
#include "kernels/aten.h"

namespace cairn::study {
namespace {

constexpr int64_t kTopics = 50, kPassagesPerTopic = 30, kTopicWords = 40, kEntityWords = 20, kOwnEntities = 5, kPassageWords = 24,
                  kQueryPart = 3, kVocabulary = 3000, kWrongPassages = 8;

std::string word(int64_t id) { return fmt::format("<w{}>", id); }
int64_t topic_word(int64_t topic, int64_t i) { return topic * kTopicWords + i; }
int64_t entity_word(int64_t topic, int64_t i) { return kTopics * kTopicWords + topic * kEntityWords + i; }

// Random numbers in the order in which they are asked for.
class Draws {
 public:
  Draws(uint64_t seed, const char* name) : random_(base::Random(seed).for_purpose("topic set").for_name(name)) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(random_.below(next_++, static_cast<uint64_t>(n))); }
  double uniform() { return random_.uniform(next_++); }
  std::vector<int64_t> distinct(int64_t count, std::vector<int64_t> from) {
    for (int64_t i = 0; i < count; ++i)
      std::swap(from[static_cast<size_t>(i)], from[static_cast<size_t>(i + below(static_cast<int64_t>(from.size()) - i))]);
    from.resize(static_cast<size_t>(count));
    return from;
  }

 private:
  base::Random random_;
  uint64_t next_ = 0;
};

std::vector<int64_t> up_to(int64_t n) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] = i;
  return all;
}

struct Passage {
  int64_t topic = 0;
  std::vector<int64_t> entities;
};

void write_tokenizer(const std::string& file) {
  std::vector<std::string> specials{std::string(data::kEndOfText)};
  for (int64_t i = 0; i < kVocabulary; ++i) specials.push_back(word(i));
  const auto vocab = static_cast<int64_t>(256 + specials.size());
  base::write_atomically(file, data::make_bpe_tokenizer(data::train_bpe({}, {.vocab = vocab, .specials = std::move(specials)}))->json());
}

}  // namespace

TopicSet::TopicSet(const std::filesystem::path& folder, uint64_t seed)
    : folder_(folder.string()), tokenizer_((folder / "tokenizer.json").string()) {
  std::filesystem::create_directories(folder);
  write_tokenizer(tokenizer_);
  constexpr int64_t kPassages = kTopics * kPassagesPerTopic;
  std::vector<Passage> passages;
  std::ofstream collection(folder / "collection.tsv"), queries(folder / "queries.tsv"), pairs(folder / "pairs.tsv"),
      judged(folder / "qrels.tsv");
  Draws draws(seed, "passages");
  for (int64_t p = 0; p < kPassages; ++p) {
    const Passage& one = passages.emplace_back(Passage{p / kPassagesPerTopic, draws.distinct(kOwnEntities, up_to(kEntityWords))});
    collection << p << '\t';
    for (int64_t i = 0; i < kPassageWords; ++i) {
      const double kind = draws.uniform();
      collection << word(kind < 0.45   ? topic_word(one.topic, draws.below(kTopicWords))
                         : kind < 0.80 ? entity_word(one.topic, one.entities[static_cast<size_t>(draws.below(kOwnEntities))])
                                       : draws.below(kVocabulary));
    }
    collection << '\n';
  }
  Draws asked(seed, "queries");
  scores_ = at::empty({kTraining + kTest, kPassages});
  for (int64_t q = 0; q < kTraining + kTest; ++q) {
    const int64_t right = asked.below(kPassages), topic = passages[static_cast<size_t>(right)].topic;
    const std::vector<int64_t> entities = asked.distinct(kQueryPart, passages[static_cast<size_t>(right)].entities);
    queries << q << '\t';
    for (int64_t i = 0; i < kQueryPart; ++i) queries << word(topic_word(topic, asked.below(kTopicWords)));
    for (const int64_t entity : entities) queries << word(entity_word(topic, entity));
    queries << '\n';
    float* const row = scores_.mutable_data_ptr<float>() + q * kPassages;
    for (int64_t p = 0; p < kPassages; ++p) {
      const Passage& other = passages[static_cast<size_t>(p)];
      const auto common = std::ranges::count_if(
          entities, [&](int64_t entity) { return std::ranges::find(other.entities, entity) != other.entities.end(); });
      row[p] = other.topic == topic ? 3 + 2 * static_cast<float>(common) : 0;
    }
    if (q >= kTraining) {
      judged << q << " 0 " << right << " 1\n";
      continue;
    }
    for (int64_t i = 0; i < kWrongPassages; ++i) {
      int64_t wrong = right;
      while (wrong == right) wrong = i % 2 == 0 ? topic * kPassagesPerTopic + asked.below(kPassagesPerTopic) : asked.below(kPassages);
      pairs << fmt::format("{}\t{}\t{}\t{}\t{}\n", row[right], row[wrong], q, right, wrong);
    }
  }
}

train::PassageScores TopicSet::teacher() const {
  return [table = scores_](std::span<const int64_t> queries, std::span<const int64_t> passages) {
    const auto picked = [](std::span<const int64_t> numbers) {
      const at::Tensor all = at::empty({static_cast<int64_t>(numbers.size())}, at::kLong);
      std::copy(numbers.begin(), numbers.end(), all.mutable_data_ptr<int64_t>());
      return all;
    };
    return table.index_select(0, picked(queries)).index_select(1, picked(passages));
  };
}

}  // namespace cairn::study
