// Runs every rule over every file of the checkout.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tidy/call_rules.h"
#include "tidy/include_rules.h"
#include "tidy/page_rules.h"
#include "tidy/shape_rules.h"
#include "tidy/source.h"
#include "tidy/word_rules.h"

namespace cairn::tidy {
namespace {

namespace fs = std::filesystem;

struct Rule {
  const char* name;
  Findings (*check)(const Source&);
};
void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }  // GoogleTest's name for it

const std::vector<Rule> kRules = {
    {"IncludesPointDownward", includes_point_downward},
    {"LeavesOutTheHeavyHalfOfTorch", leaves_out_the_heavy_half_of_torch},
    {"WrapsHeavyLibrariesInCppFiles", wraps_heavy_libraries_in_cpp_files},
    {"KeepsPlainRoomsFreeOfTorch", keeps_plain_rooms_free_of_torch},
    {"ReadsTheEnvironmentInCliAlone", reads_the_environment_in_cli_alone},
    {"PrintsThroughTheLog", prints_through_the_log},
    {"DrawsNumbersFromBaseRandom", draws_numbers_from_base_random},
    {"AsksTheWorldForTheTime", asks_the_world_for_the_time},
    {"NeverSleeps", never_sleeps},
    {"OpensHeadersWithPragmaOnce", opens_headers_with_pragma_once},
    {"OpensNoNamespaceInHeaders", opens_no_namespace_in_headers},
    {"NamesFilesForIdeas", names_files_for_ideas},
    {"FitsFilesIntoOneSitting", fits_files_into_one_sitting},
    {"NamesNoMachine", names_no_machine},
    {"UsesTheWordsOfTheField", uses_the_words_of_the_field},
    {"NamesMethodsInTheirRegistry", names_methods_in_their_registry},
    {"KeepsPagesNarrow", keeps_pages_narrow},
    {"KeepsParagraphsShort", keeps_paragraphs_short},
    {"KeepsFunctionsOnAScreen", keeps_functions_on_a_screen},
    {"KeepsTrainerStructsSmall", keeps_trainer_structs_small},
};

// What git would track: everything but what .gitignore leaves out, hidden folders other than .ci, and binary files.
std::vector<Source> read_tree(const fs::path& root) {
  const std::set<std::string> skipped = {".git", "build", "runs", ".cache", "carry", ".vscode", ".idea"};
  std::vector<Source> sources;
  for (fs::recursive_directory_iterator it(root), end; it != end; ++it) {
    if (it->is_directory() && skipped.contains(it->path().filename().string())) it.disable_recursion_pending();
    if (!it->is_regular_file() || it->file_size() > 4'000'000) continue;
    std::ifstream file(it->path(), std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find('\0') != std::string::npos) continue;
    sources.push_back({fs::relative(it->path(), root).generic_string(), std::move(text)});
  }
  return sources;
}

const std::vector<Source>& tree() {
  static const std::vector<Source> sources = read_tree(CAIRN_SOURCE_DIR);
  return sources;
}

class Tree : public testing::TestWithParam<Rule> {};

TEST_P(Tree, Keeps) {
  ASSERT_GT(tree().size(), 50u) << "the checkout at " << CAIRN_SOURCE_DIR << " was not read";
  for (const Source& source : tree()) {
    for (const std::string& finding : GetParam().check(source)) ADD_FAILURE() << finding;
  }
}

INSTANTIATE_TEST_SUITE_P(Checkout, Tree, testing::ValuesIn(kRules), [](const auto& rule) { return rule.param.name; });

TEST(Rooms, HaveAReadmeInTheCheckout) {
  std::set<std::string> paths;
  for (const Source& source : tree()) paths.insert(source.path);
  EXPECT_THAT(rooms_without_readme(paths), testing::IsEmpty());
}

}  // namespace
}  // namespace cairn::tidy
