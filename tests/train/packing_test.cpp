// Conversations packed into samples train like conversations that stand alone.
#include <gtest/gtest.h>

#include "base/log.h"
#include "data/corpus.h"
#include "harness/scratch_folder.h"
#include "train/tuning.h"

namespace cairn::train {
namespace {

constexpr const char* kChats = R"({"question": "Who?", "answer": "A cat."}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "dd"}]}
{"instruction": "Add.", "input": "1 2", "output": "3"}
{"conversations": [{"from": "human", "value": "Why is the sky blue, and why is it dark at night?"}, {"from": "gpt", "value": "Light and its absence, in a word or two."}]}
{"question": "?", "answer": "!"}
{"text": "And a plain document."}
{"question": "Thirty letters or so to begin with", "answer": "yes"}
)";

int64_t samples_in(const std::string& path, const std::string& packing) {
  base::Log log = base::Log::quiet();
  data::DataOptions options;
  options.path = path;
  options.tokenizer = data::TokenizerKind::bytes;
  options.chat_template = "plain";
  options.length = 40;
  options.packing = data::parse_packing(packing);
  return data::open_corpus(options, {}, log).samples->training().count;
}

// The change of the weights by one step of gradient descent, and the loss before it.
struct OneStep {
  double loss = 0;
  at::Tensor change;
};

OneStep step_from(const std::string& base, const std::filesystem::path& out, const Sets& sets, int ranks, const model::AdapterShape& lora) {
  const Sets all = Sets{"model.from=" + base, "optim.learning_rate=100"} + sets;
  tune(out / "moved", all, {.ranks = ranks});
  tune(out / "still", all + Sets{"optim.learning_rate=0"}, {.ranks = ranks});
  return {numbers_of(out / "moved", "loss").at(0), saved_model(out / "moved", 1, lora).flat - saved_model(out / "still", 1, lora).flat};
}

TEST(Packing, ChangesNeitherLossNorGradientOnOneRankOrTwoWithAdaptersOrWithout) {
  const harness::ScratchFolder scratch;
  const std::string base = make_base_model(scratch / "base"), chats = scratch.file("chats.jsonl", kChats).string();
  const int64_t alone = samples_in(chats, "none"), packed = samples_in(chats, "documents");
  ASSERT_EQ(alone, 8);  // the long one is cut into three, and the first part has no targets
  ASSERT_LT(packed, 7);
  const model::AdapterShape none, lora{.rank = 3, .alpha = 16, .targets = {"q_proj", "v_proj", "down_proj"}};
  for (const bool adapters : {false, true}) {
    Sets sets{"data.path=" + chats};
    if (adapters) sets = sets + Sets{"model.lora.rank=3", R"(model.lora.targets=["q_proj", "v_proj", "down_proj"])"};
    const auto step = [&](const std::string& packing, int64_t samples, int ranks) {
      return step_from(base, scratch / fmt::format("{}-{}-{}", packing, ranks, adapters),
                       sets + Sets{"data.packing=" + packing, fmt::format("train.global_batch={}", samples), "train.micro_batch=2"}, ranks,
                       adapters ? lora : none);
    };
    const OneStep expected = step("none", alone, 1);
    const double size = expected.change.norm().item<double>();
    EXPECT_GT(size, 1);
    for (const int ranks : {1, 2}) {
      for (const auto& [packing, samples] : {std::pair("documents", packed), std::pair("none", alone)}) {
        const OneStep found = step(packing, samples, ranks);
        EXPECT_NEAR(found.loss, expected.loss, 1e-6 * expected.loss) << packing << " on " << ranks;
        EXPECT_LT((found.change - expected.change).norm().item<double>(), 1e-6 * size) << packing << " on " << ranks;
      }
    }
  }
}

}  // namespace
}  // namespace cairn::train
