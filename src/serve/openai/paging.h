// Lists of the API in pieces: GET /v1/files?limit=20&after=ID&order=asc.
//
//   {"object": "list", "data": [...], "first_id": ..., "last_id": ..., "has_more": ...}
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "serve/api_error.h"

namespace deepinfer::serve::openai {

struct Page {
  std::size_t limit = 20;
  std::string after;  // id of the last entry of the page before; empty: from the beginning
  bool is_ascending = false;
};

struct ListEntry {
  std::string id, json;
};

// The value of a parameter behind '?', decoded; empty if there is none.
std::string query_value(std::string_view query, std::string_view name);

// Limit, after and order of a request; `usual` entries if it names no limit, at most `most`.
ApiResult<Page> read_page(std::string_view query, std::size_t usual, std::size_t most);

// The page of `entries`, which stand with the newest first. Fails if no entry has the id of `after`.
ApiResult<std::string> page_json(const Page& page, std::vector<ListEntry> entries);

}  // namespace deepinfer::serve::openai
