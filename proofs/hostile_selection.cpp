// Bad inputs: subsets of documents, columns of scores, vectors of documents, and requests for what is not there.
#include <cstring>

#include "base/checksum.h"
#include "hostile_cases.h"

namespace cairn::study {
namespace {

using Arguments = std::vector<std::string>;
using Make = std::function<void(const HostileFolder&)>;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Arguments kTrain{"train", "--data", "p.jsonl", "--out", "x"};
const Arguments kOnSubset = kTrain + Arguments{"--set", "data.subset=kept", "--set", "data.tokenizer=bytes", "--set", "train.steps=1"};
const Arguments kPool{"--data", "p.jsonl", "--out", "x"};
const Arguments kRds = Arguments{"select", "rds", "--model", "m", "--queries", "t=q.jsonl", "--keep", "2", "--index", "i"} + kPool;

void good_pool(const HostileFolder& in) {
  for (const char* name : {"p.jsonl", "q.jsonl", "kept", "scores"}) in.good(std::string("selection/") + name, name);
  in.good("model", "m");
}

HostileCase selecting(const std::string& name, const Arguments& arguments, std::vector<std::string> said, const Make& make = {}) {
  return {"selection", name, arguments,
          [make](const HostileFolder& in) {
            good_pool(in);
            if (make) make(in);
          },
          std::move(said)};
}

HostileCase asked(const std::string& name, const Arguments& arguments, std::vector<std::string> said) {
  return selecting(name, Arguments{"select"} + arguments + kPool, std::move(said));
}

std::string eight_bytes(uint64_t number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

// A framed file (data/selection/framed_file.h) with a right length and checksum, whatever its header says.
std::string framed(const std::string& magic, const std::string& header, const std::string& body) {
  const std::string bytes = magic + eight_bytes(header.size()) + header + body;
  return bytes + eight_bytes(base::checksum(bytes));
}

struct Parts {
  std::string magic, header, body;
};
Parts parts_of(const std::string& bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes.data() + 8, sizeof length);
  return {bytes.substr(0, 8), bytes.substr(16, length), bytes.substr(16 + length, bytes.size() - 24 - length)};
}

// Rewrites a good file with another header, or other numbers, so that its checksum is right.
Make reframed(const std::string& file, const std::function<void(Parts&)>& change) {
  return [file, change](const HostileFolder& in) {
    Parts parts = parts_of(in.text(file));
    change(parts);
    in.file(file, framed(parts.magic, parts.header, parts.body));
  };
}

Make header_with(const std::string& file, const std::string& from, const std::string& to) {
  return reframed(file, [from, to](Parts& parts) { parts.header.replace(parts.header.find(from), from.size(), to); });
}

template <typename T>
Make number_at(const std::string& file, size_t place, T number) {
  return reframed(file, [place, number](Parts& parts) { std::memcpy(parts.body.data() + place * sizeof number, &number, sizeof number); });
}

// What can be wrong with either kind of file.
HostileCases framed_files(const std::string& what, const std::string& file, const std::string& magic, const Arguments& arguments) {
  HostileCases cases;
  const auto add = [&](const std::string& name, const Make& make, std::vector<std::string> said) {
    said.push_back(file);
    cases.push_back(selecting(what + "_" + name, arguments, std::move(said), make));
  };
  const auto with = [&file](const Bytes& bytes) { return [file, bytes](const HostileFolder& in) { in.file(file, bytes); }; };
  add("missing", [file](const HostileFolder& in) { in.remove(file); }, {});
  add("empty", with(""), {"does not begin like one"});
  add("a_text", with("these documents\n"), {"does not begin like one"});
  add("of_the_other_kind", reframed(file, [magic](Parts& parts) { parts.magic = magic == "cairnsb1" ? "cairncl1" : "cairnsb1"; }),
      {"does not begin like one"});
  add("magic_alone", with(magic), {"cut short"});
  add("header_length_of_2_to_63", with(magic + eight_bytes(uint64_t{1} << 63)), {"cut short"});
  add("header_beyond_the_file", with(magic + eight_bytes(4000) + "{}"), {"cut short"});
  add("header_not_json", reframed(file, [](Parts& parts) { parts.header = "{\"count\": "; }), {"header is damaged"});
  add("header_a_list", reframed(file, [](Parts& parts) { parts.header = "[]"; }), {"header is damaged"});
  add("header_empty", reframed(file, [](Parts& parts) { parts.header = "{}"; }), {"body_bytes"});
  add("header_deep", reframed(file, [](Parts& parts) { parts.header = "{\"how\": " + copies("[", 100'000); }), {"header is damaged"});
  add("header_with_a_key_twice", header_with(file, "{", "{\"count\": 3, \"count\": 3, "), {"header is damaged"});
  add("source_not_a_hash", header_with(file, "\"source\":\"", "\"source\":\"zz"), {"source"});
  add("source_a_number", header_with(file, "\"source\":\"", "\"source\":7, \"s\":\""), {"source"});
  add("count_negative", header_with(file, "\"count\":", "\"count\":-"), {"count"});
  add("count_of_2_to_62", header_with(file, "\"count\":", "\"count\":4611686018427387904, \"c\":"), {"promises"});
  add("count_a_text", header_with(file, "\"count\":", "\"count\":\"3\", \"c\":"), {"count"});
  add("one_too_many", header_with(file, "\"count\":", "\"count\":1"), {"promises"});
  add("cut_off", [file](const HostileFolder& in) { in.cut(file, 300); }, {});
  add("without_its_last_byte", [file](const HostileFolder& in) { in.cut(file, static_cast<int64_t>(in.text(file).size()) - 1); },
      {"promises"});
  add("with_a_byte_more", [file](const HostileFolder& in) { in.file(file, in.text(file) + "x"); }, {"promises"});
  add("a_byte_inverted", [file](const HostileFolder& in) { in.flip(file, -20); }, {"checksum"});
  add("of_other_data", header_with(file, "\"source\":\"", "\"source\":\"0123456789abcdef\", \"s\":\""), {"of other data"});
  add("a_folder", [file](const HostileFolder& in) { in.remove(file), in.folder(file); }, {});
  add("a_pipe", [file](const HostileFolder& in) { in.remove(file), in.pipe(file); }, {"not a regular file"});
  add("of_a_gigabyte", [file](const HostileFolder& in) { in.sparse(file, in.text(file), int64_t{1} << 30); }, {"promises"});
  return cases;
}

HostileCases subsets() {
  HostileCases cases = framed_files("subset", "kept", "cairnsb1", kOnSubset);
  for (HostileCase& one : HostileCases{
           selecting("subset_of_a_longer_pool", kOnSubset, {"kept", "of other data"},
                     header_with("kept", "\"documents\":", "\"documents\":9")),
           selecting("subset_with_a_document_twice", kOnSubset, {"kept", "document 1"}, number_at<int64_t>("kept", 1, 1)),
           selecting("subset_with_a_document_beyond_the_pool", kOnSubset, {"kept", "document 20"}, number_at<int64_t>("kept", 4, 20)),
           selecting("subset_with_a_negative_document", kOnSubset, {"kept", "document -1"}, number_at<int64_t>("kept", 0, -1)),
           selecting("subset_with_other_documents", kOnSubset, {"kept", "not those that its header names"},
                     number_at<int64_t>("kept", 0, 0)),
           selecting("subset_of_no_document", kOnSubset, {"kept", "no documents"},
                     [](const HostileFolder& in) { in.good("selection/none", "kept"); }),
           selecting("subset_to_choose_from_of_other_data", Arguments{"select", "random", "--from", "kept", "--keep", "2"} + kPool,
                     {"--from = kept", "of other data"}, header_with("kept", "\"documents\":", "\"documents\":9")),
           selecting("subset_to_choose_from_missing", Arguments{"select", "random", "--from", "nowhere", "--keep", "2"} + kPool,
                     {"nowhere"}),
           selecting(
               "subset_of_built_in_stories",
               {"train", "--out", "x", "--set", "data.subset=kept", "--set", "data.tokenizer=bytes", "--set", "data.stories_bytes=20000"},
               {"of other data"}),
       })
    cases.push_back(std::move(one));
  return cases;
}

HostileCases columns() {
  const Arguments top = Arguments{"select", "top", "--by", "s", "--column", "s=scores", "--keep", "2"} + kPool;
  HostileCases cases = framed_files("column", "scores", "cairncl1", top);
  const Arguments score = Arguments{"select", "score", "--by", "s", "--numbers", "n.txt"} + kPool;
  const auto numbers = [&](const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
    said.emplace_back("n.txt");
    return selecting(name, score, std::move(said), [bytes](const HostileFolder& in) { in.file("n.txt", bytes); });
  };
  for (HostileCase& one : HostileCases{
           selecting("column_with_a_nan", top, {"scores", "document 3", "nan"}, number_at<float>("scores", 3, __builtin_nanf(""))),
           selecting("column_with_an_infinity", top, {"scores", "document 0", "inf"}, number_at<float>("scores", 0, __builtin_inff())),
           selecting("column_of_negative_weights", top + Arguments{"--order", "lowest", "--weights", "s"}, {"--weights s", "negative"}),
           numbers("numbers_empty", "", {"0 numbers for 20 documents"}),
           numbers("numbers_too_few", copies("1\n", 19), {"19 numbers for 20 documents"}),
           numbers("numbers_too_many", copies("1\n", 21), {"21 numbers for 20 documents"}),
           numbers("numbers_words", "1\n2\nmany\n", {"n.txt:3"}),
           numbers("numbers_two_on_a_line", "1 2\n", {"n.txt:1"}),
           numbers("numbers_nan", "1\nnan\n", {"n.txt:2"}),
           numbers("numbers_beyond_a_float", "1e99\n", {"n.txt:1"}),
           numbers("numbers_nul_bytes", std::string("1\0\n", 3), {"n.txt:1"}),
           selecting("numbers_missing", score, {"n.txt"}),
           selecting("numbers_a_pipe", score, {"n.txt"}, [](const HostileFolder& in) { in.pipe("n.txt"); }),
       })
    cases.push_back(std::move(one));
  return cases;
}

HostileCases vectors() {
  const auto index = [](const std::string& name, const Bytes& bytes, std::vector<std::string> said) {
    said.emplace_back("--index = i");
    return selecting(name, kRds, std::move(said), [bytes](const HostileFolder& in) { in.file("i/index.json", bytes); });
  };
  const auto facts = [](const std::string& model, const std::string& rows) {
    return "{\"model\": " + model + ", \"text\": \"t\", \"pooling\": \"mean\", \"dim\": \"8\", \"rows_per_file\": " + rows + "}";
  };
  return {
      index("index_empty", "", {"damaged"}),
      index("index_not_json", "{", {"damaged"}),
      index("index_a_list", "[]", {"damaged"}),
      index("index_nothing_in_it", "{}", {"damaged"}),
      index("index_deep", repeated("[", 100'000), {"damaged"}),
      index("index_model_a_number", facts("7", "\"64\""), {"damaged"}),
      index("index_of_another_model", facts("\"0123456789abcdef\"", "\"64\""), {"another model"}),
      selecting("index_a_file", kRds, {"i"}, [](const HostileFolder& in) { in.file("i", "x"); }),
      selecting("index_json_a_folder", kRds, {"index.json"}, [](const HostileFolder& in) { in.folder("i/index.json"); }),
      selecting("index_json_a_pipe", kRds, {"index.json"}, [](const HostileFolder& in) { in.folder("i"), in.pipe("i/index.json"); }),
      selecting("vectors_a_pipe", kRds, {"rows-00000000.f16", "not a regular file"},
                [](const HostileFolder& in) { in.folder("i"), in.pipe("i/rows-00000000.f16"); }),
      selecting("vectors_a_folder", kRds, {"rows-00000000.f16", "not a regular file"},
                [](const HostileFolder& in) { in.folder("i/rows-00000000.f16"); }),
      selecting("model_whose_vectors_are_not_finite", kRds, {"model.safetensors"},
                [](const HostileFolder& in) {
                  std::vector<RawTensor> tensors = good_tensors();
                  tensors.front().bytes = floats(257 * 8, __builtin_nanf(""));
                  in.file("m/model.safetensors", safetensors_of(tensors));
                }),
      selecting("model_whose_vectors_are_zero", kRds, {"documents 0", "zero"},
                [](const HostileFolder& in) {
                  std::vector<RawTensor> tensors = good_tensors();
                  for (RawTensor& one : tensors) one.bytes = std::string(one.bytes.size(), '\0');
                  in.file("m/model.safetensors", safetensors_of(tensors));
                }),
      selecting("queries_empty", kRds, {"q.jsonl", "empty"}, [](const HostileFolder& in) { in.file("q.jsonl", ""); }),
      selecting("queries_missing", kRds, {"q.jsonl"}, [](const HostileFolder& in) { in.remove("q.jsonl"); }),
      selecting("queries_a_pipe", kRds, {"q.jsonl"}, [](const HostileFolder& in) { in.remove("q.jsonl"), in.pipe("q.jsonl"); }),
      selecting("queries_not_json", kRds, {"q.jsonl:1"}, [](const HostileFolder& in) { in.file("q.jsonl", "{\"text\": "); }),
      selecting("queries_of_another_form", kRds, {"q.jsonl:1"},
                [](const HostileFolder& in) { in.file("q.jsonl", "{\"words\": \"x\"}\n"); }),
  };
}

HostileCases requests() {
  const Arguments model{"--model", "m"}, rds = Arguments{"rds", "--model", "m"};
  return {
      asked("more_than_there_is", {"random", "--keep", "21"}, {"--keep 21", "20 documents"}),
      asked("more_than_a_double", {"random", "--keep", "1e999"}, {"--keep 1e999"}),
      asked("more_than_all_of_them", {"random", "--keep", "1.5"}, {"--keep 1.5"}),
      asked("none", {"random", "--keep", "0"}, {"--keep 0"}),
      asked("less_than_none", {"random", "--keep", "-3"}, {"--keep"}),
      asked("not_a_number", {"random", "--keep", "nan"}, {"--keep nan"}),
      asked("not_quite_a_number", {"random", "--keep", "2x"}, {"--keep 2x"}),
      asked("without_a_number", {"random"}, {"how many documents"}),
      asked("more_than_the_other_selection_left", {"random", "--from", "kept", "--keep", "6"}, {"--keep 6", "5 documents"}),
      asked("an_unknown_method", {"magic", "--keep", "2"}, {"magic"}),
      asked("targets_without_examples", rds + Arguments{"--keep", "2"}, {"needs target examples"}),
      asked("targets_without_a_name", rds + Arguments{"--queries", "q.jsonl", "--keep", "2"}, {"--queries q.jsonl", "NAME=FILE"}),
      asked("targets_of_another_method", {"random", "--queries", "t=q.jsonl", "--keep", "2"}, {"--queries", "Use select rds"}),
      asked("more_like_the_examples_than_there_is", rds + Arguments{"--queries", "t=q.jsonl", "--keep", "20"},
            {"--keep 20", "19 documents"}),
      asked("without_a_model", {"dedup", "--keep", "2"}, {"give --model DIR"}),
      asked("a_model_that_is_not_there", {"dedup", "--model", "nowhere", "--keep", "2"}, {"nowhere"}),
      asked("more_clusters_than_documents", Arguments{"concept", "--clusters", "21", "--keep", "20"} + model,
            {"--clusters 21", "20 documents"}),
      asked("a_temperature_of_zero", Arguments{"concept", "--temperature", "0", "--keep", "3"} + model, {"--temperature"}),
      asked("a_balance_above_one", Arguments{"concept", "--balance", "1.5", "--keep", "3"} + model, {"--balance"}),
      asked("an_unknown_order_within_clusters", Arguments{"concept", "--within-cluster", "best", "--keep", "3"} + model,
            {"--within-cluster"}),
      asked("duplicates_by_two_rules", Arguments{"dedup", "--eps", "0.9", "--keep", "20"} + model, {"--eps", "Give one of the two"}),
      asked("a_score_that_nobody_has", {"top", "--by", "luck", "--keep", "2"}, {"--by luck"}),
      asked("ifd_of_texts_without_prompts", Arguments{"top", "--by", "ifd", "--keep", "2"} + model, {"no prompt"}),
      asked("labels_that_nobody_has", {"balanced", "--label", "colour", "--keep", "2"}, {"--label colour"}),
      asked("a_mesh_of_islands", rds + Arguments{"--queries", "t=q.jsonl", "--keep", "2", "--mesh", "island=2"}, {"island"}),
      asked("a_mesh_that_does_not_fit_the_model", rds + Arguments{"--queries", "t=q.jsonl", "--keep", "2", "--mesh", "tp=3"}, {"tp"}),
      asked("a_pool_within_a_pool", {"random", "--keep", "2", "--set", "data.subset=kept"}, {"data.subset"}),
      asked("a_pool_of_pictures", {"random", "--keep", "2", "--set", "data.kind=clips"}, {"data.kind"}),
  };
}

}  // namespace

HostileCases hostile_selection() {
  HostileCases all;
  for (const auto part : {subsets, columns, vectors, requests})
    for (HostileCase& one : part()) all.push_back(std::move(one));
  return all;
}

}  // namespace cairn::study
