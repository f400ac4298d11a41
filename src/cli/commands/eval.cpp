// `cairn eval`: measures a model on texts and tasks.
#include <cmath>
#include <memory>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/recipe.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/commands/eval_retrieval.h"
#include "cli/environment.h"
#include "cli/stderr_terminal.h"
#include "cli/text/language_model.h"
#include "data/chat/template_date.h"
#include "data/corpus.h"
#include "data/corpus/source_file.h"
#include "data/corpus/tokenize_progress.h"
#include "evaluate/exact_match.h"
#include "evaluate/multiple_choice.h"
#include "evaluate/perplexity.h"

namespace cairn::cli {
namespace {

constexpr int64_t kEvalLengthMax = 1 << 17;  // tokens read at once, where the model would read more
constexpr int64_t kPrefixBytesMax = 10'000'000;
constexpr size_t kPerFileFiguresMax = 100;  // with more files, figures are those of the given paths

// One line of the table: a figure, with its standard error if it is a fraction.
struct Figure {
  std::string task, name;
  double value = 0;
  std::optional<double> error = std::nullopt;
};

// One call of the command: the model, and the results so far.
class Evaluation {
 public:
  explicit Evaluation(const EvalArguments& a)
      : a_(a), stderr_(stderr_terminal()), log_({.level = base::Level::warn, .terminal = stderr_, .file = {}}) {
    if (a.data.empty() && a.tasks.empty()) base::fail_input("nothing to measure: give --data PATHS, --task KIND FILE.jsonl, or --retrieval FOLDER");
    for (const auto& [kind, file] : a.tasks)
      if (kind != "multiple-choice" && kind != "exact-match") base::fail_unknown("task", kind, {"multiple-choice", "exact-match"});
    for (const std::string& stop : a.stops)
      if (stop.empty()) base::fail_input("--stop: an empty text is everywhere; give one that is not");
    if (!a.prefix_file.empty()) prefix_ = base::read_file(a.prefix_file, kPrefixBytesMax);
    if (!a.items_file.empty()) items_ = std::make_unique<base::FileWriter>(a.items_file);
    at::set_num_threads(threads_among(1));
    model_ = open_language_model(a.folder, log_, a.on, a.domain);
    if (!model_.tokenizer)
      base::fail_input("{}: it has no tokenizer, and no text can be judged without one: put its tokenizer.json there", model_.path);
    model_.prepare_for_length(kEvalLengthMax);
    evaluated_ =
        std::make_unique<evaluate::EvaluatedModel>(evaluate::EvaluatedModel{.model = *model_.model,
                                                                            .weights = *model_.weights,
                                                                            .buffers = model_.buffers,
                                                                            .tokenizer = *model_.tokenizer,
                                                                            .vocab = model_.shape.vocab,
                                                                            .length = std::min(model_.shape.length, kEvalLengthMax),
                                                                            .text_prefix = model_.text_prefix(),
                                                                            .begin = model_.first_token(),
                                                                            .stops = model_.stops});
  }

  void measure_texts() {
    evaluate::PerplexityOptions options{.window = a_.window, .stride = a_.stride, .batch = a_.batch, .documents_max = a_.limit};
    check(options, *evaluated_);
    const data::DataOptions data = data_options();
    const data::Corpus corpus = open_texts(data);
    evaluate::TextLoss total;
    base::OrderedJson files = base::OrderedJson::array();
    for (size_t i = 0; i < corpus.token_streams.size(); ++i) {
      const std::string file = data.sources.empty() ? data.path : data.sources[i];
      options.add_prefix = !(corpus.conversations[i] && data.train_on_prompts);  // else perplexity() tells conversations by their targets
      int64_t document = 0;
      const auto keep = [&](const evaluate::TextLoss& one) {
        write_item({{"task", "perplexity"},
                    {"source", corpus.origins[i]},
                    {"document", document++},
                    {"tokens", one.tokens},
                    {"bytes", one.bytes},
                    {"loss", one.loss}});
      };
      const evaluate::TextLoss one =
          evaluate::perplexity(*evaluated_, *corpus.token_streams[i], options, keep, progress("perplexity", "tokens"));
      total.add(one);
      files.push_back({{"file", file}});
      files.back().update(figures_of(one));
      if (corpus.token_streams.size() > 1) add_figures(file, one);
    }
    if (total.tokens == 0) base::fail_input("--data {}: no token in it that can be judged", fmt::join(a_.data, " "));
    const int64_t window = options.window == 0 ? evaluated_->length : options.window;
    base::OrderedJson result{{"task", "perplexity"}, {"data", a_.data}};
    result.update(figures_of(total));
    result["files"] = std::move(files);
    result["window"] = window;
    result["stride"] = options.stride == 0 ? window : options.stride;
    result["before"] = total.conversations == total.documents ? std::vector<int32_t>() : evaluated_->text_prefix;
    results_.push_back(std::move(result));
    add_figures(corpus.token_streams.size() > 1 ? "all files" : "perplexity", total);
    notes_.push_back(fmt::format("perplexity: {} ({}) of {}; windows of {} tokens, {}; {}", base::plural(total.tokens, "token"),
                                 base::plural(total.bytes, "byte"), base::plural(total.documents, "document"), window,
                                 options.stride == 0 || options.stride == window
                                     ? std::string("one after the other")
                                     : fmt::format("each {} tokens after the one before", options.stride),
                                 what_stands_before(total)));
  }

  void answer_choices(const std::string& file) {
    const std::vector<evaluate::ChoiceItem> items = evaluate::read_choices(file, a_.limit);
    const auto keep = [&](const evaluate::ChoiceItem& item, const evaluate::ChoiceResult& result) {
      base::OrderedJson line{{"task", "multiple-choice"},
                             {"file", file},
                             {"line", item.line},
                             {"gold", item.gold},
                             {"picked", result.picked},
                             {"picked_norm", result.picked_norm},
                             {"picked_token", result.picked_token}};
      for (const evaluate::ChoiceScore& score : result.scores) {
        line["log_likelihoods"].push_back(score.log_likelihood);
        line["tokens"].push_back(score.tokens);
        line["bytes"].push_back(score.bytes);
      }
      if (result.cut) line["cut"] = true;
      write_item(line);
    };
    const evaluate::ChoiceSummary summary =
        evaluate::multiple_choice(*evaluated_, items, {.prefix = prefix_, .batch = a_.batch}, keep, progress("multiple-choice", "items"));
    base::OrderedJson result{{"task", "multiple-choice"}, {"file", file}, {"items", items.size()}, {"cut", summary.cut}};
    add_share(result, file, "acc", summary.acc);
    add_share(result, "", "acc_norm", summary.acc_norm);
    add_share(result, "", "acc_token", summary.acc_token);
    results_.push_back(std::move(result));
    notes_.push_back(fmt::format("multiple-choice: {} of {}; acc by the summed log-likelihood, acc_norm per byte, acc_token per token{}",
                                 base::plural(static_cast<int64_t>(items.size()), "item"), file,
                                 summary.cut > 0 ? fmt::format("; {} lost {} beginning: too long", base::plural(summary.cut, "context"),
                                                               summary.cut == 1 ? "its" : "their")
                                                 : ""));
  }

  void answer_prompts(const std::string& file) {
    const std::vector<evaluate::AnswerItem> items = evaluate::read_answers(file, a_.limit);
    const auto keep = [&](const evaluate::AnswerItem& item, const evaluate::AnswerResult& result) {
      write_item({{"task", "exact-match"},
                  {"file", file},
                  {"line", item.line},
                  {"text", result.text},
                  {"answers", item.answers},
                  {"exact", result.exact},
                  {"exact_norm", result.exact_norm},
                  {"stopped", result.ended}});
    };
    const evaluate::AnswerSummary summary =
        evaluate::exact_match(*evaluated_, items, {.prefix = prefix_, .stops = a_.stops, .tokens = a_.tokens, .batch = a_.batch}, keep,
                              progress("exact-match", "items"));
    base::OrderedJson result{{"task", "exact-match"}, {"file", file}, {"items", items.size()}};
    add_share(result, file, "exact_match", summary.exact_match);
    add_share(result, "", "exact_match_norm", summary.exact_match_norm);
    results_.push_back(std::move(result));
    notes_.push_back(
        fmt::format("exact-match: {} of {}; greedy answers of at most {} tokens; exact_match but for spaces around it, "
                    "exact_match_norm without case, punctuation and articles",
                    base::plural(static_cast<int64_t>(items.size()), "item"), file, a_.tokens));
  }

  void show(double seconds) {
    if (items_) items_->commit();
    base::Terminal terminal;
    if (a_.json) {
      terminal.line(base::compact(base::OrderedJson{{"model", model_.path}, {"results", results_}, {"seconds", seconds}}));
      return;
    }
    size_t width = 4;
    for (const Figure& one : figures_) width = std::max(width, one.task.size());
    terminal.line(fmt::format("{:<{}}  {:<16} {:>12}  {}", "task", width, "figure", "value", "standard error"));
    for (const Figure& one : figures_)
      terminal.line(base::printable(fmt::format("{:<{}}  {:<16} {:>12.4f}{}", one.task, width, one.name, one.value,
                                                one.error ? fmt::format("  {:.4f}", *one.error) : "")));
    terminal.line("");
    for (const std::string& note : notes_) terminal.line(base::printable(note));
  }

 private:
  static base::OrderedJson figures_of(const evaluate::TextLoss& loss) {
    const auto figure = [](double value) { return std::isfinite(value) ? base::OrderedJson(value) : base::OrderedJson(nullptr); };
    return {{"documents", loss.documents},
            {"tokens", loss.tokens},
            {"bytes", loss.bytes},
            {"loss", figure(loss.mean())},
            {"perplexity", figure(loss.perplexity())},
            {"bits_per_byte", figure(loss.bits_per_byte())}};
  }

  void add_figures(const std::string& task, const evaluate::TextLoss& loss) {
    if (loss.tokens == 0) return notes_.push_back(fmt::format("{}: no token in it that can be judged", task));
    figures_.push_back({task, "loss", loss.mean()});
    figures_.push_back({"", "perplexity", loss.perplexity()});
    if (loss.bytes > 0) figures_.push_back({"", "bits per byte", loss.bits_per_byte()});
  }

  // --data as data.path or data.sources: each file is a source, with figures of its own, unless there are very many.
  data::DataOptions data_options() {
    base::Recipe recipe;
    if (a_.data.size() == 1) recipe.set("data.path", a_.data[0], "--data");
    if (a_.data.size() > 1) recipe.set("data.sources", a_.data, "--data");
    recipe.set("data.tokenizer_file", model_.path, "the model");
    for (const std::string& set : a_.sets) recipe.set(set);
    data::DataOptions options = recipe.read(data::data_schema());
    recipe.check_all_used();
    if (data::needs_template_date(options)) options.template_date = data::day_of(base::wall_time());
    if (!options.needs().is_text()) base::fail_input("data.kind = {}: perplexity is of text; leave it out", options.kind);
    std::vector<std::string> files, skipped;
    for (const std::string& path : a_.data)
      for (const data::SourceFile& file : data::find_files(path, options.format, "--data", &skipped)) files.push_back(file.path);
    if (const std::string words = data::describe_skipped("--data", skipped); !words.empty()) log_.warn("{}", words);
    if (files.size() > kPerFileFiguresMax || (files.size() == 1 && a_.data.size() == 1)) return options;
    options.path.clear();
    options.sources = std::move(files);
    return options;
  }

  // Opens the files as training would, tokenised by the model's tokenizer.
  data::Corpus open_texts(const data::DataOptions& options) {
    const std::filesystem::path cache = cache_folder();
    data::TokenizeProgress shown(*stderr_, clock_);
    const data::CorpusOptions how{
        .cache_folder = cache.empty() ? "" : (cache / "data").string(), .threads = processors(), .progress = std::ref(shown)};
    data::Corpus corpus = data::open_token_streams(options, how, log_);
    shown.finish();
    return corpus;
  }

  // Shows progress and the time left, once two seconds have passed.
  evaluate::OnProgress progress(const std::string& what, const std::string& unit) {
    auto shown = std::make_shared<base::Progress>(*stderr_, clock_, std::chrono::seconds(5));
    const std::chrono::nanoseconds start = clock_.now();
    return [this, what, unit, shown, start](int64_t done, int64_t of) {
      const std::chrono::nanoseconds passed = clock_.now() - start;
      if (done >= of) return stderr_->end_live();
      if (passed < std::chrono::seconds(2) || done == 0 || !shown->due()) return;
      const double left = static_cast<double>(passed.count()) * static_cast<double>(of - done) / static_cast<double>(done);
      shown->update(fmt::format("{}: {} of {} {}, {} left", what, done, of, unit,
                                base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(left)))));
    };
  }

  void write_item(const base::OrderedJson& item) {
    if (items_) items_->write(base::compact(item) + "\n");
  }

  void add_share(base::OrderedJson& result, const std::string& task, const std::string& name, const evaluate::Fraction& share) {
    result[name] = share.value();
    result[name + "_stderr"] = share.standard_error();
    figures_.push_back({task, name, share.value(), share.standard_error()});
  }

  std::string what_stands_before(const evaluate::TextLoss& total) const {
    const std::string chats = "conversations begin as their template writes them";
    if (total.conversations == total.documents) return chats;
    const std::vector<int32_t>& ids = evaluated_->text_prefix;
    const std::string text = evaluated_->tokenizer.decode(ids);
    const std::string texts = ids.empty() ? std::string("the first token of a document is not counted")
                                          : fmt::format("the first token of a document is judged after {}",
                                                        text.empty() ? fmt::format("id {}", fmt::join(ids, ", ")) : text);
    return total.conversations == 0 ? texts : texts + "; " + chats;
  }

  const EvalArguments& a_;
  const base::RealClock clock_;
  std::shared_ptr<base::Terminal> stderr_;
  base::Log log_;
  std::string prefix_;
  std::unique_ptr<base::FileWriter> items_;
  LanguageModel model_;
  std::unique_ptr<evaluate::EvaluatedModel> evaluated_;
  base::OrderedJson results_ = base::OrderedJson::array();
  std::vector<Figure> figures_;
  std::vector<std::string> notes_;
};

}  // namespace

int eval_command(const EvalArguments& a) {
  const base::RealClock clock;
  if (!a.retrieval.empty()) return eval_retrieval(a);
  Evaluation evaluation(a);
  if (!a.data.empty()) evaluation.measure_texts();
  for (const auto& [kind, file] : a.tasks) kind == "multiple-choice" ? evaluation.answer_choices(file) : evaluation.answer_prompts(file);
  evaluation.show(base::seconds(clock.now()));
  return 0;
}

}  // namespace cairn::cli
