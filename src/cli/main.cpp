#include <cstdio>
#include <cstdlib>

#include "cli/commands.h"

int main(int argc, char** argv) {
  const int code = cairn::cli::run(argc, argv);
  // Everything of ours is closed by now. Destroying libtorch's global tables costs time, and crashes on some systems.
  std::fflush(nullptr);
  std::quick_exit(code);
}
