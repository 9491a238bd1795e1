// roofline [--json]: what this machine can do with one thread and with all.
#include <cstdio>
#include <cstring>

#include "bench/roofline/roofline.h"

int main(int argc, char** argv) {
  using namespace deepinfer;
  const bool json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  std::vector<bench::Limit> all;
  for (int threads : {1, available_threads()}) {
    if (threads == 1 && !all.empty()) break;
    ThreadPool pool(threads);
    for (bench::Limit& l : bench::measure_limits(pool)) all.push_back(std::move(l));
    if (available_threads() == 1) break;
  }
  if (!json) std::printf("%s\n", bench::processor_name().c_str());
  std::printf("%s", json ? bench::to_json(all).c_str() : bench::to_table(all).c_str());
}
