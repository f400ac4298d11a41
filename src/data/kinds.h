// The kinds of data, as data: what each value of data.kind gives and needs. Code that depends on it reads DataNeeds; only the list in
// kinds.cpp knows the names.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::data {

struct DataNeeds {
  std::string name;                   // in data.kind
  bool tokens = false;                // samples are token ids from a tokenizer; false: labelled examples
  bool pairs = false;                 // a sample is a chosen and a rejected answer; training compares them with a frozen reference model
  bool table = false;                 // labelled rows of a CSV file; the file says how many features and classes
  bool retrieval = false;             // a sample is a query with one right and one wrong passage
  bool clips = false;                 // a sample is a short video with a label
  bool images = false;                // a sample is a picture with a label
  bool rollouts = false;              // a sample is an answer that a policy gave, with its advantage and log-probabilities
  int64_t features = 0, classes = 0;  // of labelled examples
  std::string built_in = {};          // what it is where no file is named: "the built-in stories"; empty: a file must be named
  std::string records = {};           // what the lines of such a file have

  int64_t sequences() const { return pairs ? 2 : 1; }             // that a model reads of one sample
  bool is_text() const { return tokens && !pairs && !rollouts && !retrieval; }  // plain text: perplexity is defined
  bool length_varies() const { return pairs || rollouts || retrieval; }         // a batch is as long as its longest sample
};

// The entry called `kind`. Refuses an unknown name and suggests the nearest.
const DataNeeds& data_needs(const std::string& kind);
std::vector<std::string> data_kinds();

}  // namespace cairn::data
