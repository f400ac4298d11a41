#include "cli/commands.h"

int main(int argc, char** argv) { return cairn::cli::run(argc, argv); }
