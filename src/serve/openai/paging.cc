#include "serve/openai/paging.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "serve/json_writer.h"

namespace deepinfer::serve::openai {

std::string query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    std::size_t end = std::min(query.find('&'), query.size());
    std::string_view pair = query.substr(0, end);
    std::size_t equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) == name) return net::percent_decode(pair.substr(std::min(equals + 1, pair.size())));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return "";
}

ApiResult<Page> read_page(std::string_view query, std::size_t usual, std::size_t most) {
  Page page{.limit = usual, .after = query_value(query, "after")};
  if (std::string limit = query_value(query, "limit"); !limit.empty()) {
    auto [end, ec] = std::from_chars(limit.data(), limit.data() + limit.size(), page.limit);
    bool is_number = ec == std::errc() && end == limit.data() + limit.size();
    if (!is_number || page.limit < 1 || page.limit > most)
      return bad_field("limit", fmt::format("limit is '{}'; allowed: 1 to {}", limit.substr(0, 60), most));
  }
  std::string order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc")
    return bad_field("order", fmt::format("order is '{}'; allowed: 'asc', 'desc'", order.substr(0, 60)));
  page.is_ascending = order == "asc";
  return page;
}

ApiResult<std::string> page_json(const Page& page, std::vector<ListEntry> entries) {
  if (page.is_ascending) std::ranges::reverse(entries);
  auto begin = entries.begin();
  if (!page.after.empty()) {
    begin = std::ranges::find(entries, page.after, &ListEntry::id);
    if (begin == entries.end())
      return bad_field("after", fmt::format("after is '{}'; the list has no such id", page.after.substr(0, 60)));
    ++begin;
  }
  auto left = static_cast<std::size_t>(entries.end() - begin);
  auto end = begin + static_cast<std::ptrdiff_t>(std::min(left, page.limit));
  JsonWriter w;
  w.begin_object().field("object", "list").key("data").begin_array();
  for (auto it = begin; it != end; ++it) w.raw(it->json);
  w.end_array();
  auto id = [&](const char* name, const std::vector<ListEntry>::iterator& it) {
    w.key(name);
    begin == end ? w.null() : w.value(it->id);
  };
  id("first_id", begin);
  id("last_id", begin == end ? end : end - 1);
  return w.field("has_more", left > page.limit).end_object().take();
}

}  // namespace deepinfer::serve::openai
