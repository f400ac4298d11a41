#include "cli/commands/select_inputs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/recipe.h"
#include "base/text.h"
#include "cli/environment.h"
#include "cli/recipe_overrides.h"
#include "cli/stderr_terminal.h"
#include "cli/text/language_model.h"
#include "comm/group.h"
#include "data/chat/template_date.h"
#include "data/corpus/source_tokens.h"
#include "data/corpus/tokenize_progress.h"
#include "data/selection/framed_file.h"
#include "evaluate/document_scores.h"
#include "kernels/aten.h"

namespace cairn::cli {
namespace {

constexpr int64_t kDocumentsAtOnce = 512;  // that are embedded between two writes
constexpr int64_t kLongShare = 20;         // of documents that are cut: a twentieth is worth a warning
constexpr uint64_t kSelectVersion = 2, kScoreVersion = 2;

std::string data_cache_folder() {
  const std::filesystem::path cache = cache_folder();
  return cache.empty() ? std::string() : (cache / "data").string();
}

// "alpaca.jsonl" of "data.sources[0] = alpaca.jsonl": the user wrote --data.
std::string file_of_origin(const std::string& origin) {
  const size_t at = origin.find(" = ");
  return at == std::string::npos ? origin : origin.substr(at + 3);
}

uint64_t hash_of_document(const data::Pool& pool, int64_t document) {
  std::vector<int64_t> tokens;
  pool.read(document, pool.tokens_in(document), tokens, nullptr);
  return base::checksum(std::as_bytes(std::span(tokens)));
}

}  // namespace

data::DataOptions pool_options(const SelectArguments& a, const std::string& model_directory) {
  base::Recipe recipe;
  if (a.data.size() == 1) recipe.set("data.path", a.data[0], "--data");
  if (a.data.size() > 1) recipe.set("data.sources", a.data, "--data");
  if (model_directory.empty())
    recipe.set("data.tokenizer", std::string("bytes"), "cairn select");  // documents are counted, not read
  else
    recipe.set("data.tokenizer_file", model_directory, "the model");
  for (const std::string& set : a.sets) recipe.set(set);
  data::DataOptions options = recipe.read(data::data_schema());
  recipe.check_all_used();
  if (!options.subset.empty()) base::fail_input("data.subset: chains of selections are written with --from. Leave it out.");
  if (data::needs_template_date(options)) options.template_date = data::day_of(base::wall_time());
  return options;
}

std::pair<std::string, std::string> name_and_file(const std::string& option, const std::string& text) {
  const size_t at = text.find('=');
  if (at == 0 || at == std::string::npos || at + 1 == text.size())
    base::fail_input("{} {}: give a name and a file, as {} NAME=FILE", option, text, option);
  return {text.substr(0, at), text.substr(at + 1)};
}

mesh::Mesh selection_mesh(const SelectArguments& a) {
  mesh::Mesh mesh;
  int others = 1;
  bool has_dp = false;
  if (!a.mesh.empty()) {
    for (const mesh::Axis& axis : parse_mesh_axes(a.mesh)) {
      has_dp = has_dp || axis.name == "dp";
      others *= axis.size;
      if (axis.size > 1) mesh.axes.push_back(axis);
    }
  }
  if (!a.launch.nproc_given || a.launch.nproc == others) return mesh;
  if (has_dp || a.launch.nproc % others != 0)
    base::fail_input("--mesh {} --nproc {}: the mesh is {} ranks. Give a multiple of them without dp, or leave --nproc out.", a.mesh,
                     a.launch.nproc, others);
  mesh.axes.insert(mesh.axes.begin(), {"dp", a.launch.nproc / others});
  return mesh;
}

SelectInputs::SelectInputs(const SelectArguments& a, comm::World& world, int ranks_here, int threads)
    : a_(a),
      world_(world),
      ranks_here_(ranks_here),
      threads_(threads),
      terminal_(stderr_terminal()),
      cache_(data_cache_folder(), world.log()) {
  if (!a.model.empty()) {
    directory_ = model_directory(a.model, world.log());
    model_hash_ = cli::model_hash(directory_, cache_);
  }
  data_ = pool_options(a, directory_);
  pool_ = std::make_unique<data::Pool>(open(data_));
  input_ = data::combine({kSelectVersion, pool_->digest(), base::checksum(a.identity()), base::checksum(model_hash_)});
  if (a.from.empty()) {
    candidates_.resize(static_cast<size_t>(pool_->documents()));
    std::iota(candidates_.begin(), candidates_.end(), 0);
  } else {
    const data::DocumentSubset from = data::read_subset(a.from);
    data::check_source(from, "--from", a.from, pool_->digest(), pool_->documents());
    candidates_ = from.ids;
    input_ = data::combine({input_, from.hash()});
  }
  for (const auto* files : {&a.columns, &a.queries})
    for (const std::string& one : *files) input_ = data::combine({input_, cache_.content_hash(name_and_file("--column", one).second)});
}

data::Pool SelectInputs::open(const data::DataOptions& data) {
  data::CorpusOptions how{.cache_folder = data_cache_folder(), .threads = std::max(1, threads_)};
  if (world_.rank() != 0) return data::open_pool(data, how, world_.log());
  data::TokenizeProgress shown(*terminal_, clock_);
  how.progress = std::ref(shown);
  data::Pool pool = data::open_pool(data, how, world_.log());
  shown.finish();
  return pool;
}

evaluate::OnSelectionProgress SelectInputs::progress() {
  if (world_.rank() != 0) return {};
  struct Shown {
    base::Progress line;
    std::string doing;
    std::chrono::nanoseconds begun{0};
  };
  auto shown = std::make_shared<Shown>(Shown{base::Progress(*terminal_, clock_, std::chrono::seconds(5)), {}, {}});
  return [this, shown](const std::string& doing, int64_t done, int64_t of) {
    const std::chrono::nanoseconds now = clock_.now();
    if (shown->doing != doing) shown->doing = doing, shown->begun = now;
    const std::chrono::nanoseconds passed = now - shown->begun;
    if (done >= of) return terminal_->end_live();
    if (passed < std::chrono::seconds(2) || done == 0 || !shown->line.due()) return;
    const double left = static_cast<double>(passed.count()) * static_cast<double>(of - done) / static_cast<double>(done);
    shown->line.update(
        fmt::format("{}: {} of {}, {} left", doing, done, of, base::human_duration(std::chrono::nanoseconds(static_cast<int64_t>(left)))));
  };
}

std::vector<float> SelectInputs::column(const std::string& name) {
  for (const std::string& one : a_.columns) {
    const auto [given, file] = name_and_file("--column", one);
    if (given != name) continue;
    data::ScoreColumn column = data::read_column(file);
    data::check_source(column, "--column", file, pool_->digest(), pool_->documents());
    return std::move(column.scores);
  }
  if (!evaluate::is_document_score(name))
    base::fail_input("--by {}: no such column. Give --column {}=FILE, or perplexity or ifd with --model DIR.", name, name);
  if (a_.model.empty()) base::fail_input("--by {}: is computed by a model: give --model DIR, or --column {}=FILE", name, name);
  return computed_column(name);
}

std::optional<at::Device> SelectInputs::search_device() const {
  return model_ && model_->device().is_cuda() ? std::optional(model_->device()) : std::nullopt;
}

bool SelectInputs::as_first_rank(bool says) {
  int64_t yes = world_.rank() == 0 && says;
  world_.everyone().broadcast({&yes, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "select"}).wait_host();
  return yes != 0;
}

// Of the first rank, which alone looks: it may have written the file a moment ago, and machines have caches of their own.
bool SelectInputs::read_kept_column(const std::string& kept, uint64_t key, std::vector<float>& scores) {
  bool found = false;
  if (world_.rank() == 0 && !kept.empty() && std::filesystem::exists(kept)) {
    try {
      data::ScoreColumn column = data::read_column(kept);
      found = column.source == pool_->digest() && column.input == key && std::ssize(column.scores) == pool_->documents();
      if (found) scores = std::move(column.scores);
    } catch (const Error& error) {
      log().warn("{}", error.what());  // it is recomputed
    }
  }
  if (!as_first_rank(found)) return false;
  scores.resize(static_cast<size_t>(pool_->documents()));
  world_.everyone().broadcast({scores.data(), pool_->documents(), comm::Dtype::f32}, 0, {comm::Purpose::control, "scores"}).wait_host();
  return true;
}

// Ranks share the documents; each has the whole model.
std::vector<float> SelectInputs::computed_column(const std::string& name) {
  const uint64_t key =
      data::combine({pool_->digest(), base::checksum(model_hash_), base::checksum(text_identity()), base::checksum(name), kScoreVersion});
  const std::string kept = cache_folder().empty() ? std::string() : (cache_folder() / "columns" / (data::hash_text(key) + ".col")).string();
  std::vector<float> scores;
  if (read_kept_column(kept, key, scores)) return scores;
  if (!a_.mesh.empty()) base::fail_input("--mesh {}: scores are computed by a whole model on each rank. Use --nproc alone.", a_.mesh);
  LanguageModel model = open_language_model(a_.model, log(), a_.on);
  if (!model.tokenizer) base::fail_input("--model {}: it has no tokenizer: put its tokenizer.json there", a_.model);
  model.prepare_for_length(a_.max_tokens + 1);
  const evaluate::EvaluatedModel evaluated{.model = *model.model,
                                           .weights = *model.weights,
                                           .buffers = model.buffers,
                                           .tokenizer = *model.tokenizer,
                                           .vocab = model.shape.vocab,
                                           .length = std::min(model.shape.length, a_.max_tokens),
                                           .text_prefix = model.text_prefix(),
                                           .begin = model.first_token()};
  const evaluate::OnSelectionProgress shown = progress();
  world_.everyone().set_deadline(std::chrono::hours(24));  // ranks end at different times
  scores = evaluate::document_scores(
      evaluated, *pool_, name, {.max_tokens = a_.max_tokens}, &world_.everyone(),
      shown ? evaluate::OnProgress([&](int64_t done, int64_t of) { shown(name, done, of); }) : evaluate::OnProgress());
  if (!kept.empty() && world_.rank() == 0) {
    base::make_folder(std::filesystem::path(kept).parent_path());
    data::write_column(kept, {.source = pool_->digest(), .name = name, .scores = scores, .input = key});
  }
  return scores;
}

std::vector<int32_t> SelectInputs::groups(std::vector<std::string>& names) {
  std::vector<int32_t> groups;
  if (a_.label.empty()) {
    for (int64_t source = 0; source < pool_->sources(); ++source) names.push_back(file_of_origin(pool_->origin(source)));
    for (const int64_t document : candidates_) groups.push_back(static_cast<int32_t>(pool_->source_of(document)));
    return groups;
  }
  std::map<std::string, int32_t> numbers;
  std::vector<std::string> labels;
  data::for_each_record(data_, a_.label, [&](const data::PoolRecord& record) { labels.push_back(record.label); });
  CAIRN_CHECK(static_cast<int64_t>(labels.size()) == pool_->documents(), "{} records of {} documents", labels.size(), pool_->documents());
  for (const std::string& label : labels) numbers.emplace(label, 0);
  if (numbers.size() == 1 && numbers.begin()->first.empty())
    base::fail_input("--label {}: no record has this field. Name one that they have.", a_.label);
  for (auto& [label, number] : numbers) {
    number = static_cast<int32_t>(names.size());
    names.push_back(label.empty() ? "(none)" : label);
  }
  for (const int64_t document : candidates_) groups.push_back(numbers.at(labels[static_cast<size_t>(document)]));
  return groups;
}

evaluate::EmbedOptions SelectInputs::embed_options() const {
  return {.pooling = base::parse_enum(evaluate::kPoolingNames, "--pooling", a_.pooling),
          .text = base::parse_enum(evaluate::kEmbeddedTextNames, "--text", a_.text),
          .max_tokens = std::min(a_.max_tokens, model_length(a_.model)),
          .batch_tokens = a_.batch_tokens,
          .packs = a_.packed};
}

EmbeddingModel& SelectInputs::embedding_model() {
  if (!model_)
    model_ = std::make_unique<EmbeddingModel>(a_.model, world_, selection_mesh(a_), embed_options().max_tokens, a_.on, ranks_here_);
  return *model_;
}

std::string SelectInputs::text_identity() const {
  const data::Corpus& corpus = pool_->corpus();
  return fmt::format("{} of {} tokens, tokenizer {:016x}, template {:016x}", a_.text, a_.max_tokens, data::hash(*corpus.tokenizer),
                     corpus.chat ? base::checksum(corpus.chat->renderer.identity + (data_.train_on_prompts ? "all" : "")) : 0);
}

std::unique_ptr<data::RowSource> SelectInputs::vectors() {
  const data::EmbeddingFacts facts{.model = model_hash_, .text = text_identity(), .pooling = a_.pooling, .dim = embedding_model().dim()};
  std::filesystem::path folder = a_.index;
  if (folder.empty()) {
    if (cache_folder().empty()) base::fail_input("--index: there is no cache folder here: name a folder for the vectors");
    const uint64_t key = data::combine({pool_->digest(), base::checksum(facts.model + facts.text + facts.pooling)});
    folder = cache_folder() / "embeddings" / data::hash_text(key);
  }
  comm::Group& all = world_.everyone();
  const auto digest = [this](int64_t first, int64_t count) { return pool_->digest_of(first, count); };
  if (world_.rank() == 0) data::EmbeddingIndex(folder, facts, pool_->documents(), digest, "--index");
  all.barrier("embeddings").wait();
  const data::EmbeddingIndex index(folder, facts, pool_->documents(), digest, "--index");
  std::vector<size_t> missing;
  for (size_t shard = 0; shard < index.shards().size(); ++shard)
    if (!index.is_complete(shard)) missing.push_back(shard);
  all.barrier("embeddings").wait();  // nobody writes before all have looked
  const mesh::Mesh& mesh = embedding_model().mesh();
  const auto replicas = static_cast<size_t>(mesh.extent("dp")), replica = static_cast<size_t>(mesh.coordinate(world_.rank(), "dp"));
  const evaluate::OnSelectionProgress shown = progress();
  int64_t done = 0, of = 0;  // documents of this replica
  for (size_t i = replica; i < missing.size(); i += replicas) of += index.shards()[missing[i]].count;
  for (size_t i = replica; i < missing.size(); i += replicas)
    make_shard(index, missing[i], [&](int64_t documents) {
      done += documents;
      if (shown) shown("vectors of documents", done, of);
    });
  embedding_model().encoder().finish();
  all.set_deadline(std::chrono::hours(24));  // replicas end at different times
  all.barrier("embeddings").wait();
  warn_of_long_documents();
  return index.open();
}

void SelectInputs::warn_of_long_documents() {
  const evaluate::EmbedOptions options = embed_options();
  if (options.text != evaluate::EmbeddedText::conversation) return;
  int64_t longer = 0;
  for (const int64_t document : candidates_) longer += pool_->tokens_in(document) > options.max_tokens;
  if (longer * kLongShare <= std::ssize(candidates_)) return;
  warnings_.push_back(fmt::format("{} of {} documents are longer than {} tokens ({}), and the rest of them is not read", longer,
                                  candidates_.size(), options.max_tokens,
                                  options.max_tokens < a_.max_tokens ? "all that the model knows" : "--max-tokens"));
}

// All ranks of a replica embed; the first that has the vectors writes them, and says how many rows are there already.
void SelectInputs::make_shard(const data::EmbeddingIndex& index, size_t shard, const std::function<void(int64_t documents)>& done_more) {
  EmbeddingModel& model = embedding_model();
  const bool writes = model.encoder().is_first_with_vectors();
  std::optional<data::EmbeddingIndex::Writer> writer;
  if (writes) writer.emplace(index.write(shard));
  int64_t done = writes ? writer->done() : 0;
  comm::Group& replica = world_.group(model.mesh().peers_along(world_.rank(), {"pp", "cp", "tp"}), "embed");
  replica.all_reduce({&done, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "embedded rows"}).wait_host();
  const auto& [first, count] = index.shards()[shard];
  const evaluate::EmbedOptions options = embed_options();
  if (done > 0) done_more(done);
  for (int64_t some = 0; done < count; done += some) {
    some = std::min(kDocumentsAtOnce, count - done);
    const at::Tensor rows = evaluate::embed_documents(*pool_, first + done, some, options, model.device(),
                                                      [&](const mesh::Batch& batch) { return model.encode(batch); });
    if (writes) writer->append(rows);
    done_more(some);
  }
  if (writes) writer->finish();
}

std::vector<data::TargetTask> SelectInputs::tasks(std::vector<bool>& excluded) {
  std::vector<data::TargetTask> tasks;
  std::unordered_set<uint64_t> hashes;
  EmbeddingModel& model = embedding_model();
  comm::Group& replica = world_.group(model.mesh().peers_along(world_.rank(), {"pp", "cp", "tp"}), "embed");
  for (const std::string& one : a_.queries) {
    const auto [name, file] = name_and_file("--queries", one);
    data::DataOptions data = data_;
    data.sources.clear();
    data.weights.clear();
    data.path = file;
    const data::Pool queries = open(data);
    for (int64_t document = 0; document < queries.documents(); ++document) hashes.insert(hash_of_document(queries, document));
    at::Tensor rows = evaluate::embed_documents(queries, 0, queries.documents(), embed_options(), model.device(),
                                                [&](const mesh::Batch& batch) { return model.encode(batch); });
    model.encoder().finish();
    // Ranks of earlier stages get them too.
    at::Tensor known = model.encoder().is_first_with_vectors() ? rows : at::zeros({queries.documents(), model.dim()});
    replica.all_reduce(known, comm::Reduce::sum, {comm::Purpose::control, "queries"}).wait();
    tasks.push_back({name, known});
  }
  excluded.assign(candidates_.size(), false);
  if (!a_.keep_queries)
    for (size_t i = 0; i < candidates_.size(); ++i) excluded[i] = hashes.contains(hash_of_document(*pool_, candidates_[i]));
  return tasks;
}

}  // namespace cairn::cli
