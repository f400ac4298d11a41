// Stores of `cairn unlearn` on a small decoder, as the proof of S3T makes, deletes from and asks them.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cli/text/language_model.h"
#include "unlearn/live.h"
#include "unlearn/store.h"
#include "unlearn/train_stages.h"

namespace cairn::base {
class Log;
}

namespace cairn::study {

struct ProofOptions;

// What stores are made of.
struct S3tWorld {
  std::filesystem::path base;                            // the frozen model
  std::vector<std::string> records = {}, held_out = {};  // texts
  int64_t length = 64;                                   // tokens of a record, at most
  int64_t judged = 56;                                   // tokens of a held-out text
  std::vector<std::string> sets = {};                    // of every store's recipe
  std::string device = "cpu";
};
// A frozen model of 8 layers that was trained on one source of text, and records of another: with options.data, pieces of that file.
S3tWorld small_s3t_world(const ProofOptions& options, base::Log& log);

class S3tStores {
 public:
  S3tStores(const ProofOptions& options, base::Log& log, S3tWorld world);

  int64_t records() const { return static_cast<int64_t>(world_.records.size()); }

  // A store that has not been trained. `sets` change the recipe.
  unlearn::Store make(const std::string& name, const std::vector<std::string>& sets, const std::vector<int64_t>& without = {}) const;
  // Trains what is missing, on ranks that are threads of this process.
  unlearn::TrainedStages train(const unlearn::Store& store, int ranks = 1) const;
  // One stage.
  unlearn::TrainedStage train_stage(const unlearn::Store& store, const unlearn::StageChain& chain) const;
  unlearn::Store trained(const std::string& name, const std::vector<std::string>& sets, const std::vector<int64_t>& without = {}) const;
  unlearn::Store copy(const unlearn::Store& store, const std::string& name) const;

  // What `cairn generate` opens.
  cli::LanguageModel open(const unlearn::Store& store) const;
  // Log probabilities of next tokens of held-out text of the records' source, [texts, length, vocab].
  at::Tensor predictions(cli::LanguageModel& model) const;
  // The share of next tokens that are the likeliest.
  double accuracy(const at::Tensor& predictions) const;
  // Of shards that answer with these chains (empty: a shard abstains; all empty: the base model). Remembered by the artifacts' names.
  double accuracy(const unlearn::Store& store, const std::vector<std::vector<unlearn::Artifact>>& chains) const;

 private:
  const ProofOptions& options_;
  base::Log& log_;
  const S3tWorld world_;
  std::filesystem::path records_file_;
  at::Tensor held_out_;  // tokens [texts, length]
  mutable std::map<std::string, double> known_;
};

// The bytes of an artifact's files.
std::string bytes_of_artifact(const unlearn::Store& store, const std::string& name);

}  // namespace cairn::study
