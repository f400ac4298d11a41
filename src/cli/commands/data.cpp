// `cairn data inspect`: what files hold. `cairn data tokenize`: writes a token shard.
#include <filesystem>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/recipe.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "data/chat/template_date.h"
#include "data/corpus/inspect.h"
#include "data/corpus/tokenize_progress.h"
#include "data/corpus/write_shard.h"

namespace cairn::cli {
namespace {

data::DataOptions options_of(const DataArguments& a) {
  base::Recipe recipe;
  recipe.set("data.path", a.path, "the path");
  if (!a.tokenizer.empty()) recipe.set("data.tokenizer_file", a.tokenizer, "--tokenizer");
  for (const std::string& set : a.sets) recipe.set(set);
  data::DataOptions options = recipe.read(data::data_schema());
  recipe.check_all_used();
  data::check_template_keys(options);
  if (data::needs_template_date(options)) options.template_date = data::day_of(base::wall_time());
  return options;
}

std::string facts_of(const data::SourceFile& file, const data::Inspection& found) {
  std::string facts =
      fmt::format("{:<6} {:>10}  {}", name(file.format), base::human_bytes(file.bytes), base::plural(found.documents, "document"));
  if (file.holds_tokens()) return facts + ", " + base::plural(found.tokens, "token");
  facts += fmt::format(", {} of text", base::human_bytes(found.text_bytes));
  if (found.target_bytes < found.text_bytes)
    facts += fmt::format(", {:.1f} % of it training targets",
                         100.0 * static_cast<double>(found.target_bytes) / static_cast<double>(found.text_bytes));
  return facts + ", " + base::plural(found.bad.count, "bad line");
}

// The beginning of a document. Text that is not a training target stands in brackets.
std::string beginning_of(const data::Document& document) {
  std::string text;
  for (const data::TextSegment& part : document.parts) text += part.is_target ? part.text : "[" + part.text + "]";
  constexpr size_t kShown = 500;
  return base::printable(text.size() > kShown ? fmt::format("{} …", std::string_view(text).substr(0, kShown)) : text);
}

int inspect(const DataArguments& a) {
  base::Terminal terminal;
  const data::DataOptions options = options_of(a);
  const data::DocumentOptions document_options =
      data::document_options_of(options, data::choose_chat_format(options, data::named_tokenizer(options).get()).renderer);
  data::BadLines bad;
  data::Document first;
  int64_t documents = 0;
  std::vector<std::string> skipped;
  for (const data::SourceFile& file : data::find_files(options.path, options.format, "data.path", &skipped)) {
    const data::Inspection found =
        data::inspect(file, document_options, {.line_bytes = options.line_bytes, .refuse_long = !options.skips_bad_lines()});
    terminal.line(fmt::format("{}\n  {}", file.path, facts_of(file, found)));
    bad.add(found.bad);
    documents += found.documents;
    if (first.parts.empty()) first = found.first;
  }
  if (!skipped.empty()) terminal.line(base::printable(data::describe_skipped(options.path, skipped)));
  for (const std::string& one : bad.named) terminal.line("bad: " + base::printable(one));
  if (bad.count > static_cast<int64_t>(bad.named.size())) terminal.line(fmt::format("bad: {} in all", bad.count));
  if (documents == 0)
    base::fail_input("{}: no document that can be used{}", options.path, bad.named.empty() ? "" : fmt::format("; {}", bad.named[0]));
  if (!first.parts.empty()) terminal.line("the first document begins:\n" + beginning_of(first));
  return 0;
}

int tokenize(const DataArguments& a) {
  auto terminal = std::make_shared<base::Terminal>();
  base::Log log({.level = base::Level::info, .terminal = terminal, .file = {}});
  const data::DataOptions options = options_of(a);
  if (std::filesystem::exists(a.out)) base::fail_input("--out {}: it is there already; choose another name or remove it", a.out);
  const base::RealClock clock;
  data::TokenizeProgress progress(*terminal, clock);
  const std::filesystem::path cache = cache_folder();
  const data::WrittenShard shard = data::write_shard(
      options, {.cache_folder = cache.empty() ? "" : (cache / "data").string(), .threads = processors(), .progress = std::ref(progress)},
      a.out, log);
  progress.finish();
  terminal->line(fmt::format("{}: {} of {}, {}", a.out, base::plural(shard.tokens, "token"), base::plural(shard.documents, "document"),
                             base::human_bytes(shard.bytes)));
  if (!options.tokenizer_file.empty()) return 0;
  const std::string tokenizer = a.out + ".tokenizer.json";
  base::write_atomically(tokenizer, shard.tokenizer->json());
  terminal->line(fmt::format("train on it with: cairn train --data {} --set data.tokenizer_file={}", a.out, tokenizer));
  return 0;
}

}  // namespace

int data_command(const DataArguments& a) { return a.act == DataArguments::Act::inspect ? inspect(a) : tokenize(a); }

}  // namespace cairn::cli
