// What `cairn select` chooses from: the pool, its vectors, columns of scores, target examples and groups, on one rank.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "cli/arguments.h"
#include "cli/text/embedding_model.h"
#include "comm/world.h"
#include "data/corpus/data_cache.h"
#include "data/selection/embedding_index.h"
#include "data/selection/pool.h"
#include "data/selection/subset_file.h"
#include "evaluate/selection.h"

namespace cairn::cli {

// The data.* keys of the pool. Refuses kinds of data without documents.
data::DataOptions pool_options(const SelectArguments& a, const std::string& model_directory);
// "NAME=FILE" as two words. Refuses what has no name.
std::pair<std::string, std::string> name_and_file(const std::string& option, const std::string& text);
// The mesh of --mesh and --nproc.
mesh::Mesh selection_mesh(const SelectArguments& a);

// One rank's view of everything. Members are filled as methods ask for them.
class SelectInputs {
 public:
  SelectInputs(const SelectArguments& a, comm::World& world, int ranks_here, int threads);

  const data::Pool& pool() const { return *pool_; }
  // Documents to choose from: those of --from, or all.
  const std::vector<int64_t>& candidates() const { return candidates_; }
  // A hash of everything that decides the result.
  uint64_t input_hash() const { return input_; }
  const std::string& model_hash() const { return model_hash_; }

  // Of every document of the pool: a file of --column, or computed by the model.
  std::vector<float> column(const std::string& name);
  // Groups of the candidates by --label or by source, and their names.
  std::vector<int32_t> groups(std::vector<std::string>& names);
  // The vectors of all documents, made where they are missing.
  std::unique_ptr<data::RowSource> vectors();
  // The target examples, and which candidates are one of them.
  std::vector<data::TargetTask> tasks(std::vector<bool>& excluded);

  // What the user should know of all this: "120 of 200 documents are longer than 96 tokens".
  const std::vector<std::string>& warnings() const { return warnings_; }

  // Where a GPU has the model, searches use it too; empty: the CPU.
  std::optional<at::Device> search_device() const;

  // What the first rank says, on all of them: whether a file is there must be one answer. All ranks call it.
  bool as_first_rank(bool says);

  evaluate::OnSelectionProgress progress();
  void end_progress() { terminal_->end_live(); }
  base::Log& log() { return world_.log(); }

 private:
  evaluate::EmbedOptions embed_options() const;
  EmbeddingModel& embedding_model();
  data::Pool open(const data::DataOptions& data);
  void make_shard(const data::EmbeddingIndex& index, size_t shard, const std::function<void(int64_t documents)>& done_more);
  void warn_of_long_documents();
  bool read_kept_column(const std::string& kept, uint64_t key, std::vector<float>& scores);
  std::vector<float> computed_column(const std::string& name);
  std::string text_identity() const;

  const SelectArguments& a_;
  comm::World& world_;
  int ranks_here_, threads_;
  base::RealClock clock_;
  std::shared_ptr<base::Terminal> terminal_;
  data::DataCache cache_;
  std::string directory_, model_hash_;
  data::DataOptions data_;
  std::unique_ptr<data::Pool> pool_;
  std::vector<int64_t> candidates_;
  uint64_t input_ = 0;
  std::vector<std::string> warnings_;
  std::unique_ptr<EmbeddingModel> model_;
};

}  // namespace cairn::cli
