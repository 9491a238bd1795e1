// deepinfer make-random: a checkpoint of random weights in the released format, tokenizer included.

#include <cstdio>
#include <memory>

#include "base/file.h"
#include "cli/command.h"
#include "cli/commands.h"
#include "cli/random_tokenizer.h"
#include "weights/random_checkpoint.h"
#include "weights/random_shapes.h"

namespace deepinfer {
namespace {

struct Options {
  std::string shape, out;
  weights::ShapeOptions sizes;
  uint64_t seed = 0;
  int threads = 0;
};

Result<void> make_random(const Options& o) {
  DI_TRY(ModelConfig config, weights::random_shape(o.shape, o.sizes));
  DI_TRY(std::string tokenizer, random_tokenizer(config));
  ThreadPool pool(o.threads > 0 ? o.threads : available_threads());
  DI_TRY(auto written, weights::write_random_checkpoint(config, o.out, {.seed = o.seed}, pool));
  DI_TRY_VOID(write_file(o.out + "/tokenizer.json", tokenizer));
  std::printf("%s: %d layers, %lld tensors, %lld bytes\n", o.out.c_str(), config.num_hidden_layers,
              static_cast<long long>(written.num_tensors), static_cast<long long>(written.num_bytes));
  return {};
}

}  // namespace

void add_make_random(Command& app, int& exit_code) {
  auto o = std::make_shared<Options>();  // owned by the callback, filled by the parser
  Command cmd = app.subcommand("make-random", "write a checkpoint of random weights in the released format");
  cmd.option("--shape", o->shape, "flash, bench, tiny, or the path of a config.json").required();
  cmd.option("--out", o->out, "directory to create").required();
  cmd.option("--layers", o->sizes.layers, "backbone layers (flash; 40 is the released layout)");
  cmd.option("--experts", o->sizes.experts, "routed experts a layer");
  cmd.option("--vocab", o->sizes.vocab, "vocabulary size");
  cmd.option("--compressed-vocab", o->sizes.compressed_vocab, "size of the compressed vocabulary");
  cmd.option("--engram-vocab", o->sizes.engram_vocab,
             "smallest Engram bucket (released: 16000000; flash default: 65536)");
  cmd.option("--seed", o->seed, "seed of the weights");
  cmd.option("--threads", o->threads, "threads (default: all)");
  cmd.callback([o, &exit_code] {
    auto result = make_random(*o);
    exit_code = result ? 0 : report(result.error());
  });
}

}  // namespace deepinfer
