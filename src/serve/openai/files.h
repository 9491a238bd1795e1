// /v1/files: upload, list, show, fetch and delete (openai/file_store.h keeps them).
#pragma once

#include <string_view>

#include "serve/api_error.h"

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

void add_files(Service& service);

// 404 for the "file" or "batch" of an id: not there, whatever the reason.
ApiError not_kept(std::string_view kind, std::string_view id);

}  // namespace deepinfer::serve::openai
