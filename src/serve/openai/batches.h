// Batches: the requests of a file, answered when nobody else needs the engine.
//
//   validating -> in_progress -> finalizing -> completed          one line of the output for each line of the input
//        |             +-------> cancelling -> cancelled          what was answered until then is in the output
//        +-> failed    +-------> expired                          a day after it was made
//
//   A line is a request that the service makes of itself (InsideExchange) in the name of the batch's key, with the
//   lowest priority. Lines start while few others are in, some at a time; one that is refused for lack of room or of
//   its key's rate is tried again, and those that run when too much waits (overload.h) are put back. Lines that fail go
//   to a file of their own. Owned by the loop. Every change and every answered line goes to the BatchFolder; what
//   another process left there goes on where it ended.
#pragma once

#include <list>
#include <memory>
#include <string>

#include "serve/call.h"
#include "serve/openai/batch_folder.h"
#include "serve/openai/file_store.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

class Batches {
 public:
  // `folder` empty: batches end with the process.
  Batches(Service& service, std::string folder) : service_(service), folder_(std::move(folder)) {}
  ~Batches();

  // Goes on with the batches of an earlier process. Files and keys have to be there.
  Result<void> load();

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
  void resume(const SavedBatch& saved);
  void take_over_lines(Batch& batch, const SavedBatch& saved);
  void change(Batch& batch, std::string_view status);
  void end_failed(Batch& batch, std::string code, std::string message);
  Batch* find(Call& call);
  bool has_room() const;
  void take_lines_back(Batch& batch);
  void start_line(const std::shared_ptr<Batch>& batch, std::size_t line);
  void add_line(Batch& batch, std::size_t line, std::string_view response, std::string_view error, bool is_good);
  void on_answer(Batch& batch, std::size_t line, int status, const net::Headers& headers, std::string body);
  void end_lines(Batch& batch, std::string_view status);
  void settle(Batch& batch);
  void drop_old();

  Service& service_;
  BatchFolder folder_;
  std::list<std::shared_ptr<Batch>> batches_;  // oldest first; shared with the callbacks of their lines
  int64_t next_order_ = 0;
  int num_in_flight_ = 0;
};

void add_batches(Service& service);

}  // namespace deepinfer::serve::openai
