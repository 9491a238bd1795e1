// /v1/files: upload, list, show, fetch and delete (openai/file_store.h keeps them).
#pragma once

namespace deepinfer::serve {
class Service;
}

namespace deepinfer::serve::openai {

void add_files(Service& service);

}  // namespace deepinfer::serve::openai
