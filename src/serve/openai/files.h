// Files of the API: what batches read and write. Kept in memory for a limited time, within a limit of bytes.
#pragma once

#include <memory>
#include <string>

#include "serve/store.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

struct File {
  std::string id, name, purpose, data;
  int64_t created_s = 0;
};
// Shared by the store, answers that are being sent and batches that read it.
using FilePtr = std::shared_ptr<const File>;
using FileStore = Store<FilePtr>;

// The file's id; empty if it is larger than the whole store.
std::string keep_file(FileStore& files, const std::string& tenant, File file);

void add_files(Service& service);

}  // namespace deepinfer::serve::openai
