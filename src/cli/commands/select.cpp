// `cairn select`: chooses documents of a pool to train on.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/commands/select_inputs.h"
#include "cli/launch/rank_process.h"
#include "cli/launch/rank_setups.h"
#include "cli/text/selection_report.h"
#include "data/selection/framed_file.h"
#include "evaluate/document_scores.h"

namespace cairn::cli {
namespace {

constexpr size_t kExamples = 5;
constexpr int64_t kNumbersBytesMax = int64_t{1} << 32;
constexpr const char* kScoreMethod = "score";  // writes a column instead of a subset

// --keep: a number of documents, or a fraction of those there are. 0: not given.
int64_t documents_to_keep(const std::string& text, int64_t candidates) {
  if (text.empty()) return 0;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_fraction = text.find('.') != std::string::npos;
  if (error != std::errc() || end != text.data() + text.size() || !(number > 0) ||
      (is_fraction ? number > 1 : number != std::floor(number)))
    base::fail_input("--keep {}: give a number of documents, as 500, or a fraction, as 0.25", text);
  if (is_fraction) return std::max<int64_t>(1, std::llround(number * static_cast<double>(candidates)));
  if (number > static_cast<double>(candidates))
    base::fail_input("--keep {}: there are {} documents to choose from. Keep at most these.", text, candidates);
  return static_cast<int64_t>(number);
}

// Refuses what cannot work, before any rank starts.
void check_select(const SelectArguments& a) {
  if (a.method == kScoreMethod) {
    if (a.by.empty() && a.numbers.empty())
      base::fail_input("select score: say which score: --by perplexity or --by ifd with --model DIR, or --numbers FILE");
    if (!a.numbers.empty() && a.by.empty()) base::fail_input("--numbers {}: give the column a name: --by NAME", a.numbers);
  } else {
    const evaluate::SelectionMethod& method = evaluate::selection_method(a.method);
    if (method.vectors && a.model.empty())
      base::fail_input("select {}: compares documents by a model's vectors: give --model DIR", a.method);
    if (method.queries && a.queries.empty())
      base::fail_input("select {}: needs target examples: give --queries NAME=FILE. Without any, use select balanced.", a.method);
    if (!method.queries && !a.queries.empty()) base::fail_input("--queries: select {} has no targets. Use select rds.", a.method);
    if (method.scores && a.by.empty())
      base::fail_input("select {}: say which score: --by perplexity, ifd or the NAME of a --column", a.method);
    if (a.keep.empty() && !(a.method == "dedup" && a.eps >= 0))
      base::fail_input("select {}: say how many documents to keep: --keep 500 or --keep 0.25{}", a.method,
                       a.method == "dedup" ? ", or give --eps" : "");
  }
  if (!a.export_file.empty() && !a.weights.empty())
    base::fail_input(
        "--export {}: records have no weights, so training on them is not training on the subset. Train with data.subset = {}, or leave "
        "--weights out.",
        a.export_file, a.out);
  for (const std::string& one : a.columns) name_and_file("--column", one);
  for (const std::string& one : a.queries) name_and_file("--queries", one);
  for (const std::string* file : {&a.from, &a.numbers})
    if (!file->empty() && !std::filesystem::exists(*file)) base::fail_input("{}: no such file", *file);
  if (!a.from.empty()) data::read_subset(a.from);
  const mesh::Mesh mesh = selection_mesh(a);
  if (!a.model.empty() && mesh.size() > 1) check_embedding_mesh(a.model, mesh);
  pool_options(a, "");
}

evaluate::SelectionOptions selection_options(const SelectArguments& a, int64_t keep) {
  return {.method = a.method,
          .keep = keep,
          .seed = static_cast<uint64_t>(a.seed),
          .clusters = a.clusters,
          .iterations = a.iterations,
          .restarts = a.restarts,
          .eps = a.eps,
          .concepts = {.neighbours = a.neighbours,
                       .temperature = a.temperature,
                       .balance = a.balance,
                       .shares = base::parse_enum(data::kConceptSharesNames, "--shares", a.shares),
                       .within = base::parse_enum(data::kConceptPickNames, "--within-cluster", a.within_cluster)},
          .quota = base::parse_enum(data::kKmqQuotaNames, "--quota", a.quota),
          .pick = base::parse_enum(data::kKmqPickNames, "--pick", a.pick),
          .within = base::parse_enum(data::kWithinTaskNames, "--within-task", a.within_task),
          .order = base::parse_enum(data::kScoreOrderNames, "--order", a.order)};
}

std::vector<float> among(const std::vector<float>& all, const std::vector<int64_t>& ids) {
  std::vector<float> some;
  for (const int64_t id : ids) some.push_back(all[static_cast<size_t>(id)]);
  return some;
}

// One selection on one rank; rank 0 writes what comes out.
class Selection {
 public:
  Selection(const SelectArguments& a, comm::World& world, const RankContext& context)
      : a_(a), world_(world), inputs_(a, world, context.ranks_here, context.threads) {}

  void run() {
    if (a_.method == kScoreMethod) return write_scores();
    if (is_made()) return;
    const evaluate::SelectionMethod& method = evaluate::selection_method(a_.method);
    evaluate::SelectionInputs given{.ids = inputs_.candidates()};
    const int64_t keep = documents_to_keep(a_.keep, static_cast<int64_t>(given.ids.size()));
    std::unique_ptr<data::RowSource> all, some;
    if (method.vectors) {
      all = inputs_.vectors();
      if (!a_.from.empty()) some = data::chosen_rows(*all, given.ids);
      given.vectors = some ? some.get() : all.get();
    }
    if (method.queries) given.tasks = inputs_.tasks(given.excluded);
    if (method.groups) given.groups = inputs_.groups(group_names_);
    if (!a_.by.empty()) given.scores = among(inputs_.column(a_.by), given.ids);
    evaluate::SelectionOptions options = selection_options(a_, keep);
    options.device = inputs_.search_device();
    result_ = evaluate::select_documents(options, given, &world_.everyone(), inputs_.progress());
    inputs_.end_progress();
    for (const std::string& warning : inputs_.warnings()) result_.warnings.push_back(warning);
    if (method.misled_by_duplicates && a_.from.empty())
      result_.warnings.push_back(fmt::format(
          "duplicates mislead select {}. Drop them first with `cairn select dedup --out FILE`, then choose --from FILE.", a_.method));
    data::DocumentSubset subset = subset_of_result();
    if (!a_.weights.empty()) {
      subset.weights = among(inputs_.column(a_.weights), subset.ids);
      for (const float weight : subset.weights)
        if (weight < 0) base::fail_input("--weights {}: {} is negative: a weight is a number from 0 on", a_.weights, weight);
    }
    if (world_.rank() != 0) return;
    if (const std::filesystem::path folder = std::filesystem::path(a_.out).parent_path(); !folder.empty()) base::make_folder(folder);
    data::write_subset(a_.out, subset);
    if (!a_.export_file.empty()) export_records(subset);
    print(subset);
    if (!a_.report.empty()) write_report(subset);
  }

 private:
  // Whether --out holds the result of the same command on the same data. The first rank looks.
  bool is_made() {
    bool made = false;
    if (world_.rank() == 0 && std::filesystem::exists(a_.out) && a_.report.empty()) {
      try {
        const data::DocumentSubset there = data::read_subset(a_.out);
        made = there.input == inputs_.input_hash();
        if (made) {
          if (!a_.export_file.empty()) export_records(there);
          terminal_.line(fmt::format("{}: this selection is there already: {} of {} documents, hash {}", a_.out, there.ids.size(),
                                     there.documents, data::hash_text(there.hash())));
        }
      } catch (const Error&) {  // it is replaced
        made = false;
      }
    }
    return inputs_.as_first_rank(made);
  }

  data::DocumentSubset subset_of_result() const {
    data::DocumentSubset subset{.source = inputs_.pool().digest(),
                                .documents = inputs_.pool().documents(),
                                .method = a_.method,
                                .input = inputs_.input_hash(),
                                .how = result_.figures};
    for (const int64_t position : result_.kept) subset.ids.push_back(inputs_.candidates()[static_cast<size_t>(position)]);
    if (!inputs_.model_hash().empty()) subset.how["model"] = inputs_.model_hash();
    subset.how["command"] = a_.identity();
    return subset;
  }

  void write_scores() {
    std::vector<float> scores = a_.numbers.empty() ? inputs_.column(a_.by) : read_numbers();
    inputs_.end_progress();
    if (world_.rank() != 0) return;
    data::write_column(a_.out, {.source = inputs_.pool().digest(), .name = a_.by, .scores = scores, .input = inputs_.input_hash()});
    std::ranges::sort(scores);
    terminal_.line(fmt::format("{}: {} of {} documents: lowest {:.4g}, median {:.4g}, highest {:.4g}", a_.out, a_.by, scores.size(),
                               scores.front(), scores[scores.size() / 2], scores.back()));
  }

  // A number on each line, one for each document.
  std::vector<float> read_numbers() const {
    const std::string text = base::read_file(a_.numbers, kNumbersBytesMax);
    std::vector<float> numbers;
    for (size_t at = 0, line = 1; at < text.size(); ++line) {
      const size_t end = std::min(text.find('\n', at), text.size());
      float number = NAN;
      const auto read = std::from_chars(text.data() + at, text.data() + end, number);
      const bool rest_is_blank = text.find_first_not_of(" \t\r", static_cast<size_t>(read.ptr - text.data())) >= end;
      if (read.ec != std::errc() || !rest_is_blank || !std::isfinite(number))
        base::fail_input("{}:{}: not a finite number. Write one for each document.", a_.numbers, line);
      numbers.push_back(number);
      at = end + 1;
    }
    if (static_cast<int64_t>(numbers.size()) != inputs_.pool().documents())
      base::fail_input("{}: {} numbers for {} documents. Write one for each document.", a_.numbers, numbers.size(),
                       inputs_.pool().documents());
    return numbers;
  }

  void export_records(const data::DocumentSubset& subset) const {
    base::FileWriter file(a_.export_file);
    size_t at = 0;
    data::for_each_record(inputs_.pool().data(), "", [&](const data::PoolRecord& record) {
      if (at == subset.ids.size() || record.document != subset.ids[at]) return;
      file.write(record.json + "\n");
      ++at;
    });
    CAIRN_CHECK(at == subset.ids.size(), "{} of {} documents were found again", at, subset.ids.size());
    file.commit();
  }

  void print(const data::DocumentSubset& subset) {
    terminal_.line(fmt::format("{}: kept {} of {} documents{}, hash {}", a_.out, subset.ids.size(), inputs_.candidates().size(),
                               a_.from.empty() ? "" : " of " + a_.from, data::hash_text(subset.hash())));
    for (const std::string& warning : result_.warnings) terminal_.line("warning: " + warning);
    for (const auto& [name, value] : figure_lines(result_.figures)) terminal_.line(base::printable(fmt::format("  {}: {}", name, value)));
    if (inputs_.pool().sources() > 1 || !group_names_.empty())
      for (const SelectionReport::Share& one : shares(subset))
        terminal_.line(base::printable(fmt::format("  {}: {} of {}", one.name, one.kept, one.pool)));
    std::vector<int64_t> examples(subset.ids.begin(),
                                  subset.ids.begin() + static_cast<std::ptrdiff_t>(std::min(kExamples, subset.ids.size())));
    terminal_.line(fmt::format("  first documents: {}", fmt::join(examples, ", ")));
  }

  std::vector<SelectionReport::Share> shares(const data::DocumentSubset& subset) {
    std::vector<std::string> names = group_names_;
    std::vector<int32_t> groups = names.empty() ? inputs_.groups(names) : groups_again(names);
    std::vector<SelectionReport::Share> shares;
    for (const std::string& name : names) shares.push_back({name});
    size_t at = 0;
    for (size_t i = 0; i < groups.size(); ++i) {
      SelectionReport::Share& one = shares[static_cast<size_t>(groups[i])];
      ++one.pool;
      if (at == subset.ids.size() || inputs_.candidates()[i] != subset.ids[at]) continue;
      ++one.kept;
      ++at;
    }
    return shares;
  }
  std::vector<int32_t> groups_again(std::vector<std::string>& names) {
    names.clear();
    return inputs_.groups(names);
  }

  void write_report(const data::DocumentSubset& subset) {
    SelectionReport report{.command = "cairn select " + a_.identity(), .figures = result_.figures, .warnings = result_.warnings};
    report.facts = {{"method", fmt::format("{}: {}", a_.method, evaluate::selection_method(a_.method).about)},
                    {"documents", fmt::format("{} of {}", subset.ids.size(), inputs_.candidates().size())},
                    {"hash", data::hash_text(subset.hash())},
                    {"source", data::hash_text(subset.source)}};
    if (!inputs_.model_hash().empty()) report.facts.emplace_back("model", a_.model + ", " + inputs_.model_hash());
    report.score_name = result_.score_name;
    std::vector<bool> kept(inputs_.candidates().size(), false);
    for (const int64_t position : result_.kept) kept[static_cast<size_t>(position)] = true;
    for (size_t i = 0; i < result_.scores.size(); ++i) (kept[i] ? report.kept_scores : report.dropped_scores).push_back(result_.scores[i]);
    report.shares = shares(subset);
    add_examples(report, kept);
    write_selection_report(a_.report, report);
    terminal_.line(fmt::format("  report: {}", (std::filesystem::path(a_.report) / "report.html").string()));
  }

  // The best of the kept and of the dropped documents by score; without scores, the first.
  void add_examples(SelectionReport& report, const std::vector<bool>& kept) const {
    std::vector<int64_t> order(kept.size());
    std::iota(order.begin(), order.end(), 0);
    if (!result_.scores.empty())
      std::ranges::stable_sort(
          order, [&](int64_t a, int64_t b) { return result_.scores[static_cast<size_t>(a)] > result_.scores[static_cast<size_t>(b)]; });
    std::array<size_t, 2> counts{};
    for (const int64_t position : order) {
      const auto at = static_cast<size_t>(position);
      if (counts[kept[at]]++ >= kExamples) continue;
      report.examples.push_back({.document = inputs_.candidates()[at],
                                 .kept = kept[at],
                                 .score = result_.scores.empty() ? 0 : result_.scores[at],
                                 .text = text_of(inputs_.candidates()[at])});
    }
  }
  std::string text_of(int64_t document) const {
    constexpr int64_t kTokensShown = 400;
    std::vector<int64_t> tokens;
    inputs_.pool().read(document, kTokensShown, tokens, nullptr);
    const std::vector<int32_t> ids(tokens.begin(), tokens.end());
    return inputs_.pool().corpus().tokenizer->decode(ids);
  }

  const SelectArguments& a_;
  comm::World& world_;
  SelectInputs inputs_;
  base::Terminal terminal_;
  evaluate::SelectionResult result_;
  std::vector<std::string> group_names_;
};

}  // namespace

std::string SelectArguments::identity() const {
  std::string text = fmt::format("{} --seed {}", method, seed);
  const auto add = [&](const char* option, const std::string& value, const std::string& usual) {
    if (value != usual) text += fmt::format(" {} {}", option, value);
  };
  const auto add_number = [&](const char* option, auto value, auto usual) {
    add(option, fmt::format("{}", value), fmt::format("{}", usual));
  };
  const SelectArguments usual;
  add("--keep", keep, "");
  add("--by", by, "");
  add("--weights", weights, "");
  add("--label", label, "");
  add("--pooling", pooling, usual.pooling);
  add("--text", this->text, usual.text);
  add_number("--max-tokens", max_tokens, usual.max_tokens);
  add_number("--clusters", clusters, usual.clusters);
  add_number("--iterations", iterations, usual.iterations);
  add_number("--restarts", restarts, usual.restarts);
  add_number("--neighbours", neighbours, usual.neighbours);
  add_number("--eps", eps, usual.eps);
  add_number("--temperature", temperature, usual.temperature);
  add_number("--balance", balance, usual.balance);
  add("--shares", shares, usual.shares);
  add("--within-cluster", within_cluster, usual.within_cluster);
  add("--quota", quota, usual.quota);
  add("--pick", pick, usual.pick);
  add("--within-task", within_task, usual.within_task);
  add("--order", order, usual.order);
  if (keep_queries) text += " --keep-queries";
  for (const std::string& set : sets) text += " --set " + set;
  for (const auto& [option, values] : {std::pair{"--column", &columns}, {"--queries", &queries}})
    for (const std::string& one : *values) text += fmt::format(" {} {}", option, one.substr(0, one.find('=')));
  return text;
}

int select_command(const SelectArguments& a, const std::vector<std::string>& command_line) {
  RankCommand command{.launch = a.launch,
                      .device = a.on.device,
                      .fingerprint = "select " + a.identity(),
                      .command_line = command_line,
                      .check = [&] { check_select(a); },
                      .body =
                          [&](comm::World& world, const RankContext& context) {
                            at::set_num_threads(context.threads);
                            Selection(a, world, context).run();
                          }};
  const mesh::Mesh mesh = selection_mesh(a);
  if (!a.launch.nproc_given) command.launch.nproc = mesh.size();
  if (command.launch.nproc == 1 && command.launch.nnodes <= 1 && command.launch.transport == "net") command.launch.transport = "local";
  return run_on_ranks(command);
}

}  // namespace cairn::cli
