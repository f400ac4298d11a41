// Multiple choice and exact answers: items, scores and shares.
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluate/exact_match.h"
#include "evaluate/multiple_choice.h"
#include "evaluate/small_model.h"
#include "harness/scratch_folder.h"
#include "model/generate/generate.h"

namespace cairn::evaluate {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <typename Act>
std::string why_not(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input) << error.what();
    return error.what();
  }
  return "accepted";
}

std::vector<int32_t> bytes_after_end(const std::string& text) {
  std::vector<int32_t> ids{256};
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

double log_likelihood(SmallModel& small, const std::string& context, const std::string& choice) {
  const std::vector<double> logs = small.log_probabilities(bytes_after_end(context + choice));
  double sum = 0;
  for (size_t i = context.size(); i < logs.size(); ++i) sum += logs[i];
  return sum;
}

std::vector<ChoiceItem> some_items() {
  std::vector<ChoiceItem> items;
  for (int64_t i = 0; i < 23; ++i)
    items.push_back({.context = "Q" + std::string(static_cast<size_t>(i % 9), 'q'),
                     .choices = {"yes", "no", std::string(static_cast<size_t>(i % 5 + 1), 'z')},
                     .gold = i % 3,
                     .line = i + 1});
  return items;
}

TEST(Fraction, HasTheStandardErrorOfAMean) {
  const Fraction share{.right = 3, .of = 4};
  EXPECT_DOUBLE_EQ(share.value(), 0.75);
  // The sample 1, 1, 1, 0: variance (3 * 0.0625 + 0.5625) / 3 = 0.25; its root over the root of 4.
  EXPECT_DOUBLE_EQ(share.standard_error(), 0.25);
  EXPECT_EQ((Fraction{.right = 1, .of = 1}.standard_error()), 0);
}

TEST(MultipleChoice, SumsTheLogLikelihoodOfEachChoice) {
  SmallModel small;
  std::vector<ChoiceResult> results;
  const std::vector<ChoiceItem> items = some_items();
  const ChoiceSummary summary =
      multiple_choice(small.evaluated(), items, {.batch = 4}, [&](const ChoiceItem&, const ChoiceResult& one) { results.push_back(one); });
  ASSERT_EQ(results.size(), items.size());
  Fraction acc, norm, token;
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<double> sums, per_byte, per_token;
    for (size_t c = 0; c < 3; ++c) {
      const std::string& choice = items[i].choices[c];
      sums.push_back(log_likelihood(small, items[i].context, " " + choice));
      per_byte.push_back(sums.back() / static_cast<double>(choice.size()));       // without the space before it
      per_token.push_back(sums.back() / static_cast<double>(choice.size() + 1));  // with it
      EXPECT_NEAR(results[i].scores[c].log_likelihood, sums[c], 1e-4);
      EXPECT_EQ(results[i].scores[c].tokens, static_cast<int64_t>(choice.size()) + 1);
    }
    const auto best = [](const std::vector<double>& all) { return std::max_element(all.begin(), all.end()) - all.begin(); };
    EXPECT_EQ(results[i].picked, best(sums));
    EXPECT_EQ(results[i].picked_norm, best(per_byte));
    EXPECT_EQ(results[i].picked_token, best(per_token));
    acc.add(best(sums) == items[i].gold), norm.add(best(per_byte) == items[i].gold), token.add(best(per_token) == items[i].gold);
  }
  EXPECT_EQ(summary.acc.right, acc.right);
  EXPECT_EQ(summary.acc_norm.right, norm.right);
  EXPECT_EQ(summary.acc_token.right, token.right);
  EXPECT_EQ(summary.acc.of, 23);
}

TEST(MultipleChoice, IsTheSameForAnyBatch) {
  SmallModel small;
  const auto scores = [&](int64_t batch) {
    std::vector<double> all;
    multiple_choice(small.evaluated(), some_items(), {.prefix = "P ", .batch = batch}, [&](const ChoiceItem&, const ChoiceResult& one) {
      for (const ChoiceScore& score : one.scores) all.push_back(score.log_likelihood);
    });
    return all;
  };
  const std::vector<double> one = scores(1);
  for (const int64_t batch : {2, 7, 100}) {
    const std::vector<double> many = scores(batch);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-5) << batch;
  }
  EXPECT_NEAR(one[0], log_likelihood(small, "P Q", " yes"), 1e-4) << "the prefix stands before the context";
}

TEST(MultipleChoice, MovesSpacesAtTheBorderToTheChoice) {
  SmallModel small;
  const EvaluatedModel evaluated = small.evaluated();
  const auto tokens_of = [&](const std::string& context, const std::string& choice) {
    const ChoiceText text = choice_text(evaluated, context, choice);
    std::string shown;
    for (const int32_t id : text.tokens) shown += id == 256 ? '$' : static_cast<char>(id);
    return shown.substr(0, static_cast<size_t>(text.first)) + "|" + shown.substr(static_cast<size_t>(text.first));
  };
  EXPECT_EQ(tokens_of("ab", "cd"), "$ab| cd");
  EXPECT_EQ(tokens_of("ab ", "cd"), "$ab| cd");
  EXPECT_EQ(tokens_of("ab", " cd"), "$ab| cd");
  EXPECT_EQ(tokens_of("ab\n", "cd"), "$ab|\ncd");
  EXPECT_EQ(tokens_of("", "cd"), "$|cd");
}

TEST(MultipleChoice, CutsTheBeginningOfAContextThatIsTooLong) {
  SmallModel small;
  const std::string longest(60, 'c');
  std::vector<ChoiceResult> results;
  const ChoiceSummary summary = multiple_choice(small.evaluated(), {{.context = longest, .choices = {"ab", "b"}, .gold = 0, .line = 1}}, {},
                                                [&](const ChoiceItem&, const ChoiceResult& one) { results.push_back(one); });
  EXPECT_EQ(summary.cut, 1);
  std::vector<int32_t> kept(22, 'c');
  for (const char c : std::string(" ab")) kept.push_back(c);
  const std::vector<double> logs = small.log_probabilities(kept);
  EXPECT_NEAR(results.at(0).scores[0].log_likelihood, logs[21] + logs[22] + logs[23], 1e-4);
  EXPECT_THAT(why_not([&] {
                multiple_choice(small.evaluated(), {{.context = "c", .choices = {longest, "b"}, .gold = 0, .line = 7}}, {});
              }),
              HasSubstr("line 7 of the items: a choice of 61 tokens, and the model reads 24"));
}

TEST(ExactMatch, NormalisesAsSquadDoes) {
  EXPECT_EQ(normalised("  The  Quick, brown\tFOX! "), "quick brown fox");
  EXPECT_EQ(normalised("an A+ the"), "");
  EXPECT_EQ(normalised("It's 3.5"), "its 35");
}

TEST(ExactMatch, ComparesGreedyAnswers) {
  SmallModel small;
  const EvaluatedModel evaluated = small.evaluated();
  const std::vector<std::string> prompts{"a", "bcd", "ef", "What?", "x y z"};
  std::vector<AnswerItem> items;
  std::vector<std::string> texts;
  for (const std::string& prompt : prompts) {
    const model::GenerateRequest request{bytes_after_end(prompt)};
    const auto answer = model::generate(evaluated.model, evaluated.weights, evaluated.buffers, std::span(&request, 1),
                                        {.tokens = 5, .length_max = 24, .sampling = {.temperature = 0}, .stops = {256}});
    std::string text;
    for (const int32_t id : answer[0].ids) text += static_cast<char>(id);
    text = text.substr(0, text.find('\n'));
    texts.push_back(text);
    items.push_back({.prompt = prompt, .answers = {"nothing like it", text}, .line = 1});
  }
  items[3].answers = {"other"};
  items[4].answers = {" " + texts[4] + "\n"};
  for (const int64_t batch : {1, 2, 16}) {
    std::vector<AnswerResult> results;
    const AnswerSummary summary = exact_match(evaluated, items, {.tokens = 5, .batch = batch},
                                              [&](const AnswerItem&, const AnswerResult& one) { results.push_back(one); });
    EXPECT_EQ(summary.exact_match.right, 4) << batch;
    EXPECT_EQ(summary.exact_match.of, 5);
    for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(results.at(i).text, texts[i]);
  }
  EXPECT_THAT(why_not([&] { exact_match(evaluated, {{.prompt = std::string(30, 'p'), .answers = {"x"}, .line = 9}}, {}); }),
              HasSubstr("line 9 of the items: a prompt of 31 tokens leaves no room"));
}

TEST(ExactMatch, EndsAnAnswerBeforeAStopText) {
  SmallModel small;
  std::vector<std::string> texts;
  const auto keep = [&](const AnswerItem&, const AnswerResult& one) { texts.push_back(one.text); };
  const std::vector<AnswerItem> items{{.prompt = "ab", .answers = {"x"}, .line = 1}};
  EvaluatedModel evaluated = small.evaluated();
  evaluated.stops = {};
  exact_match(evaluated, items, {.stops = {}, .tokens = 12}, keep);
  ASSERT_GE(texts[0].size(), 2u);
  exact_match(evaluated, items, {.stops = {texts[0].substr(1, 1)}, .tokens = 12}, keep);
  EXPECT_EQ(texts[1], texts[0].substr(0, texts[0].find(texts[0][1])));
}

TEST(ItemFile, ReadsTheUsualFields) {
  const harness::ScratchFolder scratch;
  const std::string path = scratch
                               .file("c.jsonl", R"({"ctx": "A", "endings": ["x", "y", "z"], "label": "2"}

{"question": "B", "choices": ["x", "y"], "answer": 1}
{"question": "C", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"}
{"context": "D", "question": "E", "options": ["no", "yes"], "gold": "yes"}
{"query": "F", "choices": ["x", "y"], "answer": "B"}
)")
                               .string();
  const std::vector<ChoiceItem> items = read_choices(path);
  ASSERT_EQ(items.size(), 5u);
  std::vector<int64_t> golds;
  for (const ChoiceItem& item : items) golds.push_back(item.gold);
  EXPECT_THAT(golds, ElementsAre(2, 1, 0, 1, 1));
  EXPECT_EQ(items[1].line, 3);
  EXPECT_EQ(items[3].context, "D\nE");
  EXPECT_EQ(read_choices(path, 2).size(), 2u);
  const std::vector<AnswerItem> answers = read_answers(
      scratch.file("a.jsonl", "{\"question\": \"1+1\", \"answer\": 2}\n{\"prompt\": \"p\", \"answers\": [\"a\", \"b\"]}").string());
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_THAT(answers[0].answers, ElementsAre("2"));
  EXPECT_THAT(answers[1].answers, ElementsAre("a", "b"));
}

TEST(ItemFile, RefusesEveryBadLineByNumberAndReason) {
  const harness::ScratchFolder scratch;
  const auto choices = [&](const std::string& text) { return why_not([&] { read_choices(scratch.file("x.jsonl", text).string()); }); };
  EXPECT_THAT(choices(""), HasSubstr("x.jsonl: no item in it"));
  EXPECT_THAT(choices("{\"question\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 0}\n{\"a\""),
              HasSubstr("x.jsonl:2: invalid JSON at byte"));
  EXPECT_THAT(choices("[1]"), HasSubstr(":1: not a JSON object"));
  EXPECT_THAT(choices("{\"a\": " + std::string(100, '[') + std::string(100, ']') + "}"), HasSubstr(":1: nested deeper than 16"));
  EXPECT_THAT(choices(R"({"choices": ["a", "b"], "answer": 0})"), HasSubstr("no field \"context\", \"ctx\", \"question\""));
  EXPECT_THAT(choices(R"({"question": ["q"], "choices": ["a", "b"], "answer": 0})"),
              HasSubstr("the question must be a text, and is array"));
  EXPECT_THAT(choices(R"({"question": "q", "answer": 0})"), HasSubstr("no field \"choices\""));
  EXPECT_THAT(choices(R"({"question": "q", "choices": "ab", "answer": 0})"), HasSubstr("the choices must be a list, and is string"));
  EXPECT_THAT(choices(R"({"question": "q", "choices": ["a"], "answer": 0})"), HasSubstr("1 choices; there must be 2"));
  EXPECT_THAT(choices(R"({"question": "q", "choices": ["a", ""], "answer": 0})"), HasSubstr("one of the choices is empty"));
  EXPECT_THAT(choices(R"({"question": "q", "choices": ["a", "b"], "answer": 2})"), HasSubstr("the answer 2 is none of the 2 choices"));
  EXPECT_THAT(choices(R"({"question": "q", "choices": ["a", "b"], "answer": "C"})"), HasSubstr("the answer \"C\" is none"));
  EXPECT_THAT(choices(R"({"question": "q", "choices": ["a", "b"]})"), HasSubstr("no field \"answer\""));
  const auto answers = [&](const std::string& text) { return why_not([&] { read_answers(scratch.file("x.jsonl", text).string()); }); };
  EXPECT_THAT(answers(R"({"prompt": "p"})"), HasSubstr("no field \"answer\""));
  EXPECT_THAT(answers(R"({"prompt": "p", "answer": {"a": 1}})"), HasSubstr("the answer must be a text, and is object"));
  EXPECT_THAT(answers(R"({"prompt": "p", "answers": []})"), HasSubstr("no answer is right"));
  EXPECT_THAT(why_not([&] { read_choices((scratch / "none.jsonl").string()); }), HasSubstr("none.jsonl"));
}

}  // namespace
}  // namespace cairn::evaluate
