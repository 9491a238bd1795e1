#include "serve/openai/files.h"

#include "net/multipart.h"
#include "serve/ids.h"
#include "serve/json_writer.h"
#include "serve/service.h"

namespace deepinfer::serve::openai {
namespace {

void write_file_object(JsonWriter& w, const File& f) {
  w.begin_object().field("id", f.id).field("object", "file").field("bytes", f.data.size());
  w.field("created_at", f.created_s).field("filename", f.name).field("purpose", f.purpose);
  w.field("status", "processed").end_object();
}

ApiError no_file(std::string_view id) {
  return {
      .status = 404,
      .message = fmt::format("there is no file '{}'; it never was, belongs to another key, or its time is over", id),
      .param = "file_id",
      .code = "file_not_found"};
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

void upload(FileStore& files, Call& call) {
  auto file = read_form(call.request());
  if (!file) return call.reply_error(file.error());
  std::size_t bytes = file->data.size();
  std::string id = keep_file(files, call.principal.name, std::move(*file));
  if (id.empty()) {
    return call.reply_error(
        {.status = 413,
         .message = fmt::format("the file has {} bytes; all files together may have {}", bytes, files.max_bytes()),
         .param = "file"});
  }
  JsonWriter w;
  write_file_object(w, **files.get(call.principal.name, id, FileStore::Clock::now()));
  call.reply_json(w.take());
}

void list(FileStore& files, Call& call) {
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  for (const FilePtr& file : files.list(call.principal.name, FileStore::Clock::now())) write_file_object(w, *file);
  call.reply_json(w.end_array().field("has_more", false).end_object().take());
}

using Show = void (*)(Call&, const File&);
void with_file(FileStore& files, Call& call, Show show) {
  auto file = files.get(call.principal.name, call.path_id, FileStore::Clock::now());
  file ? show(call, **file) : call.reply_error(no_file(call.path_id));
}

void remove(FileStore& files, Call& call) {
  if (!files.remove(call.principal.name, call.path_id)) return call.reply_error(no_file(call.path_id));
  JsonWriter w;
  w.begin_object().field("id", call.path_id).field("object", "file").field("deleted", true).end_object();
  call.reply_json(w.take());
}

}  // namespace

std::string keep_file(FileStore& files, const std::string& tenant, File file) {
  file.id = new_id("file-");
  file.created_s = unix_seconds();
  std::string id = file.id;
  auto bytes = static_cast<int64_t>(file.data.size() + file.name.size());
  bool is_kept = files.put(tenant, id, std::make_shared<const File>(std::move(file)), bytes, FileStore::Clock::now());
  return is_kept ? id : "";
}

void add_files(Service& service) {
  FileStore& files = service.files;
  auto add = [&service](const char* method, const char* pattern, std::function<void(Call&)> handler) {
    service.router.add({.method = method, .pattern = pattern, .handler = [handler = std::move(handler)](CallPtr call) {
                          handler(*call);
                        }});
  };
  add("POST", "/v1/files", [&files](Call& call) { upload(files, call); });
  add("GET", "/v1/files", [&files](Call& call) { list(files, call); });
  add("GET", "/v1/files/{id}", [&files](Call& call) {
    with_file(files, call, [](Call& c, const File& file) {
      JsonWriter w;
      write_file_object(w, file);
      c.reply_json(w.take());
    });
  });
  add("GET", "/v1/files/{id}/content", [&files](Call& call) {
    with_file(files, call, [](Call& c, const File& file) {
      c.reply({.headers = {{"Content-Type", "application/octet-stream"}}, .body = file.data});
    });
  });
  add("DELETE", "/v1/files/{id}", [&files](Call& call) { remove(files, call); });
}

}  // namespace deepinfer::serve::openai
