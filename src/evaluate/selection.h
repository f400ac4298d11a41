// Chooses documents of a pool: the methods of `cairn select`.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "base/json.h"
#include "data/search/rows.h"
#include "data/selection/concepts.h"
#include "data/selection/simple_picks.h"
#include "data/selection/targets.h"

namespace cairn::comm {
class Group;
}

namespace cairn::evaluate {

// What a method reads. Data beside its name in selection.cpp; the command line derives its refusals from it.
struct SelectionMethod {
  const char* name;
  const char* about;     // one line for people
  bool vectors = false;  // of documents, so a model
  bool queries = false;  // target examples
  bool scores = false;   // a column of scores
  bool groups = false;   // a label or a source of each document
  bool misled_by_duplicates = false;
};
const SelectionMethod& selection_method(const std::string& name);  // refuses an unknown name
std::vector<std::string> selection_methods();

struct SelectionOptions {
  std::string method;
  int64_t keep = 0;  // documents; 0: dedup decides by eps
  uint64_t seed = 0;
  int64_t clusters = 0;  // 0: the method's own number
  int64_t iterations = 25;
  int64_t restarts = 1;
  double eps = -1;  // dedup: duplicates are above 1 - eps; -1: by `keep`
  data::ConceptOptions concepts = {};
  data::KmqQuota quota = data::KmqQuota::proportional;
  data::KmqPick pick = data::KmqPick::weighted;
  data::WithinTask within = data::WithinTask::round_robin;
  data::ScoreOrder order = data::ScoreOrder::highest;
  std::optional<at::Device> device = {};  // of matrix products; empty: the CPU. Changes no result
};

// What is chosen from. Everything is by position among the candidates; a field that the method does not read stays empty.
struct SelectionInputs {
  std::vector<int64_t> ids;                  // documents of the pool, ascending
  const data::RowSource* vectors = nullptr;  // of unit length
  std::vector<data::TargetTask> tasks = {};
  std::vector<bool> excluded = {};  // may not be chosen for a target
  std::vector<float> scores = {};   // the column; of kmq the quality
  std::vector<int32_t> groups = {};
};

using OnSelectionProgress = std::function<void(const std::string& doing, int64_t done, int64_t of)>;

struct SelectionResult {
  std::vector<int64_t> kept;                                // positions, ascending
  std::vector<float> scores = {};                           // of every candidate, what decided; empty: nothing like it
  std::string score_name = {};                              // "similarity to the nearest query"
  std::vector<int32_t> clusters = {};                       // of every candidate; empty: there are none
  base::OrderedJson figures = base::OrderedJson::object();  // for the report and the subset's file
  std::vector<std::string> warnings = {};
};

// The same on every rank of `ranks`, each of which calls it and does its share of the searches; null: one process. Neither ranks nor
// threads change the result. Refuses more than there is to keep.
SelectionResult select_documents(const SelectionOptions& options, const SelectionInputs& inputs, comm::Group* ranks,
                                 const OnSelectionProgress& progress = {});

}  // namespace cairn::evaluate
