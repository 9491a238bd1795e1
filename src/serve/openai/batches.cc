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
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

using Clock = std::chrono::steady_clock;

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

std::string id_of(std::string_view line) {
  auto tree = text::JsonTree::parse(std::string(line));
  return std::string(tree->root().find("custom_id").text());
}

ApiError no_batch(std::string_view id) {
  return {
      .status = 404,
      .message = fmt::format("there is no batch '{}'; it never was, belongs to another key, or its time is over", id),
      .param = "batch_id",
      .code = "batch_not_found"};
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
  Principal principal;
  Draft draft;
  std::string status = "validating";
  std::map<std::string, int64_t> times;  // "completed_at": Unix seconds
  Clock::time_point end = Clock::now() + kWindow, settled;
  std::size_t next = 0;
  std::vector<std::size_t> again;                                  // lines that were refused
  Clock::time_point not_before;                                    // of the next line, after one was refused
  std::map<std::size_t, std::shared_ptr<InsideExchange>> running;  // shared with the calls that answer them
  int64_t completed = 0, failed = 0;
  std::string output, errors;  // JSON lines
  std::string output_file_id, error_file_id;

  bool is_settled() const { return settled != Clock::time_point(); }
  bool is_running() const { return status == "in_progress"; }
  bool has_lines() const { return next < draft.lines.size() || !again.empty(); }
  void enter(std::string_view state) {
    status = state;
    times[status + "_at"] = unix_seconds();
  }
  void add_line(std::size_t line, std::string_view response, std::string_view error, bool is_good) {
    JsonWriter w;
    w.begin_object().field("id", new_id("batch_req_")).field("custom_id", id_of(draft.lines[line]));
    w.key("response").raw(response).key("error").raw(error).end_object();
    (is_good ? output : errors) += w.take() + "\n";
    ++(is_good ? completed : failed);
  }
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
  for (const char* name : {"created_at", "in_progress_at", "expires_at", "finalizing_at", "completed_at", "failed_at",
                           "expired_at", "cancelling_at", "cancelled_at"}) {
    auto it = times.find(name);
    w.key(name);
    it == times.end() ? w.null() : w.value(it->second);
  }
  w.key("request_counts").begin_object().field("total", draft.lines.size()).field("completed", completed);
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
    auto file = service_.files.get(tenant, draft.fields.input_file_id, Clock::now());
    if (!file) return bad_field("input_file_id", fmt::format("there is no file '{}'", draft.fields.input_file_id));
    draft.file = std::move(*file);
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
  batch->principal = call->principal;
  batch->principal.priority = kLowestPriority;
  batch->draft = std::move(draft);
  batch->times["created_at"] = unix_seconds();
  batch->times["expires_at"] = unix_seconds() + std::chrono::seconds(kWindow).count();
  batches_.push_back(batch);
  if (batch->draft.errors.empty()) {
    batch->enter("in_progress");
  } else {
    batch->enter("failed");
    batch->settled = Clock::now();
  }
  call->reply_json(batch->json());
}

// ---- run --------------------------------------------------------------------------------------------------------

bool Batches::has_room() const {
  if (!service_.is_ready() || num_in_flight_ >= kTogether) return false;
  return service_.admission.predicted_wait_s(1) <= kIdleShare * service_.options.max_wait_s;
}

void Batches::tick() {
  auto now = Clock::now();
  for (auto& batch : batches_) {
    if (batch->is_running() && now >= batch->end) {
      batch->enter("expired");
      end_lines(*batch);
    }
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
  batch.add_line(line, w.text(), "null", status == 200);
}

// Takes back what runs; with what has not begun it fails by name.
void Batches::end_lines(Batch& batch) {
  num_in_flight_ -= static_cast<int>(batch.running.size());
  for (auto& [line, exchange] : std::exchange(batch.running, {})) {
    batch.again.push_back(line);
    exchange->cancel();
  }
  for (; batch.next < batch.draft.lines.size(); ++batch.next) batch.again.push_back(batch.next);
  std::ranges::sort(batch.again);
  JsonWriter w;
  w.begin_object().field("code", "batch_" + batch.status);
  w.field("message", "the batch ended before this request was answered").end_object();
  for (std::size_t line : std::exchange(batch.again, {})) batch.add_line(line, "null", w.text(), false);
}

// Writes the files of a batch that has nothing more to do.
void Batches::settle(Batch& batch) {
  if (batch.is_settled() || batch.has_lines() || !batch.running.empty()) return;
  if (batch.is_running()) batch.enter("finalizing");
  auto keep = [&](std::string& lines, const char* name, std::string& id) {
    if (lines.empty()) return true;
    File file{.name = batch.id + name, .purpose = "batch_output", .data = std::exchange(lines, {})};
    id = keep_file(service_.files, batch.principal.name, std::move(file));
    return !id.empty();
  };
  bool is_kept = keep(batch.output, "_output.jsonl", batch.output_file_id);
  is_kept = keep(batch.errors, "_error.jsonl", batch.error_file_id) && is_kept;
  if (!is_kept) {
    batch.draft.errors.push_back({.code = "output_too_large", .message = "the output does not fit the store of files"});
    batch.enter("failed");
  } else if (batch.status == "finalizing") {
    batch.enter("completed");
  } else if (batch.status == "cancelling") {
    batch.enter("cancelled");
  }
  batch.settled = Clock::now();
  batch.draft.file.reset();
}

void Batches::drop_old() {
  auto is_old = [&](const auto& b) {
    return b->is_settled() && Clock::now() - b->settled > service_.options.stored_time;
  };
  batches_.remove_if(is_old);
}

// ---- asked about ------------------------------------------------------------------------------------------------

Batches::Batch* Batches::find(Call& call) {
  for (auto& batch : batches_) {
    if (batch->id == call.path_id && batch->principal.name == call.principal.name) return batch.get();
  }
  call.reply_error(no_batch(call.path_id));
  return nullptr;
}

void Batches::show(Call& call) {
  if (Batch* batch = find(call)) call.reply_json(batch->json());
}

void Batches::list(Call& call) {
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  for (auto it = batches_.rbegin(); it != batches_.rend(); ++it) {
    if ((*it)->principal.name == call.principal.name) w.raw((*it)->json());
  }
  call.reply_json(w.end_array().field("has_more", false).end_object().take());
}

void Batches::cancel(Call& call) {
  Batch* batch = find(call);
  if (batch == nullptr) return;
  if (batch->is_running()) {
    batch->enter("cancelling");
    end_lines(*batch);
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
