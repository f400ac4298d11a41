#include <cstdio>
#include <cstdlib>

#include "cli/commands.h"

int main(int argc, char** argv) {
  const int code = cairn::cli::run(argc, argv);
  // All of ours is closed by now. Taking libtorch's own tables apart would only cost time, and on some systems it goes wrong.
  std::fflush(nullptr);
  std::quick_exit(code);
}
