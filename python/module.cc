// deepinfer._core: a thin skin over include/deepinfer. The typed, documented face is python/deepinfer.
//
// generate() releases the interpreter lock while the engine works and takes it back now and then to look for Ctrl-C.

#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "deepinfer/engine.h"

namespace nb = nanobind;
using namespace deepinfer;

namespace {

[[noreturn]] void raise(const Failure& failure) {
  if (failure.is_user_error) throw nb::value_error(failure.message.c_str());
  throw std::runtime_error(failure.message);
}

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  nb::gil_scoped_release release;
  auto engine = Engine::create(options);
  if (!engine) {
    nb::gil_scoped_acquire acquire;
    raise(engine.failure());
  }
  return std::move(engine.value());
}

std::vector<RequestOutput> generate(Engine& engine, std::vector<Request> requests, nb::object progress) {
  bool interrupted = false, failed = false;
  std::vector<RequestOutput> outputs;
  {
    nb::gil_scoped_release release;
    outputs = engine.generate(std::move(requests), [&](int64_t finished) {
      nb::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      if (interrupted) return false;
      if (progress.is_none()) return true;
      PyObject* result = PyObject_CallFunction(progress.ptr(), "L", static_cast<long long>(finished));
      failed = result == nullptr;
      Py_XDECREF(result);
      return !failed;
    });
  }
  if (interrupted || failed) throw nb::python_error();
  return outputs;
}

}  // namespace

NB_MODULE(_core, m) {
  nb::enum_<CacheMode>(m, "CacheMode")
      .value("bounded", CacheMode::kBounded)
      .value("exact", CacheMode::kExact)
      .value("off", CacheMode::kOff);
  nb::enum_<LogprobKind>(m, "LogprobKind").value("raw", LogprobKind::kRaw).value("processed", LogprobKind::kProcessed);

  nb::class_<StructuredOutput>(m, "StructuredOutput")
      .def(nb::init<>())
      .def_rw("schema_type", &StructuredOutput::schema_type)
      .def_rw("schema", &StructuredOutput::schema)
      .def_rw("trigger_token_ids", &StructuredOutput::trigger_token_ids)
      .def_rw("bound_token_id", &StructuredOutput::bound_token_id)
      .def_rw("prefix", &StructuredOutput::prefix);

  nb::class_<SamplingParams>(m, "SamplingParams")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("seed", &SamplingParams::seed)
      .def_rw("n", &SamplingParams::n)
      .def_rw("max_tokens", &SamplingParams::max_tokens)
      .def_rw("ignore_eos", &SamplingParams::ignore_eos)
      .def_rw("first_n_token_no_eos", &SamplingParams::first_n_token_no_eos)
      .def_rw("stop", &SamplingParams::stop)
      .def_rw("stop_token_ids", &SamplingParams::stop_token_ids)
      .def_rw("bad_words", &SamplingParams::bad_words)
      .def_rw("logprobs", &SamplingParams::logprobs)
      .def_rw("top_logprobs", &SamplingParams::top_logprobs)
      .def_rw("prompt_logprobs", &SamplingParams::prompt_logprobs)
      .def_rw("logprob_kind", &SamplingParams::logprob_kind)
      .def_rw("golden_token_ids", &SamplingParams::golden_token_ids)
      .def_rw("so_args", &SamplingParams::so_args)
      .def_rw("priority", &SamplingParams::priority)
      .def_rw("deadline_ms", &SamplingParams::deadline_ms)
      .def_rw("cache_mode", &SamplingParams::cache_mode)
      .def_rw("cache_salt", &SamplingParams::cache_salt);

  nb::class_<EngineOptions>(m, "EngineOptions")
      .def(nb::init<>())
      .def_rw("model", &EngineOptions::model)
      .def_rw("tokenizer", &EngineOptions::tokenizer)
      .def_rw("numerics", &EngineOptions::numerics)
      .def_rw("backend", &EngineOptions::backend)
      .def_rw("num_threads", &EngineOptions::num_threads)
      .def_rw("max_model_len", &EngineOptions::max_model_len)
      .def_rw("max_num_seqs", &EngineOptions::max_num_seqs)
      .def_rw("max_num_batched_tokens", &EngineOptions::max_num_batched_tokens)
      .def_rw("memory_fraction", &EngineOptions::memory_fraction)
      .def_rw("num_drafts", &EngineOptions::num_drafts)
      .def_rw("truncation", &EngineOptions::truncation)
      .def_rw("keep_tokens", &EngineOptions::keep_tokens)
      .def_rw("cache_mode", &EngineOptions::cache_mode)
      .def_rw("max_step_ms", &EngineOptions::max_step_ms)
      .def_rw("seed", &EngineOptions::seed)
      .def_rw("log_statistics", &EngineOptions::log_statistics);

  nb::class_<Request>(m, "Request")
      .def(nb::init<>())
      .def_rw("prompt", &Request::prompt)
      .def_rw("sampling", &Request::sampling)
      .def_rw("tenant", &Request::tenant);

  nb::class_<Usage>(m, "Usage")
      .def_ro("prompt_tokens", &Usage::prompt_tokens)
      .def_ro("completion_tokens", &Usage::completion_tokens)
      .def_ro("cached_tokens", &Usage::cached_tokens)
      .def_ro("replayed_tokens", &Usage::replayed_tokens)
      .def_ro("from_stored_windows", &Usage::from_stored_windows)
      .def_ro("drafted_tokens", &Usage::drafted_tokens)
      .def_ro("accepted_tokens", &Usage::accepted_tokens)
      .def_ro("steps", &Usage::steps);
  nb::class_<TopLogprob>(m, "TopLogprob").def_ro("token", &TopLogprob::token).def_ro("logprob", &TopLogprob::logprob);
  nb::class_<CompletionOutput>(m, "CompletionOutput")
      .def_ro("index", &CompletionOutput::index)
      .def_ro("text", &CompletionOutput::text)
      .def_ro("token_ids", &CompletionOutput::token_ids)
      .def_ro("logprobs", &CompletionOutput::logprobs)
      .def_ro("top_logprobs", &CompletionOutput::top_logprobs)
      .def_prop_ro("finish_reason",
                   [](const CompletionOutput& c) { return std::string(finish_reason_name(c.finish_reason)); })
      .def_ro("error", &CompletionOutput::error)
      .def_ro("usage", &CompletionOutput::usage);
  nb::class_<RequestOutput>(m, "RequestOutput")
      .def_ro("prompt_token_ids", &RequestOutput::prompt_token_ids)
      .def_ro("prompt_logprobs", &RequestOutput::prompt_logprobs)
      .def_ro("outputs", &RequestOutput::outputs);

  nb::class_<EngineStats>(m, "EngineStats")
      .def_ro("num_waiting", &EngineStats::num_waiting)
      .def_ro("num_running", &EngineStats::num_running)
      .def_ro("steps", &EngineStats::steps)
      .def_ro("rows", &EngineStats::rows)
      .def_ro("output_tokens", &EngineStats::output_tokens)
      .def_ro("drafted_tokens", &EngineStats::drafted_tokens)
      .def_ro("accepted_tokens", &EngineStats::accepted_tokens)
      .def_ro("drafted_by_position", &EngineStats::drafted_by_position)
      .def_ro("accepted_by_position", &EngineStats::accepted_by_position)
      .def_ro("blocks", &EngineStats::blocks)
      .def_ro("blocks_available", &EngineStats::blocks_available);

  nb::class_<Engine>(m, "Engine")
      .def("generate", &generate, nb::arg("requests"), nb::arg("progress").none() = nb::none())
      .def(
          "check",
          [](const Engine& e, const SamplingParams& p) {
            if (auto wrong = e.check(p)) raise(*wrong);
          },
          nb::arg("params"))
      .def(
          "encode", [](const Engine& e, const std::string& text) { return e.encode(text); }, nb::arg("text"))
      .def(
          "decode", [](const Engine& e, const std::vector<int32_t>& ids) { return e.decode(ids); }, nb::arg("ids"))
      .def("stats", &Engine::stats)
      .def_prop_ro("description", &Engine::description)
      .def_prop_ro("max_model_len", &Engine::max_model_len)
      .def_prop_ro("eos_token_id", &Engine::eos_token_id);
  m.def("make_engine", &make_engine, nb::arg("options"));
}
