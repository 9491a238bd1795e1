#include "serve/openai/files.h"

#include "net/multipart.h"
#include "serve/ids.h"
#include "serve/json_writer.h"
#include "serve/openai/file_store.h"
#include "serve/openai/paging.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

constexpr std::size_t kLargestPage = 10'000;

std::string object_of(const File& f) {
  JsonWriter w;
  w.begin_object().field("id", f.id).field("object", "file").field("bytes", f.data.size());
  w.field("created_at", f.created_s).field("expires_at", f.expires_s).field("filename", f.name);
  return w.field("purpose", f.purpose).field("status", "processed").end_object().take();
}

ApiResult<File> read_form(const net::HttpRequest& request) {
  auto parts = net::parse_form(request.header("content-type"), request.body);
  if (!parts) return tl::unexpected(to_api_error(parts.error()));
  File file;
  bool has_file = false;
  for (const net::FormPart& part : *parts) {
    if (part.name == "purpose") file.purpose = part.data;
    if (part.name != "file") continue;
    has_file = true;
    file.name = part.filename.empty() ? "file" : part.filename;
    file.data = part.data;
  }
  if (!has_file) return bad_field("file", "file is missing; a part of that name is needed");
  if (file.purpose != "batch")
    return bad_field("purpose", fmt::format("purpose is '{}'; allowed: 'batch'", file.purpose.substr(0, 60)));
  return file;
}

// A file may be as large as a body: it is taken apart and written beside the loop.
void upload(Service& service, CallPtr call) {
  // Shared by the two halves, which run one after the other.
  auto kept = std::make_shared<ApiResult<FilePtr>>();
  auto work = [&service, call, kept] {
    auto file = read_form(call->request());
    *kept = file ? service.files.add(call->principal.name, std::move(*file)) : tl::unexpected(file.error());
  };
  service.loop.offload(work, [call, kept] {
    if (!*kept) return call->reply_error(kept->error());
    call->reply_json(object_of(***kept));
  });
}

void list(FileStore& files, Call& call) {
  auto page = read_page(call.request().query, kLargestPage, kLargestPage);
  if (!page) return call.reply_error(page.error());
  std::string purpose = query_value(call.request().query, "purpose");
  std::vector<ListEntry> entries;
  for (const FilePtr& file : files.list(call.principal.name)) {
    if (purpose.empty() || file->purpose == purpose) entries.push_back({file->id, object_of(*file)});
  }
  auto body = page_json(*page, std::move(entries));
  body ? call.reply_json(std::move(*body)) : call.reply_error(body.error());
}

using Show = void (*)(Call&, const File&);
void with_file(FileStore& files, Call& call, Show show) {
  FilePtr file = files.get(call.principal.name, call.path_id);
  file ? show(call, *file) : call.reply_error(not_kept("file", call.path_id));
}

void remove(FileStore& files, Call& call) {
  if (!files.remove(call.principal.name, call.path_id)) return call.reply_error(not_kept("file", call.path_id));
  JsonWriter w;
  w.begin_object().field("id", call.path_id).field("object", "file").field("deleted", true).end_object();
  call.reply_json(w.take());
}

}  // namespace

ApiError not_kept(std::string_view kind, std::string_view id) {
  return {.status = 404,
          .message =
              fmt::format("there is no {} '{}'; it never was, belongs to another key, its time is over, or it was lost "
                          "at a restart (--data-dir keeps them)",
                          kind, id),
          .param = fmt::format("{}_id", kind),
          .code = fmt::format("{}_not_found", kind)};
}

void add_files(Service& service) {
  FileStore& files = service.files;
  auto add = [&service](const char* method, const char* pattern, std::function<void(Call&)> handler) {
    service.router.add({.method = method, .pattern = pattern, .handler = [handler = std::move(handler)](CallPtr call) {
                          handler(*call);
                        }});
  };
  service.router.add({.method = "POST", .pattern = "/v1/files", .handler = [&service](CallPtr call) {
                        upload(service, std::move(call));
                      }});
  add("GET", "/v1/files", [&files](Call& call) { list(files, call); });
  add("GET", "/v1/files/{id}", [&files](Call& call) {
    with_file(files, call, [](Call& c, const File& file) { c.reply_json(object_of(file)); });
  });
  add("GET", "/v1/files/{id}/content", [&files](Call& call) {
    with_file(files, call, [](Call& c, const File& file) {
      c.reply({.headers = {{"Content-Type", "application/octet-stream"}}, .body = file.data});
    });
  });
  add("DELETE", "/v1/files/{id}", [&files](Call& call) { remove(files, call); });
}

}  // namespace deepinfer::serve::openai
