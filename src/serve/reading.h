// What the body of a request is read against: who asks, the model, and what was kept of earlier answers.
#pragma once

#include <string>

#include "serve/model.h"
#include "serve/openai/response_store.h"
#include "serve/written.h"

namespace deepinfer::serve {

struct Reading {
  const Model& model;
  std::string tenant = {};
  // nullptr: nothing was kept.
  WrittenAnswers* written = nullptr;
  openai::ResponseStore* responses = nullptr;
};

}  // namespace deepinfer::serve
