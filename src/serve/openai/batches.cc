#include "serve/openai/batches.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <set>
#include <vector>

#include <fmt/ranges.h>

#include "serve/fields.h"
#include "serve/ids.h"
#include "serve/inside_exchange.h"
#include "serve/json_writer.h"
#include "serve/openai/files.h"
#include "serve/openai/paging.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kUsualPage = 20, kLargestPage = 100;
constexpr std::size_t kMaxLines = 50'000, kMaxErrors = 20, kMaxIdBytes = 512;
constexpr int kLowestPriority = -1000;
constexpr int kTogether = 8;        // lines in flight, of all batches
constexpr double kIdleShare = 0.1;  // of the longest wait: lines start while the predicted wait is below
constexpr std::chrono::hours kWindow{24};

constexpr std::string_view kEndpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses"};

struct LineError {
  std::string code, message, param;
  int64_t line = 0;
};

struct BatchFields {
  std::string input_file_id, endpoint, completion_window = "24h", metadata = "null";
};

constexpr const char* kTimes[] = {"created_at", "in_progress_at", "expires_at",    "finalizing_at", "completed_at",
                                  "failed_at",  "expired_at",     "cancelling_at", "cancelled_at"};

const FieldTable<BatchFields>& batch_fields() {
  using F = BatchFields;
  static const FieldTable<F> table = {
      string_of<F>("input_file_id", &F::input_file_id, 128),
      custom<F>("endpoint",
                [](JsonValue v, F& out) -> ApiResult<> {
                  out.endpoint = v.text();
                  if (std::ranges::find(kEndpoints, out.endpoint) != std::end(kEndpoints)) return {};
                  return wrong_value("endpoint", v, fmt::format("one of {}", fmt::join(kEndpoints, ", ")));
                }),
      custom<F>("completion_window",
                [](JsonValue v, F&) -> ApiResult<> {
                  if (v.text() == "24h") return {};
                  return wrong_value("completion_window", v, "'24h'");
                }),
      custom<F>("metadata",
                [](JsonValue v, F& out) -> ApiResult<> {
                  if (!v.is_object()) return wrong_value("metadata", v, "an object");
                  out.metadata.clear();
                  text::append_json(v, text::JsonStyle::kCompact, out.metadata);
                  return {};
                }),
  };
  return table;
}

// What is wrong with a line, if anything; gives its custom_id.
std::optional<LineError> check_line(std::string_view line, std::string_view endpoint, std::string& custom_id) {
  auto wrong = [](std::string param, std::string message) {
    return LineError{.code = "invalid_line", .message = std::move(message), .param = std::move(param)};
  };
  auto tree = text::JsonTree::parse(std::string(line));
  if (!tree) return LineError{.code = "invalid_json_line", .message = tree.error().message};
  JsonValue root = tree->root();
  custom_id = root.find("custom_id").text();
  if (custom_id.empty() || custom_id.size() > kMaxIdBytes)
    return wrong("custom_id", fmt::format("custom_id must be a string of 1 to {} bytes", kMaxIdBytes));
  if (root.find("method").text() != "POST") return wrong("method", "method must be 'POST'");
  if (root.find("url").text() != endpoint)
    return wrong("url", fmt::format("url is {}; the batch's endpoint is '{}'", describe(root.find("url")), endpoint));
  if (!root.find("body").is_object()) return wrong("body", "body must be an object");
  if (root.find("body").find("stream").is_true()) return wrong("body.stream", "a line of a batch cannot be streamed");
  return std::nullopt;
}

std::vector<std::string_view> lines_of(std::string_view data) {
  std::vector<std::string_view> lines;
  while (!data.empty()) {
    std::size_t end = std::min(data.find('\n'), data.size());
    std::string_view line = data.substr(0, end);
    if (line.find_first_not_of(" \t\r") != line.npos) lines.push_back(line);
    data.remove_prefix(std::min(end + 1, data.size()));
  }
  return lines;
}

std::string body_of(std::string_view line) {
  auto tree = text::JsonTree::parse(std::string(line));
  std::string body;
  text::append_json(tree->root().find("body"), text::JsonStyle::kCompact, body);
  return body;
}

// Empty if the line is not JSON.
std::string id_of(std::string_view line) {
  auto tree = text::JsonTree::parse(std::string(line));
  return tree ? std::string(tree->root().find("custom_id").text()) : "";
}

}  // namespace

// Made from the request on a worker.
struct Batches::Draft {
  BatchFields fields;
  FilePtr file;
  std::vector<std::string_view> lines;  // of the file
  std::vector<LineError> errors;
};

struct Batches::Batch {
  std::string id = new_id("batch_");
  int64_t order = 0;  // in which they came
  Principal principal;
  Draft draft;
  std::string status = "validating";
  std::map<std::string, int64_t> times;  // "completed_at": Unix seconds
  int64_t settled_s = 0;                 // Unix time; 0: it still has something to do
  std::size_t total = 0;                 // lines
  std::size_t next = 0;
  std::vector<std::size_t> again;                                  // lines that were refused or cut off
  Clock::time_point not_before;                                    // of the next line, after one was refused
  std::map<std::size_t, std::shared_ptr<InsideExchange>> running;  // shared with the calls that answer them
  int64_t completed = 0, failed = 0;
  std::string output, errors;  // JSON lines
  std::string output_file_id, error_file_id;

  bool is_settled() const { return settled_s != 0; }
  bool is_running() const { return status == "in_progress"; }
  bool has_lines() const { return next < draft.lines.size() || !again.empty(); }
  std::string json() const;
};

std::string Batches::Batch::json() const {
  JsonWriter w;
  w.begin_object().field("id", id).field("object", "batch").field("endpoint", draft.fields.endpoint).key("errors");
  if (draft.errors.empty()) {
    w.null();
  } else {
    w.begin_object().field("object", "list").key("data").begin_array();
    for (const LineError& e : draft.errors) {
      w.begin_object().field("code", e.code).field("message", e.message).key("param");
      e.param.empty() ? w.null() : w.value(e.param);
      w.field("line", e.line).end_object();
    }
    w.end_array().end_object();
  }
  w.field("input_file_id", draft.fields.input_file_id).field("completion_window", draft.fields.completion_window);
  w.field("status", status);
  for (auto [name, file] : {std::pair("output_file_id", &output_file_id), {"error_file_id", &error_file_id}}) {
    w.key(name);
    file->empty() ? w.null() : w.value(*file);
  }
  for (const char* name : kTimes) {
    auto it = times.find(name);
    w.key(name);
    it == times.end() ? w.null() : w.value(it->second);
  }
  w.key("request_counts").begin_object().field("total", total).field("completed", completed);
  w.field("failed", failed).end_object().key("metadata").raw(draft.fields.metadata);
  return w.end_object().take();
}

Batches::~Batches() {
  for (auto& batch : batches_) batch->running.clear();  // each holds its batch
}

// ---- made -------------------------------------------------------------------------------------------------------

void Batches::create(CallPtr call) {
  auto read = [this](const std::string& tenant, std::string text) -> ApiResult<Draft> {
    DI_TRY(text::JsonTree tree, parse_body(std::move(text)));
    Draft draft;
    std::vector<std::string> unknown;
    DI_TRY_VOID(read_fields(tree.root(), batch_fields(), draft.fields, unknown));
    if (draft.fields.endpoint.empty()) return bad_field("endpoint", "endpoint is missing");
    draft.file = service_.files.get(tenant, draft.fields.input_file_id);
    if (!draft.file)
      return bad_field("input_file_id", fmt::format("there is no file '{}'", draft.fields.input_file_id));
    draft.lines = lines_of(draft.file->data);
    auto complain = [&](LineError e, std::size_t line) {
      e.line = static_cast<int64_t>(line + 1);
      if (draft.errors.size() < kMaxErrors) draft.errors.push_back(std::move(e));
    };
    if (draft.lines.empty() || draft.lines.size() > kMaxLines) {
      complain({.code = "invalid_file",
                .message = fmt::format("the file has {} requests; allowed: 1 to {}", draft.lines.size(), kMaxLines)},
               0);
      return draft;
    }
    std::set<std::string> ids;
    for (std::size_t i = 0; i < draft.lines.size(); ++i) {
      std::string id;
      if (auto error = check_line(draft.lines[i], draft.fields.endpoint, id)) {
        complain(std::move(*error), i);
      } else if (!ids.insert(id).second) {
        complain({.code = "duplicate_custom_id",
                  .message = fmt::format("custom_id '{}' occurs twice", id),
                  .param = "custom_id"},
                 i);
      }
    }
    return draft;
  };
  // Shared by the two halves, which run one after the other.
  auto draft = std::make_shared<ApiResult<Draft>>();
  service_.loop.offload([draft, read, call] { *draft = read(call->principal.name, call->request().body); },
                        [this, draft, call] {
                          if (!*draft) return call->reply_error(draft->error());
                          begin(call, std::move(**draft));
                        });
}

void Batches::begin(CallPtr call, Draft draft) {
  auto batch = std::make_shared<Batch>();
  batch->order = next_order_++;
  batch->principal = call->principal;
  batch->principal.priority = kLowestPriority;
  batch->draft = std::move(draft);
  batch->total = batch->draft.lines.size();
  batch->times["created_at"] = unix_seconds();
  batch->times["expires_at"] = unix_seconds() + std::chrono::seconds(kWindow).count();
  batches_.push_back(batch);
  bool is_good = batch->draft.errors.empty();
  if (!is_good) batch->settled_s = unix_seconds();
  change(*batch, is_good ? "in_progress" : "failed");
  call->reply_json(batch->json());
}

void Batches::change(Batch& batch, std::string_view status) {
  batch.status = status;
  batch.times[batch.status + "_at"] = unix_seconds();
  folder_.save(batch.id, batch.principal.name, batch.order, batch.json());
}

// A batch that cannot go on; what was answered is kept.
void Batches::end_failed(Batch& batch, std::string code, std::string message) {
  batch.draft.errors.push_back({.code = std::move(code), .message = std::move(message)});
  change(batch, "failed");
}

// ---- taken over from an earlier process -------------------------------------------------------------------------

Result<void> Batches::load() {
  DI_TRY(std::vector<SavedBatch> saved, folder_.load());
  for (const SavedBatch& s : saved) resume(s);
  return {};
}

void Batches::resume(const SavedBatch& saved) {
  auto tree = text::JsonTree::parse(saved.object);
  JsonValue object = tree->root();
  auto number = [](JsonValue v) { return integer_or(v, 0); };
  auto string = [&](const char* name) { return std::string(object.find(name).text()); };
  auto batch = std::make_shared<Batch>();
  batch->id = saved.id;
  batch->order = saved.order;
  next_order_ = std::max(next_order_, saved.order + 1);
  batch->status = string("status");
  batch->output_file_id = string("output_file_id");
  batch->error_file_id = string("error_file_id");
  for (const char* name : kTimes) {
    if (object.find(name).is_given()) batch->times[name] = number(object.find(name));
  }
  JsonValue counts = object.find("request_counts");
  batch->total = static_cast<std::size_t>(number(counts.find("total")));
  Draft& draft = batch->draft;
  draft.fields.input_file_id = string("input_file_id");
  draft.fields.endpoint = string("endpoint");
  if (object.find("metadata").is_object()) {
    draft.fields.metadata.clear();
    text::append_json(object.find("metadata"), text::JsonStyle::kCompact, draft.fields.metadata);
  }
  for (JsonValue e : object.find("errors").find("data")) {
    draft.errors.push_back({.code = std::string(e.find("code").text()),
                            .message = std::string(e.find("message").text()),
                            .param = std::string(e.find("param").text()),
                            .line = number(e.find("line"))});
  }
  batches_.push_back(batch);
  batch->principal.name = saved.tenant;
  bool is_unfinished = batch->status == "in_progress" || batch->status == "finalizing" || batch->status == "cancelling";
  if (is_unfinished || !saved.output.empty() || !saved.errors.empty()) return take_over_lines(*batch, saved);
  batch->completed = number(counts.find("completed"));
  batch->failed = number(counts.find("failed"));
  for (const auto& [name, time] : batch->times) {
    if (name != "expires_at") batch->settled_s = std::max(batch->settled_s, time);
  }
}

// What was answered stays; the rest runs, if the key and the input are still there.
void Batches::take_over_lines(Batch& batch, const SavedBatch& saved) {
  std::set<std::string> done;
  auto take = [&](std::string_view text, std::string& lines, int64_t& count) {
    for (std::string_view line : lines_of(text)) {
      std::string id = id_of(line);
      if (id.empty() || !done.insert(id).second) continue;
      lines += std::string(line) + "\n";
      ++count;
    }
  };
  take(saved.output, batch.output, batch.completed);
  take(saved.errors, batch.errors, batch.failed);
  if (batch.status == "failed") return;
  Draft& draft = batch.draft;
  draft.file = service_.files.get(saved.tenant, draft.fields.input_file_id);
  auto principal = service_.principal_named(saved.tenant);
  if (!draft.file) return end_failed(batch, "no_input_file", "the input file was gone when the service started anew");
  if (!principal) return end_failed(batch, "no_key", "the batch's key was gone when the service started anew");
  batch.principal = *principal;
  batch.principal.priority = kLowestPriority;
  draft.lines = lines_of(draft.file->data);
  for (std::size_t i = draft.lines.size(); i-- > 0;) {
    if (!done.contains(id_of(draft.lines[i]))) batch.again.push_back(i);
  }
  batch.next = draft.lines.size();
  if (!batch.is_running()) end_lines(batch, batch.status);
}

// ---- run --------------------------------------------------------------------------------------------------------

bool Batches::has_room() const {
  if (!service_.is_ready() || num_in_flight_ >= kTogether || service_.overload.rung() >= Rung::kNoBatches) return false;
  return service_.admission.predicted_wait_s(1) <= kIdleShare * service_.options.max_wait_s;
}

void Batches::tick() {
  auto now = Clock::now();
  for (auto& batch : batches_) {
    if (batch->is_running() && unix_seconds() >= batch->times["expires_at"]) {
      end_lines(*batch, "expired");
      change(*batch, "expired");
    }
    if (service_.overload.rung() >= Rung::kNoBatches) take_lines_back(*batch);
    while (batch->is_running() && batch->has_lines() && now >= batch->not_before && has_room()) {
      std::size_t line = batch->next;
      if (batch->again.empty()) {
        ++batch->next;
      } else {
        line = batch->again.back();
        batch->again.pop_back();
      }
      start_line(batch, line);
    }
    settle(*batch);
  }
  drop_old();
}

void Batches::start_line(const std::shared_ptr<Batch>& batch, std::size_t line) {
  net::HttpRequest request{.method = "POST",
                           .path = batch->draft.fields.endpoint,
                           .headers = {{"content-type", "application/json"}},
                           .body = body_of(batch->draft.lines[line]),
                           .peer = "batch"};
  auto exchange = std::make_shared<InsideExchange>(
      std::move(request), [this, batch, line](int status, const net::Headers& headers, std::string body) {
        on_answer(*batch, line, status, headers, std::move(body));
      });
  batch->running.emplace(line, exchange);
  ++num_in_flight_;
  service_.dispatch_as(batch->principal, exchange);
}

void Batches::on_answer(Batch& batch, std::size_t line, int status, const net::Headers& headers, std::string body) {
  batch.running.erase(line);
  --num_in_flight_;
  bool is_refused = status == 429 || status == 503;
  if (is_refused && batch.is_running()) {
    int seconds = 1;
    std::string_view wanted = net::find_header(headers, "retry-after");
    std::from_chars(wanted.data(), wanted.data() + wanted.size(), seconds);
    batch.again.push_back(line);
    batch.not_before = Clock::now() + std::chrono::seconds(seconds);
    return;
  }
  JsonWriter w;
  w.begin_object().field("status_code", status).field("request_id", net::find_header(headers, "x-request-id"));
  w.key("body").raw(body).end_object();
  add_line(batch, line, w.text(), "null", status == 200);
}

void Batches::add_line(Batch& batch, std::size_t line, std::string_view response, std::string_view error,
                       bool is_good) {
  JsonWriter w;
  w.begin_object().field("id", new_id("batch_req_")).field("custom_id", id_of(batch.draft.lines[line]));
  w.key("response").raw(response).key("error").raw(error).end_object();
  std::string text = w.take() + "\n";
  if (is_good) {
    folder_.append_output(batch.id, text);
    batch.output += text;
    ++batch.completed;
  } else {
    folder_.append_error(batch.id, text);
    batch.errors += text;
    ++batch.failed;
  }
}

// What runs ends and is to run again.
void Batches::take_lines_back(Batch& batch) {
  num_in_flight_ -= static_cast<int>(batch.running.size());
  for (auto& [line, exchange] : std::exchange(batch.running, {})) {
    batch.again.push_back(line);
    exchange->cancel();
  }
}

// Takes back what runs; with what has not begun it fails by name. `status`: what the batch is about to be.
void Batches::end_lines(Batch& batch, std::string_view status) {
  take_lines_back(batch);
  for (; batch.next < batch.draft.lines.size(); ++batch.next) batch.again.push_back(batch.next);
  std::ranges::sort(batch.again);
  JsonWriter w;
  w.begin_object().field("code", fmt::format("batch_{}", status));
  w.field("message", "the batch ended before this request was answered").end_object();
  for (std::size_t line : std::exchange(batch.again, {})) add_line(batch, line, "null", w.text(), false);
}

// Writes the files of a batch that has nothing more to do.
void Batches::settle(Batch& batch) {
  if (batch.is_settled() || batch.has_lines() || !batch.running.empty()) return;
  if (batch.is_running()) change(batch, "finalizing");
  auto keep = [&](std::string& lines, const char* name, std::string& id) {
    if (lines.empty()) return;
    File file{.name = batch.id + name, .purpose = std::string(kBatchOutput), .data = std::exchange(lines, {})};
    id = (*service_.files.add(batch.principal.name, std::move(file)))->id;
  };
  keep(batch.output, "_output.jsonl", batch.output_file_id);
  keep(batch.errors, "_error.jsonl", batch.error_file_id);
  batch.settled_s = unix_seconds();
  change(batch, batch.status == "finalizing" ? "completed" : batch.status == "cancelling" ? "cancelled" : batch.status);
  folder_.remove_lines(batch.id);
  batch.draft.file.reset();
  batch.draft.lines.clear();
}

void Batches::drop_old() {
  auto is_old = [&](const auto& b) {
    return b->is_settled() && unix_seconds() - b->settled_s >= service_.options.files_time.count();
  };
  for (const auto& batch : batches_) {
    if (is_old(batch)) folder_.remove(batch->id);
  }
  batches_.remove_if(is_old);
}

// ---- asked about ------------------------------------------------------------------------------------------------

Batches::Batch* Batches::find(Call& call) {
  for (auto& batch : batches_) {
    if (batch->id == call.path_id && batch->principal.name == call.principal.name) return batch.get();
  }
  call.reply_error(not_kept("batch", call.path_id));
  return nullptr;
}

void Batches::show(Call& call) {
  if (Batch* batch = find(call)) call.reply_json(batch->json());
}

void Batches::list(Call& call) {
  auto page = read_page(call.request().query, kUsualPage, kLargestPage);
  if (!page) return call.reply_error(page.error());
  std::vector<ListEntry> entries;
  for (auto it = batches_.rbegin(); it != batches_.rend(); ++it) {
    if ((*it)->principal.name == call.principal.name) entries.push_back({(*it)->id, (*it)->json()});
  }
  auto body = page_json(*page, std::move(entries));
  body ? call.reply_json(std::move(*body)) : call.reply_error(body.error());
}

void Batches::cancel(Call& call) {
  Batch* batch = find(call);
  if (batch == nullptr) return;
  if (batch->is_running()) {
    end_lines(*batch, "cancelling");
    change(*batch, "cancelling");
  }
  call.reply_json(batch->json());
}

void add_batches(Service& service) {
  Batches& batches = service.batches;
  constexpr std::chrono::milliseconds kTick{50};
  service.loop.every(kTick, [&batches] { batches.tick(); });
  auto add = [&service](const char* method, const char* pattern, std::function<void(CallPtr)> handler) {
    service.router.add({.method = method, .pattern = pattern, .handler = std::move(handler)});
  };
  add("POST", "/v1/batches", [&batches](CallPtr call) { batches.create(std::move(call)); });
  add("GET", "/v1/batches", [&batches](CallPtr call) { batches.list(*call); });
  add("GET", "/v1/batches/{id}", [&batches](CallPtr call) { batches.show(*call); });
  add("POST", "/v1/batches/{id}/cancel", [&batches](CallPtr call) { batches.cancel(*call); });
}

}  // namespace deepinfer::serve::openai
