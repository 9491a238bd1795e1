// Batches: the requests of a file, answered when nobody else needs the engine.
//
//   validating -> in_progress -> finalizing -> completed          one line of the output for each line of the input
//        |             +-------> cancelling -> cancelled          what was answered until then is in the output
//        +-> failed    +-------> expired                          a day after it was made
//
//   A line is a request that the service makes of itself (InsideExchange) in the name of the batch's key, with the
//   lowest priority. Lines start while few others are in, some at a time; one that is refused for lack of room or of
//   its key's rate is tried again. Lines that fail go to a file of their own. Owned by the loop. A batch lives in
//   memory: it ends with the process.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "serve/call.h"
#include "serve/openai/files.h"

namespace deepinfer::serve::openai {

class Batches {
 public:
  explicit Batches(Service& service) : service_(service) {}
  ~Batches();

  void create(CallPtr call);
  void show(Call& call);
  void list(Call& call);
  void cancel(Call& call);
  // Starts lines that there is room for, ends what is late. Called several times a second.
  void tick();

 private:
  struct Batch;
  struct Draft;

  void begin(CallPtr call, Draft draft);
  Batch* find(Call& call);
  bool has_room() const;
  void start_line(const std::shared_ptr<Batch>& batch, std::size_t line);
  void on_answer(Batch& batch, std::size_t line, int status, const net::Headers& headers, std::string body);
  void end_lines(Batch& batch);
  void settle(Batch& batch);
  void drop_old();

  Service& service_;
  std::list<std::shared_ptr<Batch>> batches_;  // oldest first; shared with the callbacks of their lines
  int num_in_flight_ = 0;
};

void add_batches(Service& service);

}  // namespace deepinfer::serve::openai
