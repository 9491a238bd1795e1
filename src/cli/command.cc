#include "cli/command.h"

#include <cstdio>

#include "base/result.h"

namespace deepinfer {

int report(const Error& error) {
  std::fprintf(stderr, "deepinfer: %s\n", error.message.c_str());
  return exit_code(error);
}

}  // namespace deepinfer
