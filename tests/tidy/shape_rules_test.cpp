// Each rule about the shape of files catches a bad example and lets a good one pass.
#include "tidy/shape_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::tidy {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(Headers, BeginWithPragmaOnce) {
  EXPECT_THAT(opens_headers_with_pragma_once({"src/base/x.h", "#include <vector>\n#pragma once\n"}),
              ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(opens_headers_with_pragma_once({"src/base/x.h", ""}), ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(opens_headers_with_pragma_once({"src/base/x.h", "// What it is for.\n#pragma once\n"}), IsEmpty());
}

TEST(Headers, OpenNoNamespace) {
  EXPECT_THAT(opens_no_namespace_in_headers({"src/base/x.h", "#pragma once\nusing  namespace std;\n"}), ElementsAre(HasSubstr("x.h:2:")));
  EXPECT_THAT(opens_no_namespace_in_headers({"src/base/x.cpp", "using namespace std::literals;\n"}), IsEmpty());
  EXPECT_THAT(
      opens_no_namespace_in_headers({"src/base/x.h", "// using namespace std\nusing std::vector;\nvoid f() {\n  using namespace x;\n}\n"}),
      IsEmpty());
}

TEST(FileNames, NameAnIdea) {
  for (const char* bad : {"src/base/util.h", "src/comm/string_utils.cpp", "src/comm/helper.cpp", "src/train/common.h",
                          "src/mesh/box_types.h", "src/train/manager.cpp"}) {
    EXPECT_THAT(names_files_for_ideas({bad, ""}), ElementsAre(HasSubstr("name the one idea"))) << bad;
  }
  EXPECT_THAT(names_files_for_ideas({"src/comm/utilisation.cpp", ""}), IsEmpty());
}

TEST(Files, HoldAtMostFiveHundredLines) {
  EXPECT_THAT(fits_files_into_one_sitting({"src/base/x.cpp", std::string(500, '\n')}), IsEmpty());
  EXPECT_THAT(fits_files_into_one_sitting({"src/base/x.cpp", std::string(501, '\n')}), ElementsAre(HasSubstr("501 lines")));
  EXPECT_THAT(fits_files_into_one_sitting({"docs/x.md", std::string(900, '\n')}), IsEmpty());
}

TEST(Functions, FitOnAScreen) {
  const auto body = [](int lines) { return "void f(int a) {\n" + std::string(static_cast<size_t>(lines - 2), '\n') + "}\n"; };
  EXPECT_THAT(keeps_functions_on_a_screen({"src/x/y.cpp", body(81)}), ElementsAre(HasSubstr("81 lines")));
  EXPECT_THAT(keeps_functions_on_a_screen({"src/x/y.cpp", body(80)}), IsEmpty());
  EXPECT_THAT(keeps_functions_on_a_screen({"src/x/y.cpp", "namespace a {\n" + std::string(100, '\n') + "}\n"}), IsEmpty());
}

TEST(TrainerStructs, HaveFewFields) {
  const auto fields = [](int count) {
    std::string text = "struct Job {\n";
    for (int i = 0; i < count; ++i) text += "  int a" + std::to_string(i) + " = 0;  // why\n";
    return text + "  int total() const { return 1; }\n  void run(int a, int b);\n};\n";
  };
  EXPECT_THAT(keeps_trainer_structs_small({"src/train/job.h", fields(25)}), ElementsAre(HasSubstr("25 fields")));
  EXPECT_THAT(keeps_trainer_structs_small({"src/train/job.h", fields(24)}), IsEmpty());
  EXPECT_THAT(keeps_trainer_structs_small({"src/train/job.h", "struct A {\n  std::map<int, int> a, b;\n};\n"}), IsEmpty());
}

TEST(Machines, AreNotNamed) {
  const std::string home = std::string("/ro") + "ot/";
  const std::string place = std::string("/wo") + "rk/";
  EXPECT_THAT(names_no_machine({"docs/x.md", "first\nsee " + home + "notes\n"}), ElementsAre(HasSubstr("docs/x.md:2:")));
  EXPECT_THAT(names_no_machine({"cmake/x.cmake", "set(A \"" + place + "main\")"}), ElementsAre(HasSubstr("somebody's machine")));
  EXPECT_THAT(names_no_machine({"deps/x.txt", std::string("--index") + "-url https://example.org"}), ElementsAre(HasSubstr("registry")));
  EXPECT_THAT(names_no_machine({"deps/x.txt", std::string("https://") + "py" + "pi.artifac" + "tory.example.org/simple"}),
              ElementsAre(HasSubstr("registry")));
  EXPECT_THAT(names_no_machine({"src/x.cpp", "#include \"comm/work.h\" // tree" + home + " https://py" + "pi.org $HOME" + place}),
              IsEmpty());
}

TEST(Rooms, HaveAReadme) {
  EXPECT_THAT(rooms_without_readme({"src/comm/collectives/ring.cpp", "src/base/error.h", "src/base/README.md", "tests/mesh/box_test.cpp"}),
              ElementsAre("comm"));
}

}  // namespace
}  // namespace cairn::tidy
