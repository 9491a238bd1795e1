// The table behind settings.h: names, defaults, and what each does here.

#include <array>

#include "engine/settings.h"

namespace deepinfer::engine {
namespace {

using enum SettingStatus;

constexpr std::string_view kNoCuda = "tunes a CUDA-only mechanism of DeepInfer";
constexpr std::string_view kNoGloo = "tunes process groups; ranks here are objects that talk through a Communicator";
constexpr std::string_view kNoEplb = "expert rebalancing acts between ranks; with one rank there is nothing to move";

constexpr SettingRow kEnvironment[] = {
    {"ACCELERATOR", "auto", kImplemented, "auto, cpu or nvidia; ascend is refused: it is not built"},
    {"COMPUTE_SUM_SMALLER_PROBS", "0", kAccepted, "the value is part of a debugging output that is not offered"},
    {"JIT_CACHE_DIR", "", kAccepted, "kernels are compiled ahead of time"},
    {"NCCL_NUM_SMS", "32", kAccepted, kNoCuda},
    {"USERBUFFER_COMM_SMS", "0", kAccepted, kNoCuda},
    {"GLOO_TIMEOUT", "14400", kAccepted, kNoGloo},
    {"REARRANGE_P2P_GROUPS", "1", kAccepted, kNoEplb},
    {"OVERRIDE_NUM_EXTRA_EXPERTS", "0", kAccepted, kNoEplb},
    {"EXPERT_COUNT_WINDOW_SIZE", "100", kAccepted, kNoEplb},
    {"EXPERT_REARRANGEMENT_STEP_INTERVAL", "0", kAccepted, kNoEplb},
    {"REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", "0", kAccepted, kNoEplb},
    {"MOE_LB_STAT_INTERVAL", "128", kAccepted, kNoEplb},
    {"FORCE_IMBALANCE_RATIO", "0", kAccepted, "synthetic skew for DeepInfer's memory profile; memory is planned here"},
    {"FORCE_LOAD_BALANCE", "0", kRefused, "it would change answers"},
    {"SHOW_EPLB_DETAIL", "0", kAccepted, kNoEplb},
    {"PREFILL_MAX_SUM_SEQLEN_K", "", kAccepted, "steps are bounded by rows and time, not by the sum of prompt lengths"},
    {"INDEX_ATTN_MEMORY_LIMIT", "10737418240", kAccepted, "index scores are made row by row in planned scratch"},
    {"USE_NEXTN_DECODE", "5", kImplemented, "largest number of drafts a step verifies; 0 turns speculation off"},
    {"ENABLE_MTP_VARLEN", "", kImplemented, "unset: chosen live; 0: fixed width; 1: confidence-scheduled"},
    {"MAX_BACKTRACKING_TOKENS", "", kImplemented, "positions the window rings can take back; default drafts + 1"},
    {"DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "1.0", kImplemented,
     "one value, or a comma list with one per draft position"},
    {"ENGRAM_PAD_TOKEN", "2", kRefused, "the pad id is part of the checkpoint's config.json"},
    {"ENGRAM_FORCE_GPU_STORAGE", "0", kAccepted, "tables are read from the mapped checkpoint"},
    {"SAMPLER_FORCE_TOPK", "0", kImplemented, "every request's top_k is cut to this; 0: off"},
    {"DECODE_TOKEN_BLACKLIST", "", kImplemented, "ids never emitted: rising list of values or closed ranges, 0..3,7"},
    {"ENFORCE_EAGER", "0", kAccepted, kNoCuda},
    {"CUDAGRAPH_BATCH_SIZE_INTERVAL", "8", kAccepted, kNoCuda},
    {"DFLASH_ENFORCE_EAGER", "0", kAccepted, kNoCuda},
    {"DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", "8", kAccepted, kNoCuda},
    {"DECODE_PERF_CACHE_DIR", "", kAccepted, "the cost model is fitted live"},
    {"DECODE_PERF_CACHE_TTL_SEC", "3600", kAccepted, "the cost model is fitted live"},
    {"NUM_STATE_SLOTS_RATIO", "1.2", kImplemented, "state slots = floor(max_num_seqs x ratio) + 1"},
    {"STORED_WINDOWS", "", kImplemented,
     "window states kept at prefix boundaries for exact hits, 0: none; default 2 x max_num_seqs (ours)"},
    {"PREFILL_STORE_EXTRA_STATE", "0", kAccepted, "serves an external store of DeepInfer"},
    {"PREFILL_STORE_EXTRA_SIZE", "128", kAccepted, "serves an external store of DeepInfer"},
    {"XGRAMMAR_DEBUG", "0", kAccepted, "a grammar's error is returned with the request"},
    {"XGRAMMAR_TIMEOUT", "20", kImplemented, "seconds a grammar may take to compile"},
    {"XGRAMMAR_DISABLE_CACHE", "0", kImplemented, "1: compiled grammars are not kept"},
    {"XGRAMMAR_CACHE_LIMIT_BYTES", "10737418240", kImplemented, "memory for compiled grammars; <= 0: unbounded"},
    {"SO_BUILDER_CPUS", "4", kImplemented, "threads that compile grammars"},
    {"PREFILL_ATTEMPT_INTERVAL", "70", kAccepted, "requests are admitted at every step"},
    {"PREFILL_ANY_ATTEMPT_INTERVAL", "100", kAccepted, "requests are admitted at every step"},
    {"ZERO_OVERHEAD_SCHEDULING", "1", kImplemented,
     "1: the next step is planned while one runs; 0: one after the other"},
    {"LOGGING_INTERVAL_STEP", "100", kImplemented, "steps between statistics lines; <= 0: off"},
    {"NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", "1000", kAccepted, kNoCuda},
    {"RINGBUFFER_WARNING_INTERVAL", "60", kAccepted, "there are no follower processes"},
    {"GC_INTERVAL_STEP", "1000", kAccepted, "there is no garbage collector in the step loop"},
    {"YOCO_PREFILL_TRUNCATION_MODE", "compact", kImplemented,
     "off: the decoder half computes and sees every prompt row; compact: the last kept ones; mask: it computes every "
     "row "
     "and sees the kept ones, the slower form of the same answers, for comparison"},
    {"YOCO_PREFILL_KEEP_TOKENS", "0", kImplemented,
     "prompt tokens the decoder half keeps; 0: window + the model's draft block + 7, whatever the number of drafts"},
    {"BATCH_INVARIANT", "0", kImplemented, "1: cache mode exact and common noise for every request"},
    {"DISABLE_SYNC_GUARD", "0", kAccepted, kNoCuda},
    {"PROFILE_TORCH_CUDA_MEMORY", "", kAccepted, kNoCuda},
    {"ENABLE_MEMORY_TRACING", "0", kAccepted, kNoCuda},
    {"PROFILE_HTTP_ENABLE", "0", kAccepted, "profiling has its own command"},
    {"PROFILE_HTTP_PORT_BASE", "6070", kAccepted, "profiling has its own command"},
    {"TORCH_PROFILER_DIR", "/tmp", kAccepted, "there is no PyTorch inside"},
    {"USE_MULTIMODAL_POOL", "0", kAccepted, "images are not built yet"},
    {"MULTIMODAL_POOL_SIZE_GB", "8", kAccepted, "images are not built yet"},
    {"MULTI_MODAL_BUFFER_SIZE", "512", kAccepted, "images are not built yet"},
    {"MULTI_MODAL_WORKER_TIMEOUT", "1800", kAccepted, "images are not built yet"},
    {"CPP_LOG_LEVEL", "info", kImplemented, "off, error, warn, info or debug"},
    {"HF_MODEL_DIR", "", kImplemented, "checkpoint directory that the examples use"},
};

constexpr SettingRow kEngineArguments[] = {
    {"model", "models/tiny", kImplemented, "directory, or a hub name found in the Hugging Face cache"},
    {"tokenizer", "= model", kImplemented, "directory with tokenizer.json"},
    {"trust_remote_code", "False", kAccepted, "no remote code is ever run"},
    {"expert_parallel_size", "1", kImplemented, "in-process ranks that share the experts"},
    {"revision", "None", kAccepted, "the cache's newest snapshot is used"},
    {"tokenizer_revision", "None", kAccepted, "the cache's newest snapshot is used"},
    {"seed", "0", kImplemented, "requests without a seed get one derived from this and their number"},
    {"gpu_memory_utilization", "0.90", kImplemented, "fraction of the device's free memory for the caches"},
    {"decode_sequence", "False", kImplemented, "True: generate returns strings as DeepInfer does"},
    {"served_model_name", "deepinfer-model", kAccepted, "a label"},
    {"load_format", "auto", kImplemented, "auto; dummy is refused with the command that makes generated weights"},
    {"max_model_len", "None", kImplemented, "context length; default from the memory plan"},
    {"data_parallel_size", "0", kRefused, "replicas are separate processes behind a router"},
    {"context_parallel_size", "1", kRefused, "values above 1 are not built"},
    {"engram_parallel_size", "0", kAccepted, "Engram rows are shared by the ranks of a host"},
    {"engine_rank", "0", kAccepted, "ranks are in-process"},
    {"engine_group_rank", "0", kAccepted, "ranks are in-process"},
    {"max_num_batched_tokens", "None", kImplemented, "rows a step"},
    {"max_num_seqs", "256", kImplemented, "sequences that run together"},
    {"disable_log_stats", "True", kImplemented, "periodic statistics lines"},
    {"stop_preempted_request", "False", kRefused, "preempted requests always resume"},
    {"engine_type", "NORMAL", kRefused, "PROMPT and COMPLETION roles are not built"},
    {"chunked_prefill", "True", kAccepted,
     "prompts are always cut into chunks; no prompt is refused for being longer than a step"},
    {"ignore_len", "134217728", kAccepted, "unused in DeepInfer as well"},
    {"tokens_per_block", "128", kImplemented, "128 only"},
    {"lookahead_tokens", "0", kAccepted, "chunks have no minimum length"},
};

constexpr SettingRow kSamplingArguments[] = {
    {"temperature", "1.0", kImplemented, "0: the first maximum, exactly"},
    {"top_p", "1.0", kImplemented, "(0, 1]"},
    {"top_k", "-1", kImplemented, "-1: off"},
    {"ignore_eos", "False", kImplemented, ""},
    {"max_tokens", "16", kImplemented, ">= 1"},
    {"logprobs", "False", kImplemented, "raw log-probabilities of the chosen tokens"},
    {"prompt_logprobs", "False", kImplemented, "forces a full prefill for that request"},
    {"top_logprobs", "0", kImplemented, "0..1000"},
    {"first_n_token_no_eos", "0", kImplemented, "0 or 1"},
    {"eos_id", "0", kAccepted, "the tokenizer's id is used, as in DeepInfer"},
    {"so_args", "None", kImplemented,
     "json, json_object, regex, ebnf, choice or structural_tag, with trigger, bound id and prefix"},
    {"golden_token_ids", "None", kImplemented, "-1 leaves a position free"},
    {"seq_seed", "None", kImplemented, "absent: derived from the engine's seed"},
};

}  // namespace

std::span<const SettingRow> environment_rows() {
  return kEnvironment;
}
std::span<const SettingRow> engine_argument_rows() {
  return kEngineArguments;
}
std::span<const SettingRow> sampling_argument_rows() {
  return kSamplingArguments;
}

}  // namespace deepinfer::engine
