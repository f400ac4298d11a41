#include <gtest/gtest.h>

#include "base/error.h"
#include "base/recipe.h"
#include "sync/options.h"
#include "sync/sync.h"

namespace cairn::sync {
namespace {

TEST(Rules, AreTheNamesThatTheRecipeTakes) {
  base::Recipe recipe = base::Recipe::parse("[sync.dp]\nkind = \"all_reduc\"\n", "x.toml");
  try {
    recipe.read(sync_schema());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_NE(std::string(error.what()).find("all_reduce"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("x.toml:2"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cairn::sync
