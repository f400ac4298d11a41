#include "data/tokenizer/declared_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/tokenizer/bpe_trainer.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "scratch.h"

namespace cairn::data {
namespace {

using testing::ElementsAre;

// A tokenizer of bytes and these special tokens, from id 256 on, in a folder of its own.
struct ModelFolder {
  explicit ModelFolder(const std::vector<std::string>& specials) {
    const std::string_view nothing = "a";
    const Bpe bpe = train_bpe(std::span(&nothing, 1), {.vocab = 256 + static_cast<int64_t>(specials.size()), .specials = specials});
    scratch.write("tokenizer.json", write_tokenizer_json(bpe));
  }
  std::unique_ptr<Tokenizer> open() const { return open_tokenizer(scratch.path()); }
  Scratch scratch;
};

TEST(DeclaredTokens, AnyDeclaredTokenEndsADocumentWhateverItsName) {
  const std::pair<const char*, const char*> declarations[] = {{"tokenizer_config.json", R"({"eos_token": "<|end|>"})"},
                                                              {"tokenizer_config.json", R"({"eos_token": {"content": "<|end|>"}})"},
                                                              {"special_tokens_map.json", R"({"eos_token": "<|end|>"})"},
                                                              {"special_tokens_map.json", R"({"eos_token": {"content": "<|end|>"}})"},
                                                              {"config.json", R"({"eos_token_id": 257})"},
                                                              {"config.json", R"({"eos_token_id": [99999, 257, 256]})"},
                                                              {"generation_config.json", R"({"eos_token_id": 257})"}};
  for (const auto& [file, text] : declarations) {
    const ModelFolder folder({"<|other|>", "<|end|>"});
    EXPECT_EQ(folder.open()->find_end_of_text(), std::nullopt);
    folder.scratch.write(file, text);
    const auto tokenizer = folder.open();
    EXPECT_EQ(tokenizer->end_of_text(), 257) << text;
    EXPECT_EQ(tokenizer->end_of_text_name(), "<|end|>") << text;
    EXPECT_EQ(open_tokenizer(folder.scratch.path("tokenizer.json"))->end_of_text(), 257) << text;
  }
}

TEST(DeclaredTokens, TheTokenizersOwnFilesComeBeforeTheModelsAndNamesLast) {
  const ModelFolder folder({"<|a|>", "<|b|>", "<|c|>", "<|d|>", "<|endoftext|>"});
  EXPECT_EQ(folder.open()->end_of_text(), 260);
  folder.scratch.write("generation_config.json", R"({"eos_token_id": 259})");
  EXPECT_EQ(folder.open()->end_of_text(), 259);
  folder.scratch.write("config.json", R"({"eos_token_id": 258})");
  EXPECT_EQ(folder.open()->end_of_text(), 258);
  folder.scratch.write("special_tokens_map.json", R"({"eos_token": "<|b|>"})");
  EXPECT_EQ(folder.open()->end_of_text(), 257);
  folder.scratch.write("tokenizer_config.json", R"({"eos_token": "<|a|>"})");
  EXPECT_EQ(folder.open()->end_of_text(), 256);
  folder.scratch.write("tokenizer_config.json", R"({"eos_token": "<|not a token|>"})");
  EXPECT_EQ(folder.open()->end_of_text(), 258) << "a token that does not exist is none, and config.json comes next";
}

// Cached tokens hold the end of each document.
TEST(DeclaredTokens, ANewEndIsANewTokenizer) {
  const ModelFolder folder({"<|a|>", "<|endoftext|>"});
  const uint64_t before = hash(*folder.open());
  folder.scratch.write("config.json", R"({"eos_token_id": 257})");
  EXPECT_EQ(hash(*folder.open()), before) << "it declares what was chosen by name";
  folder.scratch.write("config.json", R"({"eos_token_id": 256})");
  EXPECT_NE(hash(*folder.open()), before);
}

TEST(DeclaredTokens, ATextBeginsWithBosOnlyWhereTheTokenizerAddsIt) {
  const ModelFolder folder({"<s>", "</s>"});
  EXPECT_THAT(folder.open()->begin_ids(), ElementsAre()) << "its name is no declaration";
  EXPECT_EQ(folder.open()->begin_of_text(), std::nullopt);
  folder.scratch.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  EXPECT_THAT(folder.open()->begin_ids(), ElementsAre());
  EXPECT_EQ(folder.open()->begin_of_text(), 256);
  EXPECT_THAT(text_prefix(*folder.open(), /*trained_here=*/false), ElementsAre());
  EXPECT_THAT(text_prefix(*folder.open(), /*trained_here=*/true), ElementsAre(257)) << "the end of the document before";
  folder.scratch.write("tokenizer_config.json",
                       R"({"bos_token": "<s>", "add_bos_token": true, "eos_token": "</s>", "add_eos_token": true})");
  EXPECT_THAT(folder.open()->encode("b", {.add_special = true}), ElementsAre(256, 'b', 257));
  EXPECT_THAT(text_prefix(*folder.open(), /*trained_here=*/true), ElementsAre(256));
}

TEST(DeclaredTokens, FlagsTakeAwayWhatThePostProcessorAdds) {
  const Scratch scratch;
  const std::string_view nothing = "a";
  Bpe bpe = train_bpe(std::span(&nothing, 1), {.vocab = 258, .specials = {"<s>", "</s>"}});
  bpe.begin = {256};
  scratch.write("tokenizer.json", write_tokenizer_json(bpe));
  EXPECT_THAT(open_tokenizer(scratch.path())->begin_ids(), ElementsAre(256));
  scratch.write("tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": false})");
  EXPECT_THAT(open_tokenizer(scratch.path())->begin_ids(), ElementsAre());
}

TEST(DeclaredTokens, AreThoseOfAModelsFolderNotOfAFileThatLiesThere) {
  const ModelFolder folder({"<|a|>", "<|endoftext|>"});
  folder.scratch.write("config.json", R"({"eos_token_id": 256})");
  std::filesystem::copy_file(folder.scratch.path("tokenizer.json"), folder.scratch.path("story.tokenizer.json"));
  EXPECT_EQ(open_tokenizer(folder.scratch.path("story.tokenizer.json"))->end_of_text(), 257);
}

}  // namespace
}  // namespace cairn::data
